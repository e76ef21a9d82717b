//! The overrides that this process has read. Each check looks them up while there is any.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::text::{OverrideEntry, Switch, What};
use crate::error::Error;
use crate::quota::Quota;
use crate::runtime::sharded_arc::ShardedArc;
use crate::store::{GateInfo, Standing};

/// The numbers of active overrides.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OverrideCounts {
    pub(super) switches: usize,
    pub(super) overrides: usize,
}

#[derive(Default)]
pub(super) struct KnownOverrides {
    changed: String,
    gates: HashMap<Box<str>, OfGate>,
}

#[derive(Default)]
struct OfGate {
    switch: Option<(Switch, Until)>,
    /// By the key as written in Redis.
    overrides: HashMap<Box<str>, KeyOverride>,
}

pub(super) struct KeyOverride {
    quota: Quota,
    until: Until,
    info: OnceLock<Arc<ShardedArc<GateInfo>>>,
}

/// The end of an override by this process's clock, in microseconds.
#[derive(Clone, Copy)]
struct Until(u64);

impl Until {
    fn is_active(self, now_us: u64) -> bool {
        now_us < self.0
    }
}

impl KnownOverrides {
    /// Parses a reading. Skips entries in the format of another version.
    pub(super) fn of(standing: &Standing, now_us: u64) -> Self {
        let mut known = Self { changed: standing.changed.clone(), gates: HashMap::new() };
        for (field, text) in &standing.fields {
            let Some(entry) = OverrideEntry::parse(field, text) else { continue };
            // Uses the time left: the clocks of this machine and of the server may differ.
            let left = |until_us: u64| now_us.saturating_add(until_us.saturating_sub(standing.now_us));
            let until = Until(entry.until_us.map_or(u64::MAX, left));
            let gate = known.gates.entry(entry.gate.into()).or_default();
            match entry.what {
                What::Switch(switch) => gate.switch = Some((switch, until)),
                What::Override(key, quota) => {
                    gate.overrides.insert(key.into(), KeyOverride { quota, until, info: OnceLock::new() });
                }
            }
        }
        known
    }

    /// Returns the last change, as reported by the store.
    pub(super) fn changed(&self) -> &str {
        &self.changed
    }

    pub(super) fn counts(&self, now_us: u64) -> OverrideCounts {
        let mut counts = OverrideCounts::default();
        for gate in self.gates.values() {
            counts.switches += usize::from(gate.switch.is_some_and(|(_, until)| until.is_active(now_us)));
            let overrides = gate.overrides.values();
            counts.overrides += overrides.filter(|instead| instead.until.is_active(now_us)).count();
        }
        counts
    }

    pub(super) fn switch(&self, gate: &str, now_us: u64) -> Option<Switch> {
        let (switch, until) = self.gates.get(gate)?.switch?;
        until.is_active(now_us).then_some(switch)
    }

    pub(super) fn overriding(
        &self,
        gate: &str,
        key: impl Fn() -> String,
        now_us: u64,
    ) -> Option<&KeyOverride> {
        let overrides = &self.gates.get(gate)?.overrides;
        if overrides.is_empty() {
            return None;
        }
        overrides.get(&*key()).filter(|instead| instead.until.is_active(now_us))
    }
}

impl KeyOverride {
    pub(super) fn gate_info(
        &self,
        make: impl Fn(Quota) -> Result<GateInfo, Error>,
    ) -> Option<Arc<ShardedArc<GateInfo>>> {
        if let Some(info) = self.info.get() {
            return Some(info.clone());
        }
        // Cannot fail: a gate of that name exists.
        let info = make(self.quota).ok()?;
        Some(self.info.get_or_init(|| Arc::new(ShardedArc::new(info))).clone())
    }
}
