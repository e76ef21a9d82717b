//! Compiles a `rate_limit` into quotas.

use std::sync::Arc;

use super::config_error::SourceSpan;
use super::fields::{BAN, CANDIDATE, LEASE, ON_FAILURES, RATE_LIMIT, REPLACES, TIER};
use super::limit_shape::{Shape, number_field};
use super::reader::{Fields, Reader};
use super::rule::{LimitSettings, limit_text};
use super::yaml::{Value, YamlNode};
use crate::limit::Limit;
use crate::regions;
use tidegate::{Ban, Lease, OnFailure, Quota};

/// The fields that cannot be combined with `unlimited`.
const LIMITED_FIELDS: [&str; 15] = [
    "unit",
    "unit_multiplier",
    "requests_per_unit",
    "every",
    "zone",
    "anchor",
    "algorithm",
    "burst",
    "in_flight",
    "cost",
    "lease",
    "ban",
    "regions",
    "tiers",
    "candidate",
];

/// The fields of a `rate_limit` that exclude a ban, each with the reason.
const EXCLUDE_BAN: [(&str, &str); 3] = [
    ("in_flight", "a ban counts denials of a rate, and an in-flight limit has none"),
    ("lease", "denials caused by units that other processes lease would count"),
    ("regions", "denials are counted in one region"),
];

/// The fields that hold the number of a limit.
const NUMBER_FIELDS: [&str; 2] = ["requests_per_unit", "in_flight"];

/// The maximum number of tiers of one rule: a request compares its tier with each.
const MAX_TIERS: usize = 1_000;

/// The settings, and the position of each name in `replaces`.
pub(super) type ParsedLimit = (LimitSettings, Vec<SourceSpan>);

/// Reads a `rate_limit`. Returns `None` if it has an error; the error is added to the reader's.
pub(super) fn read(reader: &mut Reader<'_>, node: &YamlNode) -> Option<ParsedLimit> {
    if let Value::Text(text) = node.value() {
        return of_text(reader, node, text);
    }
    let errors_before = reader.errors.total();
    let fields = reader.map(node, &RATE_LIMIT)?;
    let name = fields.get("name").and_then(|name| reader.text("name", name));
    let name = name.filter(|name| !name.is_empty()).map(Into::into);
    let (replaces, spans) = replaces(reader, &fields, name.as_deref());
    let on_failure = fields
        .get("on_failure")
        .and_then(|node| reader.choice("on_failure", ON_FAILURES, node))
        .map(|at| [OnFailure::Local, OnFailure::Error, OnFailure::Open, OnFailure::Closed][at]);
    let is_unlimited = reader.flag("unlimited", fields.get("unlimited"));
    let (limit, tiers, cost, lease, ban, candidate, is_replicated) = match is_unlimited {
        true => {
            reject_beside_unlimited(reader, &fields);
            (Some(Limit::Unlimited), Vec::new(), 1, None, None, None, false)
        }
        false => {
            let shape = Shape::read(reader, node, &fields);
            let limit = limit(reader, node, &fields, shape.as_ref());
            let tiers = tiers(reader, shape.as_ref(), number_field(&fields), fields.get("tiers"));
            let lease = fields.get("lease").and_then(|node| lease(reader, node, limit));
            let ban = ban(reader, &fields, limit);
            let candidate = fields
                .get("candidate")
                .and_then(|node| candidate(reader, node, shape.as_ref()?, (number_field(&fields), limit?)));
            let of_tiers = tiers.iter().map(|(_, limit)| *limit);
            let is_replicated = regions::read(reader, &fields, limit.into_iter().chain(of_tiers));
            (limit, tiers, shape.map_or(1, |shape| shape.cost), lease, ban, candidate, is_replicated)
        }
    };
    let (replaces, tiers, lease) = (replaces.into(), tiers.into(), lease.map(Box::new));
    let ban = ban.map(Box::new);
    let is_in_flight = number_field(&fields) == "in_flight";
    let settings = LimitSettings {
        name,
        replaces,
        limit: limit?,
        text: limit_text(limit.and_then(Limit::quota)),
        tiers,
        is_in_flight,
        cost,
        on_failure,
        lease,
        ban,
        candidate,
        is_replicated,
    };
    (reader.errors.total() == errors_before).then_some((settings, spans))
}

