//! From a `rate_limit` to quotas.

use std::time::Duration;

use super::fields::{ALGORITHMS, LEASE, ON_FAILURES, RATE_LIMIT, REPLACES, TIER, UNIT_SECONDS, UNITS};
use super::mistake::Place;
use super::reader::{Fields, Reader};
use super::rule::{Limit, Settings};
use super::yaml::{Node, Value};
use crate::error::Error;
use crate::lease::{Lease, check_leasable};
use crate::limiter::OnFailure;
use crate::quota::{LONGEST_US, Quota, Rate};

/// What an unlimited rule has no use for.
const OF_LIMITS: [&str; 9] =
    ["unit", "unit_multiplier", "requests_per_unit", "every", "algorithm", "burst", "cost", "lease", "tiers"];

const LONGEST: Duration = Duration::from_micros(LONGEST_US);

/// A window, by which algorithm, and what one request costs.
struct Shape {
    window: Duration,
    algorithm: &'static str,
    burst: Option<(u64, Place)>,
    cost: u64,
}

/// The settings, and where each name that they replace stands.
pub(super) type Read = (Settings, Vec<Place>);

/// `None` where something is wrong that is noted.
pub(super) fn read(reader: &mut Reader<'_>, node: &Node) -> Option<Read> {
    let noted = reader.mistakes.len();
    let fields = reader.map(node, &RATE_LIMIT)?;
    let name = fields.get("name").and_then(|name| reader.text("name", name)).map(Into::into);
    let (replaces, places) = replaces(reader, &fields, name.as_deref());
    let on_failure = fields
        .get("on_failure")
        .and_then(|node| reader.choice("on_failure", ON_FAILURES, node))
        .map(|at| [OnFailure::Local, OnFailure::Error, OnFailure::Open, OnFailure::Closed][at]);
    let is_unlimited = reader.flag("unlimited", fields.get("unlimited"));
    let (limit, tiers, cost, lease) = match is_unlimited {
        true => {
            for name in OF_LIMITS {
                if let Some(node) = fields.get(name) {
                    let message = format!("an unlimited rule has no `{name}`");
                    reader.mistake(node.place, message).hint("leave it out, or `unlimited`");
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
    let settings = Settings { name, replaces, limit: limit?, tiers, cost, on_failure, lease };
    (reader.mistakes.len() == noted).then_some((settings, places))
}

fn replaces(reader: &mut Reader<'_>, fields: &Fields<'_>, own: Option<&str>) -> (Vec<String>, Vec<Place>) {
    let (mut names, mut places) = (Vec::new(), Vec::new());
    for node in reader.list("replaces", fields.get("replaces")) {
        let Some(entry) = reader.map(node, &REPLACES) else { continue };
        let Some(node) = entry.get("name") else {
            reader.mistake(node.place, "what is replaced has no `name`");
            continue;
        };
        match reader.text("name", node) {
            None => {}
            Some("") => drop(reader.mistake(node.place, "what is replaced has an empty `name`")),
            Some(name) if Some(name) == own => {
                reader.mistake(node.place, format!("`{name}` replaces itself"));
            }
            Some(name) => {
                names.push(name.to_owned());
                places.push(node.place);
            }
        }
    }
    (names, places)
}

fn shape(reader: &mut Reader<'_>, node: &Node, fields: &Fields<'_>) -> Option<Shape> {
    let window = window(reader, node, fields);
    let algorithm = match fields.get("algorithm") {
        None => Some(0),
        Some(node) => reader.choice("algorithm", ALGORITHMS, node),
    };
    let burst = fields.get("burst").and_then(|node| Some((reader.count("burst", 1, node)?, node.place)));
    let algorithm = ALGORITHMS[algorithm?];
    if let (Some((_, place)), false) = (burst, algorithm.ends_with("_bucket")) {
        let message = format!("a {algorithm} has no `burst`: all of it can be had at once");
        reader.mistake(place, message).hint("leave it out, or add `algorithm: token_bucket`");
    }
    let cost = fields.get("cost").and_then(|node| reader.count("cost", 1, node)).unwrap_or(1);
    Some(Shape { window: window?, algorithm, burst, cost })
}

fn window(reader: &mut Reader<'_>, node: &Node, fields: &Fields<'_>) -> Option<Duration> {
    let multiplier = fields.get("unit_multiplier");
    let times = multiplier.map_or(Some(1), |node| reader.count("unit_multiplier", 1, node));
    match (fields.get("unit"), fields.get("every")) {
        (Some(_), Some(every)) => {
            reader.mistake(every.place, "`every` stands beside `unit`").hint("leave one of them");
            None
        }
        (None, None) => {
            let message = "a rate_limit needs a `unit` (or `every`)";
            reader.mistake(node.place, message).hint(format!("a unit is one of {}", UNITS.join(", ")));
            None
        }
        (None, Some(every)) => {
            if let Some(node) = multiplier {
                reader.mistake(node.place, "`unit_multiplier` stands beside `every`").hint("leave it out");
            }
            let window = reader.duration("every", every)?;
            not_too_long(reader, window, every)
        }
        (Some(unit), None) => {
            let seconds = UNIT_SECONDS[reader.choice("unit", UNITS, unit)?];
            let window = Duration::from_secs(seconds.saturating_mul(times?));
            not_too_long(reader, window, multiplier.unwrap_or(unit))
        }
    }
}

fn not_too_long(reader: &mut Reader<'_>, window: Duration, node: &Node) -> Option<Duration> {
    if window <= LONGEST {
        return Some(window);
    }
    reader.mistake(node.place, "a window is at most 10 years long");
    None
}

fn limit(reader: &mut Reader<'_>, node: &Node, fields: &Fields<'_>, shape: Option<&Shape>) -> Option<Limit> {
    let Some(requests) = fields.get("requests_per_unit") else {
        let hint = "0 denies all; `unlimited: true` instead lets all pass";
        reader.mistake(node.place, "a rate_limit needs `requests_per_unit`").hint(hint);
        return None;
    };
    let number = reader.count("requests_per_unit", 0, requests)?;
    let shape = shape?;
    of(reader, shape, number, shape.burst, requests.place)
}

fn tiers(reader: &mut Reader<'_>, shape: Option<&Shape>, node: Option<&Node>) -> Vec<(String, Limit)> {
    let mut tiers: Vec<(String, Limit)> = Vec::new();
    let Some(node) = node else { return tiers };
    let Value::Map(entries) = &node.value else {
        reader.mistake(node.place, "`tiers` is a map of tiers by their names");
        return tiers;
    };
    for (key, node) in entries {
        let Some(name) = reader.text("a tier's name", key) else { continue };
        if tiers.iter().any(|(tier, _)| tier == name) {
            reader
                .mistake(key.place, format!("the tier `{name}` stands here twice"))
                .hint("leave one of them");
            continue;
        }
        let Some(fields) = reader.map(node, &TIER) else { continue };
        let is_unlimited = reader.flag("unlimited", fields.get("unlimited"));
        let limit = match (is_unlimited, fields.get("requests_per_unit"), shape) {
            (true, None, _) => Some(Limit::Unlimited),
            (true, Some(node), _) => {
                reader.mistake(node.place, "an unlimited tier has no `requests_per_unit`");
                None
            }
            (false, None, _) => {
                reader.mistake(node.place, format!("the tier `{name}` needs `requests_per_unit`"));
                None
            }
            (false, Some(requests), shape) => {
                let burst = fields.get("burst");
                let burst = burst.and_then(|node| Some((reader.count("burst", 1, node)?, node.place)));
                let number = reader.count("requests_per_unit", 0, requests);
                let read = shape.zip(number);
                read.and_then(|(shape, number)| of(reader, shape, number, burst, requests.place))
            }
        };
        tiers.extend(limit.map(|limit| (name.to_owned(), limit)));
    }
    tiers
}

/// So many units in the window.
fn of(
    reader: &mut Reader<'_>,
    shape: &Shape,
    number: u64,
    burst: Option<(u64, Place)>,
    place: Place,
) -> Option<Limit> {
    if number == 0 {
        return Some(Limit::Nothing(shape.window));
    }
    let quota = quota(shape, number, burst.map_or(number, |(burst, _)| burst));
    let refused = match quota {
        Ok(quota) if shape.cost <= quota.limit() => return Some(Limit::Quota(quota)),
        Ok(quota) => format!("a cost of {} can never pass a limit of {}", shape.cost, quota.limit()),
        Err(error) => format!("{} of {number} in {:?}: {error}", shape.algorithm, shape.window),
    };
    reader.mistake(place, refused);
    None
}

fn quota(shape: &Shape, number: u64, burst: u64) -> Result<Quota, Error> {
    let window = shape.window;
    let rate = || Rate::try_new(number, window);
    match shape.algorithm {
        "token_bucket" => Quota::try_token_bucket(burst, rate()?),
        "leaky_bucket" => Quota::try_leaky_bucket(burst, rate()?),
        "sliding_log" => Quota::try_sliding_log(number, window),
        "sliding_counter" => Quota::try_sliding_counter(number, window),
        _ => Quota::try_fixed_window(number, window)?.try_aligned_to_clock_at(Duration::ZERO),
    }
}

fn lease(reader: &mut Reader<'_>, node: &Node, limit: Option<Limit>) -> Option<Lease> {
    let fields = reader.map(node, &LEASE)?;
    let units = fields.get("max_units").map(|node| reader.count("max_units", 1, node));
    let hold = fields.get("hold").map(|node| reader.duration("hold", node));
    if let Some(Limit::Quota(quota)) = limit
        && let Err(error) = check_leasable(&quota)
    {
        reader.mistake(node.place, error.to_string());
    }
    let lease = units.map_or(Some(Lease::new()), |units| Some(Lease::new().max_units(units?)))?;
    hold.map_or(Some(lease), |hold| Some(lease.hold(hold?)))
}
