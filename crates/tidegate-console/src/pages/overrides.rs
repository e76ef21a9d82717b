//! The overrides and switches of the whole fleet.

use askama::Template;
use tidegate::Override;
use tidegate::admin::AuditEntry;

use super::frame::{Frame, Tab};
use super::{display, filters, history, stored_key};

/// The maximum overrides of a page.
const PER_PAGE: usize = 200;

/// The page.
#[derive(Template)]
#[template(path = "overrides.html")]
pub(super) struct Overrides {
    pub(super) frame: Frame,
    pub(super) rows: Vec<OverrideRow>,
    pub(super) all: usize,
    pub(super) page: usize,
    pub(super) pages: usize,
    /// Only those of this gate; empty for all.
    pub(super) gate: String,
    /// Why there are none to show.
    pub(super) error: Option<String>,
    /// The gates of the rules, to choose one.
    pub(super) gates: Vec<String>,
}

/// An override.
pub(super) struct OverrideRow {
    pub(super) gate: String,
    /// The key as written in Redis; `None` for a switch.
    pub(super) key: Option<String>,
    pub(super) effect: String,
    pub(super) class: &'static str,
    pub(super) ends: String,
    /// The operator and the reason in the audit log; `-` if it has none.
    pub(super) by: String,
    pub(super) reason: String,
}

impl Overrides {
    /// Lists overrides, switches first. `log` is the audit log, `gates` are those to choose from.
    pub(super) fn new(
        frame: Frame,
        overrides: Result<&[Override], String>,
        log: &[AuditEntry],
        gates: Vec<String>,
        gate: &str,
        page: usize,
    ) -> Self {
        let (overrides, error) = match overrides {
            Ok(overrides) => (overrides, None),
            Err(error) => (&[][..], Some(error)),
        };
        let is_shown = |entry: &&Override| gate.is_empty() || entry.gate() == gate;
        let mut shown: Vec<&Override> = overrides.iter().filter(is_shown).collect();
        shown.sort_by_key(|entry| !matches!(entry, Override::Switch { .. }));
        let (all, pages) = (shown.len(), shown.len().div_ceil(PER_PAGE).max(1));
        let page = page.min(pages - 1);
        let rows = shown.into_iter().skip(page * PER_PAGE).take(PER_PAGE);
        Self {
            frame: Frame { title: "Overrides".to_owned(), tab: Some(Tab::Overrides), ..frame },
            rows: rows.filter_map(|entry| OverrideRow::new(entry, log)).collect(),
            all,
            page,
            pages,
            gate: gate.to_owned(),
            error,
            gates,
        }
    }
}

impl OverrideRow {
    /// Returns `None` for a kind of override that this version does not know.
    pub(super) fn new(entry: &Override, log: &[AuditEntry]) -> Option<Self> {
        let (gate, effect) = display::override_effect(entry)?;
        let (key, class, ends_in) = match entry {
            Override::Switch { switch, ends_in, .. } => (None, display::switch_class(switch), ends_in),
            Override::Quota { key, ends_in, .. } => (Some(key.clone()), "info", ends_in),
            _ => return None,
        };
        let origin = history::origin_of(log, gate, key.as_deref());
        let [by, reason] = origin.map_or_else(
            || ["-", "-"].map(str::to_owned),
            |record| [record.operator.clone(), record.reason.clone()],
        );
        Some(Self { gate: gate.to_owned(), key, effect, class, ends: display::ends(*ends_in), by, reason })
    }
}
