//! Which entries of the runbook fire now, by the figures of the fleet and by what this process knows.

mod conditions;

use askama::Template;

pub(super) use self::conditions::{ConditionInputs, RedisState, State};
use super::filters;
use super::frame::{Frame, Tab};
use super::runbook;

/// The page.
#[derive(Template)]
#[template(path = "health.html")]
pub(super) struct HealthPage {
    pub(super) frame: Frame,
    pub(super) firing: Vec<Entry>,
    pub(super) quiet: Vec<Entry>,
    /// Entries that need figures which the console does not have.
    pub(super) unknown: Vec<Entry>,
    /// The state of this process's own Redis, and warnings about it.
    pub(super) redis: Vec<String>,
}

/// An entry of the runbook with its state.
pub(super) struct Entry {
    pub(super) alert: &'static str,
    /// The anchor of the section.
    pub(super) anchor: String,
    pub(super) detail: String,
    /// The section, which is HTML.
    pub(super) html: &'static str,
}

impl HealthPage {
    pub(super) fn new(frame: Frame, inputs: &ConditionInputs<'_>, redis: Vec<String>) -> Self {
        let (mut firing, mut quiet, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for section in runbook::sections() {
            let (list, detail) = match conditions::of(section.alert, inputs) {
                State::Fires(detail) => (&mut firing, detail),
                State::Quiet(detail) => (&mut quiet, detail),
                State::Unknown(detail) => (&mut unknown, detail),
            };
            let anchor = section.alert.to_lowercase();
            list.push(Entry { alert: section.alert, anchor, detail, html: &section.html });
        }
        let frame =
            Frame { title: "Health".to_owned(), tab: Some(Tab::Health), firing: firing.len(), ..frame };
        Self { frame, firing, quiet, unknown, redis }
    }
}

/// Returns the number of entries that fire.
pub(super) fn firing(inputs: &ConditionInputs<'_>) -> usize {
    let alerts = runbook::sections().iter();
    alerts.filter(|section| matches!(conditions::of(section.alert, inputs), State::Fires(_))).count()
}
