//! The results of a run, and the three forms of the report: table, JSON, chart.

mod json;
mod svg;
mod table;

pub(crate) use self::json::json;
pub(crate) use self::svg::svg;
pub(crate) use self::table::{keys, table};

use serde_json::Value;

use crate::ratios::Ratio;
use crate::rounds::Row;
use crate::script_alone::Scripts;

#[derive(Debug)]
pub(crate) struct Report {
    /// The machine, the servers and the crates of the run.
    pub(crate) machine: Vec<(&'static str, Value)>,
    pub(crate) rows: Vec<Row>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) scripts: Option<Scripts>,
    pub(crate) bytes_per_key: Vec<(&'static str, u64)>,
}

/// Formats like `1,234,568`.
pub(crate) fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Rounds to the significant digits.
pub(crate) fn rounded(number: f64) -> f64 {
    if number.abs() >= 1000.0 { number.round() } else { (number * 1000.0).round() / 1000.0 }
}

/// Formats microseconds briefly.
pub(crate) fn short(us: f64) -> String {
    match us {
        us if us >= 100.0 => thousands(us),
        us if us >= 1.0 => format!("{us:.1}"),
        us => format!("{us:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!(thousands(1_234_567.8), "1,234,568");
        assert_eq!(thousands(123.0), "123");
        assert_eq!(thousands(1_000.0), "1,000");
    }
}
