//! Compiles a `rate_limit` into quotas.

use std::sync::Arc;
use std::time::Duration;

use super::config_error::SourceSpan;
use super::fields::{ALGORITHMS, LEASE, ON_FAILURES, RATE_LIMIT, REPLACES, TIER, UNIT_SECONDS, UNITS};
use super::limit::Limit;
use super::reader::{Fields, Reader};
use super::rule::LimitSettings;
use super::yaml::{Value, YamlNode};
use tidegate::algorithm::{Definition, Parameters};
use tidegate::{Error, Lease, OnFailure, Quota, Rate};

/// The fields that cannot be combined with `unlimited`.
const LIMITED_FIELDS: [&str; 9] =
    ["unit", "unit_multiplier", "requests_per_unit", "every", "algorithm", "burst", "cost", "lease", "tiers"];

/// The maximum number of tiers of one rule: a request compares its tier with each.
const MAX_TIERS: usize = 1_000;

/// The settings that a rule's limit and its tiers share.
struct Shape {
    window: Duration,
    algorithm: &'static Definition,
    burst: Option<(u64, SourceSpan)>,
    cost: u64,
}

/// The settings, and the position of each name in `replaces`.
pub(super) type ParsedLimit = (LimitSettings, Vec<SourceSpan>);

/// Reads a `rate_limit`. Returns `None` if it has an error; the error is added to the reader's.
pub(super) fn read(reader: &mut Reader<'_>, node: &YamlNode) -> Option<ParsedLimit> {
    let errors_before = reader.errors.total();
    let fields = reader.map(node, &RATE_LIMIT)?;
    let name = fields.get("name").and_then(|name| reader.text("name", name)).map(Into::into);
    let (replaces, spans) = replaces(reader, &fields, name.as_deref());
    let on_failure = fields
        .get("on_failure")
        .and_then(|node| reader.choice("on_failure", ON_FAILURES, node))
        .map(|at| [OnFailure::Local, OnFailure::Error, OnFailure::Open, OnFailure::Closed][at]);
    let is_unlimited = reader.flag("unlimited", fields.get("unlimited"));
    let (limit, tiers, cost, lease) = match is_unlimited {
        true => {
            for name in LIMITED_FIELDS {
                if let Some(node) = fields.get(name) {
                    let message = format!("`{name}` cannot be combined with `unlimited`");
                    reader.error(node.span(), message).hint("remove one of them");
                }
            }
            (Some(Limit::Unlimited), Vec::new(), 1, None)
        }
        false => {
            let shape = shape(reader, node, &fields);
            let limit = limit(reader, node, &fields, shape.as_ref());
            let tiers = tiers(reader, shape.as_ref(), fields.get("tiers"));
            let lease = fields.get("lease").and_then(|node| lease(reader, node, limit));
            (limit, tiers, shape.map_or(1, |shape| shape.cost), lease)
        }
    };
    let (replaces, tiers, lease) = (replaces.into(), tiers.into(), lease.map(Box::new));
    let settings = LimitSettings { name, replaces, limit: limit?, tiers, cost, on_failure, lease };
    (reader.errors.total() == errors_before).then_some((settings, spans))
}

fn replaces(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    own: Option<&str>,
) -> (Vec<Arc<str>>, Vec<SourceSpan>) {
    let (mut names, mut spans) = (Vec::new(), Vec::new());
    for node in reader.list("replaces", fields.get("replaces")) {
        let Some(entry) = reader.map(node, &REPLACES) else { continue };
        let Some(node) = entry.get("name") else {
            reader.error(node.span(), "an entry of `replaces` needs a `name`");
            continue;
        };
        match reader.text("name", node) {
            None => {}
            Some("") => drop(reader.error(node.span(), "an entry of `replaces` has an empty `name`")),
            Some(name) if Some(name) == own => {
                reader.error(node.span(), format!("`{name}` replaces itself"));
            }
            Some(name) => {
                names.push(name.into());
                spans.push(node.span());
            }
        }
    }
    (names, spans)
}

fn shape(reader: &mut Reader<'_>, node: &YamlNode, fields: &Fields<'_>) -> Option<Shape> {
    let window = window(reader, node, fields);
    let algorithm = match fields.get("algorithm") {
        None => Some(0),
        Some(node) => reader.choice("algorithm", ALGORITHMS, node),
    };
    let burst = fields.get("burst").and_then(|node| Some((reader.count("burst", 1, node)?, node.span())));
    let algorithm = Definition::of_name(ALGORITHMS[algorithm?])?;
    if let (Some((_, span)), Parameters::Window) = (burst, algorithm.parameters) {
        let message = format!("a {} has no `burst`: the whole limit can be used at once", algorithm.name);
        reader.error(span, message).hint("remove it, or add `algorithm: token_bucket`");
    }
    let cost = fields.get("cost").and_then(|node| reader.count("cost", 1, node)).unwrap_or(1);
    Some(Shape { window: window?, algorithm, burst, cost })
}

