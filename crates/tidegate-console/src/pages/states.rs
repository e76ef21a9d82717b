//! The state of a key, in words.

use tidegate::admin::{AuditEntry, Found, Usage, human, units};
use tidegate::{Override, Quota};

use super::catalog::{Catalog, Denied, switch_of};
use super::display;
use super::history::blocked_by;

/// The state of a key at one gate.
#[derive(Debug)]
pub(super) struct StateRow {
    pub(super) gate: String,
    /// The key as stored in Redis.
    pub(super) stored_key: String,
    pub(super) quota: String,
    /// The used part of the limit in percent.
    pub(super) percent: Option<u64>,
    /// The state in a sentence.
    pub(super) sentence: String,
    pub(super) class: &'static str,
    pub(super) label: &'static str,
    pub(super) redis_key: String,
}

/// Returns the quota that an override gives the key.
fn override_of(found: &Found, overrides: &[Override]) -> Option<Quota> {
    overrides.iter().find_map(|entry| match entry {
        Override::Quota { gate, key, quota, .. }
            if *gate == found.name.gate && *key == found.name.written =>
        {
            Some(*quota)
        }
        _ => None,
    })
}

/// Returns the limit of a key: by an override, by the state itself, or by the rules.
pub(super) fn limit_of(usage: &Usage, overridden: Option<u64>, of_gate: Option<u64>) -> Option<u64> {
    overridden.or_else(|| usage.quota.as_ref().map(Quota::limit)).or(of_gate)
}

/// Returns whether no unit of the limit is left.
pub(super) fn is_full(usage: &Usage, limit: Option<u64>) -> bool {
    limit.is_some_and(|limit| usage.used > limit as f64 - 1.0)
}

impl StateRow {
    /// `log` is the audit log, the newest entry first; `None` if it cannot be read.
    pub(super) fn new(
        found: &Found,
        overrides: &[Override],
        log: Option<&[AuditEntry]>,
        catalog: &Catalog,
    ) -> Self {
        let name = &found.name;
        let facts = catalog.get(&name.gate);
        let overridden = override_of(found, overrides);
        let stored_quota = found.usage.as_ref().ok().and_then(|usage| usage.quota);
        let quota = match (overridden.or(stored_quota), facts) {
            (Some(quota), _) => quota.to_string(),
            (None, Some(facts)) => facts.quota.clone(),
            (None, None) => name.shape.to_string(),
        };
        let row = Self {
            gate: name.gate.clone(),
            stored_key: name.written.clone(),
            quota,
            percent: None,
            sentence: String::new(),
            class: "bad",
            label: "not readable",
            redis_key: name.redis_key.clone(),
        };
        let usage = match &found.usage {
            Ok(usage) => usage,
            Err(error) => return Self { sentence: format!("Not readable: {error}"), ..row },
        };
        let limit =
            limit_of(usage, overridden.map(|quota| quota.limit()), facts.and_then(|facts| facts.limit));
        let used = match limit {
            Some(limit) => format!("{} of {}", units(usage.used), display::grouped(&limit.to_string())),
            None => units(usage.used),
        };
        let is_full = is_full(usage, limit);
        let is_near = limit.is_some_and(|limit| usage.used >= 0.8 * limit as f64);
        let resets = match usage.reset_after.is_zero() {
            true => "unused".to_owned(),
            false => format!("resets in {}", human(usage.reset_after)),
        };
        let by = usage.blocked_for.and_then(|left| {
            blocked_by(log, (&name.gate, &name.written), left, facts.and_then(|facts| facts.ban))
        });
        let by = by.map(|by| format!(" {by}")).unwrap_or_default();
        let denied = catalog.denied(&name.gate, switch_of(overrides, &name.gate));
        let (class, label, sentence) = match (usage.blocked_for, denied) {
            (Some(left), Denied::Nothing(why)) => {
                ("warn", "blocked", format!("Blocked for {} more, but {why}.{by} {used} used.", human(left)))
            }
            (Some(left), _) => (
                "bad",
                "blocked",
                format!("Blocked: every check is denied for {} more.{by} {used} used.", human(left)),
            ),
            (None, Denied::All) => (
                "bad",
                "denied",
                format!("{used} used, but the gate is switched closed: checks are denied; {resets}."),
            ),
            (None, Denied::OverLimit) if is_full => {
                ("bad", "denied", format!("{used} used: no unit is left, so checks are denied; {resets}."))
            }
            (None, Denied::Nothing(why)) if is_full => {
                ("warn", "over limit", format!("{used} used: no unit is left; {why}; {resets}."))
            }
            _ if is_near => ("warn", "near limit", format!("{used} used; {resets}.")),
            _ => ("good", "allowed", format!("{used} used; {resets}.")),
        };
        Self {
            percent: limit.map(|limit| (100.0 * (usage.used / limit.max(1) as f64).clamp(0.0, 1.0)) as u64),
            sentence,
            class,
            label,
            ..row
        }
    }
}
