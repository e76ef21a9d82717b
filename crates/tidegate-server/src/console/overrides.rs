//! The overrides and switches of the whole fleet.

use askama::Template;
use tidegate::Override;

use super::filters;
use super::frame::{Frame, Tab};
use super::words;

/// The maximum overrides of a page.
const PER_PAGE: usize = 200;

/// The page.
#[derive(Template)]
#[template(path = "overrides.html")]
pub(super) struct Overrides {
    pub(super) frame: Frame,
    pub(super) rows: Vec<Row>,
    pub(super) all: usize,
    pub(super) page: usize,
    pub(super) pages: usize,
    /// Only those of this gate; empty for all.
    pub(super) gate: String,
    /// Why there are none to show.
    pub(super) error: Option<String>,
}

/// An override.
pub(super) struct Row {
    pub(super) gate: String,
    /// The key as written in Redis; `None` for a switch.
    pub(super) key: Option<String>,
    pub(super) effect: String,
    pub(super) class: &'static str,
    pub(super) ends: String,
}

impl Overrides {
    /// Lists overrides, switches first.
    pub(super) fn new(frame: Frame, overrides: Result<&[Override], String>, gate: &str, page: usize) -> Self {
        let (overrides, error) = match overrides {
            Ok(overrides) => (overrides, None),
            Err(error) => (&[][..], Some(error)),
        };
        let mut rows: Vec<Row> = overrides.iter().filter_map(Row::new).collect();
        rows.retain(|row| gate.is_empty() || row.gate == gate);
        rows.sort_by_key(|row| row.key.is_some());
        let (all, pages) = (rows.len(), rows.len().div_ceil(PER_PAGE).max(1));
        let page = page.min(pages - 1);
        Self {
            frame: Frame { title: "Overrides".to_owned(), tab: Some(Tab::Overrides), ..frame },
            rows: rows.into_iter().skip(page * PER_PAGE).take(PER_PAGE).collect(),
            all,
            page,
            pages,
            gate: gate.to_owned(),
            error,
        }
    }
}

impl Row {
    /// Returns `None` for a kind of override that this version does not know.
    pub(super) fn new(entry: &Override) -> Option<Self> {
        let (gate, effect) = words::override_effect(entry)?;
        let (key, class, ends_in) = match entry {
            Override::Switch { switch, ends_in, .. } => (None, words::switch_class(switch), ends_in),
            Override::Quota { key, ends_in, .. } => (Some(key.clone()), "info", ends_in),
            _ => return None,
        };
        Some(Self { gate: gate.to_owned(), key, effect, class, ends: words::ends(*ends_in) })
    }
}
