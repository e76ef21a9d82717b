//! Reads the values of fields, and describes those that are wrong.

use http::StatusCode;
use tidegate::Rate;
use tidegate::admin::visible;
use tidegate::algorithm::{ALGORITHMS, Definition};

use crate::admin::problem::Problem;

/// The maximum number of characters of a value that an error repeats.
const MAX_SHOWN_CHARS: usize = 100;

pub(super) fn definition(name: &str) -> Result<&'static Definition, Problem> {
    let found = ALGORITHMS.into_iter().find(|algorithm| algorithm.name == name);
    found.ok_or_else(|| invalid("algorithm", name, "an algorithm", &how_to_write_algorithm()))
}

pub(super) fn how_to_write_algorithm() -> String {
    let names: Vec<&str> = ALGORITHMS.into_iter().map(|algorithm| algorithm.name).collect();
    format!("write one of {}", names.join(", "))
}

/// Parses a rate such as `5/s`, `100/m` or `1/1500ms`.
pub(super) fn rate(text: &str) -> Result<Rate, Problem> {
    let not_a_rate = || invalid("rate", text, "a rate", "write 5/s, 100/m, 1000/h or 1/1500ms");
    let (units, period) = text.split_once('/').ok_or_else(not_a_rate)?;
    let period = period.trim();
    let one = if period.starts_with(|first: char| first.is_ascii_digit()) { "" } else { "1" };
    let period = humantime::parse_duration(&format!("{one}{period}")).map_err(|_| not_a_rate())?;
    let units = units.trim().parse().map_err(|_| not_a_rate())?;
    Rate::try_new(units, period).map_err(|error| wrong(&error.to_string()))
}

pub(super) fn missing(field: &str, how: &str) -> Problem {
    wrong(&format!("`{field}` is missing: {how}"))
}

/// The value is not of this kind; `how` says what to write instead.
pub(super) fn invalid(field: &str, value: &str, kind: &str, how: &str) -> Problem {
    wrong(&format!("`{field}`: \"{}\" is not {kind}: {how}", shown(value)))
}

/// Returns a value for an error: cut, and invisible characters escaped.
pub(super) fn shown(value: &str) -> String {
    let (value, end) = match value.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((at, _)) => (&value[..at], "…"),
        None => (value, ""),
    };
    visible(value).into_owned() + end
}

pub(super) fn wrong(text: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, text)
}
