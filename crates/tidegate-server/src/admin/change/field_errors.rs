//! The errors of fields: what is wrong with a value, and what to write instead.

use http::StatusCode;
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
