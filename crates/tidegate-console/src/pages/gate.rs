//! One gate: its quota, its figures, its overrides.

use askama::Template;
use tidegate::admin::{AuditEntry, human};
use tidegate::{Override, Switch};
use tidegate_rules::{Rule, RulesLimiter};

use super::catalog::{Catalog, GateFacts, switch_of};
use super::chart::Chart;
use super::frame::{Frame, Tab};
use super::hour::{Hour, Totals};
use super::overrides::OverrideRow;
use super::overview::decisions_of_gate;
use super::{display, filters, stored_key};

/// The maximum overrides of the page.
const MAX_OVERRIDES: usize = 50;

/// The page.
#[derive(Template)]
#[template(path = "gate.html")]
pub(super) struct GatePage {
    pub(super) frame: Frame,
    pub(super) name: String,
    pub(super) facts: Option<GateFacts>,
    /// More settings of the rule: name and value in words.
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) switch: Option<Switch>,
    pub(super) figures: Option<GateFigures>,
    pub(super) note: Option<String>,
    pub(super) overrides: Vec<OverrideRow>,
    pub(super) more_overrides: usize,
}

/// The figures of the gate.
pub(super) struct GateFigures {
    pub(super) hour: Totals,
    pub(super) denied_share: String,
    pub(super) chart: Chart,
    /// Decisions by source.
    pub(super) sources: Vec<(String, u64)>,
}

impl GatePage {
    pub(super) fn new(
        frame: Frame,
        name: &str,
        rules: &RulesLimiter,
        hour: Result<&Hour, &str>,
        overrides: &[Override],
        log: &[AuditEntry],
        catalog: &Catalog,
    ) -> Self {
        let rule = rules.rules().iter().find(|rule| rule.gate_name() == name);
        let figures = hour.ok().and_then(|hour| Some((hour, hour.gates.get(name)?)));
        let of_gate = overrides.iter().filter(|entry| entry.gate() == name);
        let rows: Vec<OverrideRow> = of_gate.filter_map(|entry| OverrideRow::new(entry, log)).collect();
        let title = format!("Gate {}", tidegate::admin::visible(name));
        Self {
            frame: Frame { title, tab: Some(Tab::Gates), ..frame },
            name: name.to_owned(),
            facts: catalog.get(name).cloned(),
            settings: rule.map(settings).unwrap_or_default(),
            switch: switch_of(overrides, name),
            figures: figures.map(|(hour, gate)| GateFigures {
                hour: gate.hour,
                denied_share: display::share(gate.hour.denied, gate.hour.decisions()),
                chart: decisions_of_gate(hour, gate),
                sources: gate.sources.iter().map(|(name, count)| (name.clone(), *count)).collect(),
            }),
            note: hour.err().map(str::to_owned),
            more_overrides: rows.len().saturating_sub(MAX_OVERRIDES),
            overrides: rows.into_iter().take(MAX_OVERRIDES).collect(),
        }
    }

    /// Returns whether a rule, a figure or an override names the gate.
    pub(super) fn is_known(&self) -> bool {
        self.facts.is_some() || self.figures.is_some() || !self.overrides.is_empty()
    }
}

/// Returns the settings of a rule beside its limit.
fn settings(rule: &Rule) -> Vec<(&'static str, String)> {
    let mut settings = Vec::new();
    if let Some(name) = rule.name() {
        settings.push(("Name", name.to_owned()));
    }
    if rule.cost() != 1 {
        settings.push(("Cost", format!("{} units for each hit", rule.cost())));
    }
    if let Some(candidate) = rule.candidate() {
        let text = format!("{}, counted by gate {}", candidate, rule.candidate_gate_name());
        settings.push(("Candidate", text));
    }
    if let Some(ban) = rule.ban() {
        let (lasts, within) = (human(ban.lasts()), human(ban.within()));
        settings.push(("Ban", format!("for {lasts} after {} denials within {within}", ban.denials())));
    }
    settings
}
