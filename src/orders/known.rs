//! The orders that this process knows, to be looked up by each ask while there is any.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::Switch;
use super::text::{Entry, What};
use crate::error::Error;
use crate::per_thread::PerThread;
use crate::quota::Quota;
use crate::store::{GateInfo, Standing};

/// How many are in force.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) switches: usize,
    pub(super) overrides: usize,
}

#[derive(Default)]
pub(super) struct Known {
    changed: String,
    gates: HashMap<Box<str>, OfGate>,
}

#[derive(Default)]
struct OfGate {
    switch: Option<(Switch, Until)>,
    /// By keys as they stand in Redis.
    overrides: HashMap<Box<str>, Override>,
}

pub(super) struct Override {
    quota: Quota,
    until: Until,
    info: OnceLock<Arc<PerThread<GateInfo>>>,
}

/// By this process's clock, in microseconds.
#[derive(Clone, Copy)]
struct Until(u64);

impl Until {
    fn is_in_force(self, now_us: u64) -> bool {
        now_us < self.0
    }
}

impl Known {
    /// As they stood just now. What is not understood is another version's.
    pub(super) fn of(standing: &Standing, now_us: u64) -> Self {
        let mut known = Self { changed: standing.changed.clone(), gates: HashMap::new() };
        for (field, text) in &standing.fields {
            let Some(entry) = Entry::parse(field, text) else { continue };
            // What is left of it is counted from here, whatever this machine's clock says of the date.
            let left = |until_us: u64| now_us.saturating_add(until_us.saturating_sub(standing.now_us));
            let until = Until(entry.until_us.map_or(u64::MAX, left));
            let gate = known.gates.entry(entry.gate.into()).or_default();
            match entry.what {
                What::Switch(switch) => gate.switch = Some((switch, until)),
                What::Override(key, quota) => {
                    gate.overrides.insert(key.into(), Override { quota, until, info: OnceLock::new() });
                }
            }
        }
        known
    }

    /// When they were last changed, as the store tells it.
    pub(super) fn changed(&self) -> &str {
        &self.changed
    }

    pub(super) fn counts(&self, now_us: u64) -> Counts {
        let mut counts = Counts::default();
        for gate in self.gates.values() {
            counts.switches += usize::from(gate.switch.is_some_and(|(_, until)| until.is_in_force(now_us)));
            let overrides = gate.overrides.values();
            counts.overrides += overrides.filter(|instead| instead.until.is_in_force(now_us)).count();
        }
        counts
    }

    pub(super) fn switch(&self, gate: &str, now_us: u64) -> Option<Switch> {
        let (switch, until) = self.gates.get(gate)?.switch?;
        until.is_in_force(now_us).then_some(switch)
    }

    pub(super) fn overriding(&self, gate: &str, key: impl Fn() -> String, now_us: u64) -> Option<&Override> {
        let overrides = &self.gates.get(gate)?.overrides;
        if overrides.is_empty() {
            return None;
        }
        overrides.get(&*key()).filter(|instead| instead.until.is_in_force(now_us))
    }
}

impl Override {
    pub(super) fn gate_info(
        &self,
        make: impl Fn(Quota) -> Result<GateInfo, Error>,
    ) -> Option<Arc<PerThread<GateInfo>>> {
        if let Some(info) = self.info.get() {
            return Some(info.clone());
        }
        // A gate of that name is there, so that it cannot fail.
        let info = make(self.quota).ok()?;
        Some(self.info.get_or_init(|| Arc::new(PerThread::new(|| info.clone()))).clone())
    }
}