/// Reads a limit that is a text, such as `100/day`.
fn of_text(reader: &mut Reader<'_>, node: &YamlNode, text: &str) -> Option<ParsedLimit> {
    match text.parse::<Quota>() {
        Ok(quota) => {
            let is_in_flight = quota.is_in_flight();
            let settings = LimitSettings {
                limit: Limit::Quota(quota),
                text: limit_text(Some(quota)),
                is_in_flight,
                cost: 1,
                name: None,
                replaces: [].into(),
                tiers: [].into(),
                on_failure: None,
                lease: None,
                ban: None,
                candidate: None,
                is_replicated: false,
            };
            Some((settings, Vec::new()))
        }
        Err(error) => {
            let error = reader.error(node.span(), error.to_string());
            if text.split(['/', ' ']).next() == Some("0") {
                error.hint("0 requests: `requests_per_unit: 0`");
            }
            None
        }
    }
}

/// Reports the fields that cannot be combined with `unlimited`. Those that Envoy's service ignores are no errors.
fn reject_beside_unlimited(reader: &mut Reader<'_>, fields: &Fields<'_>) {
    for name in LIMITED_FIELDS {
        let Some(node) = fields.get(name) else { continue };
        match (name, node.value()) {
            ("unit", Value::Text("")) => {}
            ("requests_per_unit", _) => {
                if reader.count(name, 0, node).is_some_and(|number| number > 0) {
                    let message = "`requests_per_unit` has no effect beside `unlimited`";
                    reader.warning(node.span(), message, "remove one of them");
                }
            }
            _ => {
                let message = format!("`{name}` cannot be combined with `unlimited`");
                reader.error(node.span(), message).hint("remove one of them");
            }
        }
    }
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

fn limit(
    reader: &mut Reader<'_>,
    node: &YamlNode,
    fields: &Fields<'_>,
    shape: Option<&Shape>,
) -> Option<Limit> {
    let name = number_field(fields);
    let Some(number) = fields.get(name) else {
        let hint = "0 denies all requests; `unlimited: true` admits all of them";
        let message = "a rate_limit needs `requests_per_unit`";
        let is_accepted = reader.mistake(node.span(), message, "it denies every request", hint);
        return shape.filter(|_| is_accepted)?.limit(reader, 0, None, node.span());
    };
    let (span, number) = (number.span(), reader.count(name, 0, number)?);
    let shape = shape?;
    shape.limit(reader, number, shape.burst, span)
}

/// Reads the tiers, whose numbers are in the field `number_field`.
fn tiers(
    reader: &mut Reader<'_>,
    shape: Option<&Shape>,
    number_field: &str,
    node: Option<&YamlNode>,
) -> Vec<(Box<str>, Limit)> {
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
        let other =
            NUMBER_FIELDS.into_iter().find(|name| *name != number_field && fields.get(name).is_some());
        if let Some(node) = other.and_then(|name| fields.get(name)) {
            let message = format!("a tier of this rule has `{number_field}`, as its rate_limit");
            reader.error(node.span(), message).hint("use the same fields in both");
            continue;
        }
        let number = [number_field, "burst"].into_iter().find(|name| fields.get(name).is_some());
        let limit = match (is_unlimited, fields.get(number_field)) {
            (true, _) => match number.and_then(|name| Some((name, fields.get(name)?))) {
                None => Some(Limit::Unlimited),
                Some((name, node)) => {
                    reader.error(node.span(), format!("`{name}` cannot be combined with `unlimited`"));
                    None
                }
            },
            (false, None) => {
                reader.error(node.span(), format!("the tier `{name}` needs `{number_field}`"));
                None
            }
            (false, Some(node)) => {
                let number = reader.count(number_field, 0, node);
                shape.zip(number).and_then(|(shape, number)| {
                    let burst = shape.burst(reader, &fields);
                    shape.limit(reader, number, burst, node.span())
                })
            }
        };
        tiers.extend(limit.map(|limit| (name.into(), limit)));
    }
    tiers
}

