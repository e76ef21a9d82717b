//! The filters of the templates.

#![expect(unreachable_pub, reason = "askama generates a public type for each filter")]

use std::fmt;

use askama::{Result, Values};
use tidegate::admin;

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