fn window(reader: &mut Reader<'_>, node: &YamlNode, fields: &Fields<'_>) -> Option<Duration> {
    let multiplier = fields.get("unit_multiplier");
    let units = multiplier.map_or(Some(1), |node| reader.count("unit_multiplier", 1, node));
    match (fields.get("unit"), fields.get("every")) {
        (Some(_), Some(every)) => {
            reader.error(every.span(), "`every` cannot be combined with `unit`").hint("remove one of them");
            None
        }
        (None, None) => {
            let message = "a rate_limit needs a `unit` (or `every`)";
            reader.error(node.span(), message).hint(format!("a unit is one of {}", UNITS.join(", ")));
            None
        }
        (None, Some(every)) => {
            if let Some(node) = multiplier {
                let message = "`unit_multiplier` cannot be combined with `every`";
                reader.error(node.span(), message).hint("remove it");
            }
            let window = reader.duration("every", every)?;
            check_length(reader, window, every)
        }
        (Some(unit), None) => {
            let seconds = UNIT_SECONDS[reader.choice("unit", UNITS, unit)?];
            let window = Duration::from_secs(seconds.saturating_mul(units?));
            check_length(reader, window, multiplier.unwrap_or(unit))
        }
    }
}

fn check_length(reader: &mut Reader<'_>, window: Duration, node: &YamlNode) -> Option<Duration> {
    if window <= Quota::MAX_WINDOW {
        return Some(window);
    }
    reader.error(node.span(), "a window is at most 10 years long");
    None
}

fn limit(
    reader: &mut Reader<'_>,
    node: &YamlNode,
    fields: &Fields<'_>,
    shape: Option<&Shape>,
) -> Option<Limit> {
    let Some(requests) = fields.get("requests_per_unit") else {
        let hint = "0 denies all requests; `unlimited: true` admits all of them";
        reader.error(node.span(), "a rate_limit needs `requests_per_unit`").hint(hint);
        return None;
    };
    let number = reader.count("requests_per_unit", 0, requests)?;
    let shape = shape?;
    limit_of(reader, shape, number, shape.burst, requests.span())
}

fn tiers(reader: &mut Reader<'_>, shape: Option<&Shape>, node: Option<&YamlNode>) -> Vec<(Box<str>, Limit)> {
    let mut tiers: Vec<(Box<str>, Limit)> = Vec::new();
    let Some(node) = node else { return tiers };
    let Value::Map(entries) = node.value() else {
        reader.error(node.span(), "`tiers` must be a map from tier names to limits");
        return tiers;
    };
    if entries.len() > MAX_TIERS {
        let message = format!("a rule has at most {MAX_TIERS} tiers, not {}", entries.len());
        reader.error(node.span(), message).hint("let the service set the limit of such a descriptor");
        return tiers;
    }
    for (key, node) in entries {
        let Some(name) = reader.text("a tier's name", key) else { continue };
        if tiers.iter().any(|(tier, _)| **tier == *name) {
            reader.error(key.span(), format!("duplicate tier `{name}`")).hint("remove one of them");
            continue;
        }
        let Some(fields) = reader.map(node, &TIER) else { continue };
        let is_unlimited = reader.flag("unlimited", fields.get("unlimited"));
        let limit = match (is_unlimited, fields.get("requests_per_unit"), shape) {
            (true, None, _) => Some(Limit::Unlimited),
            (true, Some(node), _) => {
                reader.error(node.span(), "`requests_per_unit` cannot be combined with `unlimited`");
                None
            }
            (false, None, _) => {
                reader.error(node.span(), format!("the tier `{name}` needs `requests_per_unit`"));
                None
            }
            (false, Some(requests), shape) => {
                let burst = fields.get("burst");
                let burst = burst.and_then(|node| Some((reader.count("burst", 1, node)?, node.span())));
                let number = reader.count("requests_per_unit", 0, requests);
                let shape = shape.zip(number);
                shape.and_then(|(shape, number)| limit_of(reader, shape, number, burst, requests.span()))
            }
        };
        tiers.extend(limit.map(|limit| (name.into(), limit)));
    }
    tiers
}

/// Returns the limit of `number` units per window.
fn limit_of(
    reader: &mut Reader<'_>,
    shape: &Shape,
    number: u64,
    burst: Option<(u64, SourceSpan)>,
    span: SourceSpan,
) -> Option<Limit> {
    if number == 0 {
        return Some(Limit::DenyAll(shape.window));
    }
    let quota = quota(shape, number, burst.map_or(number, |(burst, _)| burst));
    let message = match quota {
        Ok(quota) if shape.cost <= quota.limit() => return Some(Limit::Quota(quota)),
        Ok(quota) => format!("a cost of {} can never pass a limit of {}", shape.cost, quota.limit()),
        Err(error) => format!("{} of {number} in {:?}: {error}", shape.algorithm.name, shape.window),
    };
    reader.error(span, message);
    None
}

fn quota(shape: &Shape, number: u64, burst: u64) -> Result<Quota, Error> {
    let quota = match shape.algorithm.parameters {
        Parameters::Rate => Quota::with_rate(shape.algorithm, burst, Rate::try_new(number, shape.window)?),
        Parameters::Window => Quota::with_window(shape.algorithm, number, shape.window),
    }?;
    // Windows begin by the clock if the algorithm has a choice.
    Ok(quota.try_aligned_to_clock().unwrap_or(quota))
}

fn lease(reader: &mut Reader<'_>, node: &YamlNode, limit: Option<Limit>) -> Option<Lease> {
    let fields = reader.map(node, &LEASE)?;
    let units = fields.get("max_units").map(|node| reader.count("max_units", 1, node));
    let hold = fields.get("hold").map(|node| reader.duration("hold", node));
    if let Some(Limit::Quota(quota)) = limit
        && let Err(error) = Lease::check_quota(&quota)
    {
        reader.error(node.span(), error.to_string());
    }
    let lease = units.map_or(Some(Lease::new()), |units| Some(Lease::new().max_units(units?)))?;
    hold.map_or(Some(lease), |hold| Some(lease.hold(hold?)))
}
