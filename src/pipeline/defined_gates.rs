//! The gates that a program defines, to find two of one name.

use std::collections::HashMap;

use crate::observe::warning::{RepeatedWarning, WarningSink};
use crate::quota::Quota;
use crate::runtime::sync::{Mutex, lock};
use crate::store::GateInfo;

/// The maximum number of gates that are compared.
const MAX_GATES: usize = 1_024;

/// The first quota of each gate, by the prefix of its Redis keys: gates with the same prefix share their counts. `None`
/// after a report.
#[derive(Debug, Default)]
pub(crate) struct DefinedGates(Mutex<HashMap<Box<str>, Option<Quota>>>);

impl DefinedGates {
    /// Notes a gate. Warns once of each that has another quota than the first one with the same counts.
    pub(crate) fn add(&self, gate: &GateInfo, warnings: &WarningSink) {
        if let Some(first) = self.first_if_different(gate) {
            // One for each gate: the pause of a shared warning would lose those of other gates.
            warnings.warn(&RepeatedWarning::new("gate-redefined"), || {
                let (name, quota) = (&gate.name, gate.quota);
                format!(
                    "two gates are named `{name}` and share their counts, but have different quotas: {first} and {quota}; \
                     rename one of them, or make gates whose quota is chosen at run time by `Limiter::try_gate`"
                )
            });
        }
    }

    fn first_if_different(&self, gate: &GateInfo) -> Option<Quota> {
        let mut quotas = lock(&self.0);
        if let Some(first) = quotas.get_mut(gate.prefix.text()) {
            return first.take_if(|first| *first != gate.quota);
        }
        if quotas.len() < MAX_GATES {
            quotas.insert(gate.prefix.text().into(), Some(gate.quota));
        }
        None
    }
}