/// Reads the stricter limit to try beside `limit`, whose number is in the field `number_field`.
fn candidate(
    reader: &mut Reader<'_>,
    node: &YamlNode,
    shape: &Shape,
    (number_field, limit): (&str, Limit),
) -> Option<Quota> {
    let fields = reader.map(node, &CANDIDATE)?;
    let other = NUMBER_FIELDS.into_iter().find(|name| *name != number_field && fields.get(name).is_some());
    if let Some(node) = other.and_then(|name| fields.get(name)) {
        let message = format!("the candidate of this rule has `{number_field}`, as its rate_limit");
        reader.error(node.span(), message).hint("use the same fields in both");
        return None;
    }
    let Some(number_node) = fields.get(number_field) else {
        if !fields.has_unknown {
            reader.error(node.span(), format!("a candidate needs `{number_field}`"));
        }
        return None;
    };
    let number = reader.count(number_field, 1, number_node)?;
    let burst = shape.burst(reader, &fields);
    let Limit::Quota(candidate) = shape.limit(reader, number, burst, number_node.span())? else {
        return None;
    };
    if !is_stricter(&candidate, limit) {
        let message = format!("this candidate is no stricter than the limit: {candidate}");
        reader.error(number_node.span(), message).hint("lower its number, or raise the limit beside it");
        return None;
    }
    Some(candidate)
}

/// Returns whether a candidate of the same algorithm and window admits less than the limit.
fn is_stricter(candidate: &Quota, limit: Limit) -> bool {
    let Limit::Quota(limit) = limit else { return false };
    // The time to fill or to drain, or the window: with a shorter one, the same number of units is a higher rate.
    let rate = |quota: &Quota| (u128::from(quota.limit()), quota.window().as_micros());
    let ((units, window), (limit_units, limit_window)) = (rate(candidate), rate(&limit));
    let is_slower_or_equal = units * limit_window <= limit_units * window;
    units <= limit_units && is_slower_or_equal && *candidate != limit
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

/// Reads the ban, if there is one. Returns `None` after an error, which is added to the reader's.
fn ban(reader: &mut Reader<'_>, rate_limit: &Fields<'_>, limit: Option<Limit>) -> Option<Ban> {
    let node = rate_limit.get("ban")?;
    let excluded = EXCLUDE_BAN.into_iter().find(|(field, _)| rate_limit.get(field).is_some());
    if let Some((field, reason)) = excluded {
        let message = format!("`ban` cannot be combined with `{field}`: {reason}");
        reader.error(node.span(), message).hint("remove one of them");
        return None;
    }
    if matches!(limit, Some(Limit::DenyAll(_))) {
        let message =
            "`ban` needs a limit above 0: a limit of 0 denies without a check, so no denial is counted";
        reader.error(node.span(), message).hint("remove one of them");
        return None;
    }
    let fields = reader.map(node, &BAN)?;
    for field in BAN.required {
        if fields.get(field).is_none() && !fields.has_unknown {
            let example = "ban: { after: 20, within: 10m, for: 1h }";
            reader.error(node.span(), format!("a ban needs `{field}`")).hint(format!("write `{example}`"));
            return None;
        }
    }
    let after = fields.get("after").and_then(|node| reader.count("after", 1, node));
    let within = fields.get("within").and_then(|node| reader.duration("within", node));
    let lasts = fields.get("for").and_then(|node| reader.duration("for", node));
    let ban = Ban::after(after?, within?).lasting(lasts?);
    if let Err(error) = ban.validate() {
        // The field of the file has another name than the setting.
        reader.error(node.span(), error.to_string().replace("`lasting`", "`for`"));
        return None;
    }
    Some(ban)
}
