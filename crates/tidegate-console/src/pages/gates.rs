//! The list of gates: of the rules, and those that only services know.

use std::collections::BTreeSet;

use askama::Template;
use tidegate::{Override, Switch};

use super::catalog::{Catalog, Origin, overridden_keys, switch_of};
use super::frame::{Frame, Tab};
use super::hour::{GateHour, Hour, Totals};
use super::{display, filters};

/// The maximum gates of a page.
const PER_PAGE: usize = 100;

/// The page.
#[derive(Template)]
#[template(path = "gates.html")]
pub(super) struct Gates {
    pub(super) frame: Frame,
    pub(super) search: String,
    pub(super) rows: Vec<GateSummary>,
    /// The number of gates that the search finds.
    pub(super) found: usize,
    /// Counted from 0.
    pub(super) page: usize,
    pub(super) pages: usize,
    /// Why there are no figures.
    pub(super) note: Option<String>,
}

/// A gate.
pub(super) struct GateSummary {
    pub(super) name: String,
    pub(super) quota: String,
    pub(super) origin: Option<Origin>,
    /// `None` if there are no figures of the fleet.
    pub(super) totals: Option<Totals>,
    pub(super) denied_now: String,
    pub(super) is_denying: bool,
    /// What a switch does.
    pub(super) switch: Option<Switch>,
    pub(super) overridden_keys: usize,
}

impl Gates {
    /// Lists the gates whose name, quota or position contains `search`, those that deny most first.
    pub(super) fn new(
        frame: Frame,
        hour: Result<&Hour, &str>,
        overrides: &[Override],
        catalog: &Catalog,
        search: &str,
        page: usize,
    ) -> Self {
        let figures = |name: &str| hour.ok().and_then(|hour| hour.gates.get(name));
        let mut names: BTreeSet<&str> = catalog.names().collect();
        names.extend(hour.iter().flat_map(|hour| hour.gates.keys().map(|name| &**name)));
        names.extend(overrides.iter().map(Override::gate));
        let wanted = search.to_lowercase();
        let is_found = |name: &&str| {
            let facts = catalog.get(name);
            let texts = [
                Some(*name),
                facts.map(|it| &*it.readable),
                facts.map(|it| &*it.path),
                facts.map(|it| &*it.quota),
                facts.map(|it| &*it.origin.text),
            ];
            wanted.is_empty() || texts.into_iter().flatten().any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut found: Vec<&str> = names.into_iter().filter(is_found).collect();
        found.sort_by_key(|name| {
            std::cmp::Reverse(figures(name).map_or((0, 0), |gate| (gate.now.denied, gate.hour.denied)))
        });
        let pages = found.len().div_ceil(PER_PAGE).max(1);
        let page = page.min(pages - 1);
        let shown = found.iter().skip(page * PER_PAGE).take(PER_PAGE);
        let of_hour = |name: &str| hour.ok().map(|_| figures(name));
        let rows = shown.map(|name| GateSummary::new(name, of_hour(name), overrides, catalog)).collect();
        Self {
            frame: Frame { title: "Gates".to_owned(), tab: Some(Tab::Gates), ..frame },
            search: search.to_owned(),
            rows,
            found: found.len(),
            page,
            pages,
            note: hour.err().map(str::to_owned),
        }
    }
}

impl GateSummary {
    /// `figures` are those of the gate, if there are any of the fleet.
    fn new(
        name: &str,
        figures: Option<Option<&GateHour>>,
        overrides: &[Override],
        catalog: &Catalog,
    ) -> Self {
        let facts = catalog.get(name);
        let denied_now = figures.flatten().map_or(0, |gate| gate.now.denied);
        Self {
            name: name.to_owned(),
            quota: facts.map_or_else(String::new, |facts| facts.quota.clone()),
            origin: facts.map(|facts| facts.origin.clone()),
            totals: figures.map(|gate| gate.map(|gate| gate.hour).unwrap_or_default()),
            denied_now: display::per_second(Hour::per_second_now(denied_now)),
            is_denying: denied_now > 0,
            switch: switch_of(overrides, name),
            overridden_keys: overridden_keys(overrides, name),
        }
    }
}
