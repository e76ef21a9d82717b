//! The form of a limit, which a rule's limit and those of its tiers share: a rate, or a number in flight.

use std::time::Duration;

use tidegate::algorithm::{Definition, Parameters};
use tidegate::{Decision, Error, Quota, Rate};

use super::calendar::{self, Calendar};
use super::config_error::SourceSpan;
use super::fields::{ALGORITHMS, UNIT_SECONDS, UNITS};
use super::reader::{Fields, Reader};
use super::yaml::{Value, YamlNode};
use crate::limit::Limit;

/// The fields that cannot be combined with `in_flight`. Neither can `lease`, which is checked for each quota.
const RATE_FIELDS: [&str; 8] =
    ["unit", "unit_multiplier", "requests_per_unit", "every", "zone", "anchor", "algorithm", "burst"];

/// The settings that a rule's limit and its tiers share.
pub(super) struct Shape {
    form: Form,
    /// Of the limit itself; a tier has its own.
    pub(super) burst: Option<u64>,
    pub(super) cost: u64,
}

#[derive(Clone, Copy)]
enum Form {
    Rate {
        window: Duration,
        algorithm: &'static Definition,
    },
    /// A fixed window.
    Calendar(Calendar),
    InFlight,
}

/// Returns the field that holds the number of a limit.
pub(super) fn number_field(fields: &Fields<'_>) -> &'static str {
    if fields.get("in_flight").is_some() { "in_flight" } else { "requests_per_unit" }
}

impl Shape {
    /// Reads the shape of a `rate_limit`. Returns `None` if it has an error.
    pub(super) fn read(reader: &mut Reader<'_>, node: &YamlNode, fields: &Fields<'_>) -> Option<Self> {
        let (form, burst) = match number_field(fields) {
            "in_flight" => (Some(in_flight(reader, fields)), None),
            _ => rate(reader, node, fields),
        };
        let cost = fields.get("cost").and_then(|node| reader.count("cost", 1, node)).unwrap_or(1);
        Some(Self { form: form?, burst, cost })
    }

    /// Reads the burst of a tier or a candidate of this shape.
    pub(super) fn burst(&self, reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<u64> {
        let node = fields.get("burst")?;
        match self.form {
            Form::Rate { algorithm: Definition { parameters: Parameters::Rate, .. }, .. } => {
                return reader.count("burst", 1, node);
            }
            Form::Rate { algorithm, .. } => no_burst(reader, algorithm.name, node.span()),
            Form::Calendar(_) => no_burst(reader, "fixed_window", node.span()),
            Form::InFlight => {
                reader.error(node.span(), "a limit in flight has no `burst`").hint("remove it");
            }
        }
        None
    }

    /// Returns the limit of `number` units. The burst is by default `number`.
    pub(super) fn limit(
        &self,
        reader: &mut Reader<'_>,
        number: u64,
        burst: Option<u64>,
        span: SourceSpan,
    ) -> Option<Limit> {
        if number == 0 {
            return Some(Limit::DenyAll(match self.form {
                Form::Rate { window, .. } => window,
                Form::Calendar(calendar) => {
                    in_calendar(1, calendar).map_or(Decision::FIXED_RETRY, |it| it.window())
                }
                Form::InFlight => Decision::FIXED_RETRY,
            }));
        }
        let quota = self.quota(number, burst);
        let message = match quota {
            Ok(quota) if self.cost <= quota.limit() => return Some(Limit::Quota(quota)),
            Ok(quota) => format!("a cost of {} can never pass a limit of {}", self.cost, quota.limit()),
            Err(error) => match self.form {
                Form::Rate { window, algorithm } => {
                    format!("{} of {number} in {window:?}: {error}", algorithm.name)
                }
                Form::Calendar(_) => format!("fixed_window of {number}: {error}"),
                Form::InFlight => format!("in_flight of {number}: {error}"),
            },
        };
        reader.error(span, message);
        None
    }

    fn quota(&self, number: u64, burst: Option<u64>) -> Result<Quota, Error> {
        let quota = match self.form {
            Form::InFlight => return Quota::try_in_flight(number),
            Form::Calendar(calendar) => return in_calendar(number, calendar),
            Form::Rate { window, algorithm } => match algorithm.parameters {
                Parameters::Rate => {
                    let rate = Rate::try_new(number, window)?;
                    Quota::with_rate(algorithm, burst.unwrap_or(number), rate)
                }
                Parameters::Window => Quota::with_window(algorithm, number, window),
                Parameters::Count => Err(Error::config("an in-flight limit has no rate")),
            },
        }?;
        // Windows begin by the clock if the algorithm has a choice.
        Ok(quota.try_aligned_to_clock().unwrap_or(quota))
    }
}

#[cfg(feature = "calendar")]
fn in_calendar(number: u64, calendar: Calendar) -> Result<Quota, Error> {
    Quota::try_calendar_window(number, calendar)
}

#[cfg(not(feature = "calendar"))]
fn in_calendar(_: u64, calendar: Calendar) -> Result<Quota, Error> {
    match calendar {}
}

fn in_flight(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Form {
    for name in RATE_FIELDS {
        if let Some(node) = fields.get(name) {
            let message = format!("`{name}` cannot be combined with `in_flight`, which limits no rate");
            reader.error(node.span(), message).hint("remove one of them");
        }
    }
    Form::InFlight
}

/// The length of a window.
enum Length {
    Fixed(Duration),
    Calendar(Calendar),
}

/// Returns the window with the algorithm, and the burst.
fn rate(reader: &mut Reader<'_>, node: &YamlNode, fields: &Fields<'_>) -> (Option<Form>, Option<u64>) {
    let window = window(reader, node, fields);
    let algorithm = match fields.get("algorithm") {
        None => Some(0),
        Some(node) if matches!(node.value(), Value::Text("in_flight")) => {
            let hint = "write `in_flight: 10` instead of `algorithm`, `unit` and `requests_per_unit`";
            reader.error(node.span(), "`in_flight` is no algorithm of a rate").hint(hint);
            None
        }
        Some(node) => reader.choice("algorithm", ALGORITHMS, node),
    };
    let burst = fields.get("burst").and_then(|node| Some((reader.count("burst", 1, node)?, node.span())));
    let algorithm = algorithm.and_then(|at| Definition::of_name(ALGORITHMS[at]));
    if let (Some((_, span)), Some(Definition { parameters: Parameters::Window, name, .. })) =
        (burst, algorithm)
    {
        no_burst(reader, name, span);
    }
    let form = match (window, algorithm) {
        (Some(Length::Fixed(window)), Some(algorithm)) => Some(Form::Rate { window, algorithm }),
        (Some(Length::Calendar(calendar)), Some(Definition { name: "fixed_window", .. })) => {
            Some(Form::Calendar(calendar))
        }
        (Some(Length::Calendar(_)), Some(Definition { name, .. })) => {
            let span = fields.get("algorithm").map_or(node.span(), YamlNode::span);
            let message = format!("a {name} has no window of a calendar: only a fixed_window has one");
            reader.error(span, message).hint("remove `algorithm`, or write a duration such as 30d");
            None
        }
        _ => None,
    };
    (form, burst.map(|(burst, _)| burst))
}

fn no_burst(reader: &mut Reader<'_>, algorithm: &str, span: SourceSpan) {
    let message = format!("a {algorithm} has no `burst`: the whole limit can be used at once");
    reader.error(span, message).hint("remove it, or add `algorithm: token_bucket`");
}

fn window(reader: &mut Reader<'_>, node: &YamlNode, fields: &Fields<'_>) -> Option<Length> {
    let multiplier = fields.get("unit_multiplier");
    let units = multiplier.map_or(Some(1), |node| reader.count("unit_multiplier", 1, node));
    let period = fields.get("every").and_then(calendar::period);
    if period.is_none() {
        calendar::reject_without_period(reader, fields);
    }
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
            if let Some(period) = period {
                return calendar::read(reader, fields, period, every).map(Length::Calendar);
            }
            let others = ", or day, week, month, quarter, year";
            let window = reader.duration_or("every", others, every)?;
            check_length(reader, window, every)
        }
        (Some(unit), None) => {
            let seconds = UNIT_SECONDS[reader.choice("unit", UNITS, unit)?];
            let window = Duration::from_secs(seconds.saturating_mul(units?));
            check_length(reader, window, multiplier.unwrap_or(unit))
        }
    }
}

fn check_length(reader: &mut Reader<'_>, window: Duration, node: &YamlNode) -> Option<Length> {
    if window <= Quota::MAX_WINDOW {
        return Some(Length::Fixed(window));
    }
    reader.error(node.span(), "a window is at most 10 years long");
    None
}
