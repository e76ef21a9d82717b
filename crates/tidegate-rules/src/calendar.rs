//! Windows of a calendar: `every: month`, with `zone` and `anchor`.

#[cfg(feature = "calendar")]
pub(super) use tidegate::quota::Calendar;

use super::reader::{Fields, Reader};
use super::yaml::{Value, YamlNode};

/// The periods that `every` can name instead of a duration.
const PERIODS: [&str; 5] = ["day", "week", "month", "quarter", "year"];

/// Without the feature `calendar`, there is no calendar.
#[cfg(not(feature = "calendar"))]
#[derive(Clone, Copy)]
pub(super) enum Calendar {}

/// Returns the period that a value of `every` names, in lower case.
pub(super) fn period(every: &YamlNode) -> Option<&'static str> {
    let Value::Text(word) = every.value() else { return None };
    PERIODS.into_iter().find(|period| period.eq_ignore_ascii_case(word))
}

/// Reports `zone` and `anchor` of a window that is not one of a calendar.
pub(super) fn reject_without_period(reader: &mut Reader<'_>, fields: &Fields<'_>) {
    for name in ["zone", "anchor"] {
        if let Some(node) = fields.get(name) {
            let hint = "write `every: month` (or day, week, quarter, year) instead of a duration or a unit";
            reader.error(node.span(), format!("`{name}` needs a window of a calendar")).hint(hint);
        }
    }
}

/// Reads the calendar with this period.
#[cfg(feature = "calendar")]
pub(super) fn read(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    period: &str,
    _every: &YamlNode,
) -> Option<Calendar> {
    let mut text = period.to_owned();
    let mut add = |reader: &mut Reader<'_>, name, separator| {
        let Some(node) = fields.get(name) else { return text.parse().ok() };
        text = format!("{text}{separator}{}", reader.text(name, node)?);
        match text.parse::<Calendar>() {
            Ok(calendar) => Some(calendar),
            Err(error) => {
                reader.error(node.span(), error.to_string());
                None
            }
        }
    };
    // In the order in which the text of a calendar has them, so that each error is at its field.
    add(reader, "anchor", '+')?;
    add(reader, "zone", '@')
}

#[cfg(not(feature = "calendar"))]
pub(super) fn read(
    reader: &mut Reader<'_>,
    _fields: &Fields<'_>,
    period: &str,
    every: &YamlNode,
) -> Option<Calendar> {
    let message = format!("`every: {period}` needs the feature `calendar` of the crate tidegate-rules");
    reader.error(every.span(), message).hint("enable the feature, or write a duration such as 30d");
    None
}
