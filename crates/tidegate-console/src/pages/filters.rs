//! The filters of the templates.

#![expect(unreachable_pub, reason = "askama generates a public type for each filter")]

use std::fmt;

use askama::{Result, Values};
use tidegate::admin;

use super::catalog::Catalog;

/// Escapes characters that are invisible or change the text direction. askama escapes HTML afterwards.
#[askama::filter_fn]
pub(super) fn visible<T: fmt::Display>(text: T, _: &dyn Values) -> Result<String> {
    Ok(admin::visible(&text.to_string()).into_owned())
}

/// Formats a count with commas between groups of three digits: `12,345`.
#[askama::filter_fn]
pub(super) fn count<T: fmt::Display>(number: T, _: &dyn Values) -> Result<String> {
    Ok(super::display::grouped(&number.to_string()))
}

/// As [`visible`], and keeps line feeds.
#[askama::filter_fn]
pub(super) fn visible_lines<T: fmt::Display>(text: T, _: &dyn Values) -> Result<String> {
    let text = text.to_string();
    Ok(text.lines().map(admin::visible).collect::<Vec<_>>().join("\n"))
}

/// Returns the name that is shown for a gate, as [`visible`]. The templates are rendered with the catalog.
#[askama::filter_fn]
pub(super) fn readable<T: fmt::Display>(gate: T, values: &dyn Values) -> Result<String> {
    let gate = gate.to_string();
    let shown = askama::get_value::<Catalog>(values, "catalog")?.shown(&gate);
    Ok(admin::visible(shown).into_owned())
}
