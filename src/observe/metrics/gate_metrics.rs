//! The counters of each gate. Finding them by the gate's name takes no lock. The recorder is called only at
//! the first use of a counter.

use std::sync::OnceLock;

use metrics::{Counter, Gauge};

use super::{Register, names};
use crate::decision::Decision;
use crate::error::gate_name::GateName;
use crate::observe::readable_names::ReadableNames;
use crate::quota::settlement::Settlement;
use crate::runtime::sync::Arc;

/// The number of table slots, a power of two. Gate names come from the program, its files, and clients of the
/// service's HTTP API, which can invent any number. Gates without a slot are counted under [`OTHER`].
const SLOTS: usize = 1 << 14;
/// The maximum number of slots probed for a name.
const MAX_PROBES: usize = 64;
const OTHER: &str = "other";

/// Allowed, denied, and admitted only because of shadow mode.
const OUTCOMES: usize = 3;
/// At least the number of variants of `Source`.
const SOURCES: usize = 12;
/// The outcomes of units of partial grants.
const GRANTED: [&str; 2] = ["allowed", "denied"];
const FATES: [&str; 4] = ["taken", "spent", "returned", "stranded"];

pub(super) struct Gates {
    slots: Box<[OnceLock<Box<GateMetrics>>]>,
    other: GateMetrics,
    /// `None` if the labels are the names in Redis.
    pub(super) names: Option<ReadableNames>,
}

impl Gates {
    pub(super) fn new() -> Self {
        let slots = (0..SLOTS).map(|_| OnceLock::new()).collect();
        Self { slots, other: GateMetrics::default(), names: Some(ReadableNames::default()) }
    }

    #[inline]
    pub(super) fn of(&self, gate: &GateName) -> &GateMetrics {
        let first = slot(gate);
        for at in first..first + MAX_PROBES {
            let counts = self.slots[at % SLOTS].get_or_init(|| Box::new(self.new_metrics(gate)));
            if counts.gate.is_some_and(|known| known.words().eq(gate.words())) {
                return counts;
            }
        }
        &self.other
    }

    fn new_metrics(&self, gate: &GateName) -> GateMetrics {
        let label = self.names.as_ref().map_or_else(|| (**gate).into(), |names| names.of(gate));
        GateMetrics { gate: Some(*gate), label: Some(label), ..GateMetrics::default() }
    }

    pub(super) fn add_name(&self, gate: &str, readable: &str) {
        if let Some(names) = &self.names {
            names.add(gate, readable);
        }
    }

    pub(super) fn named(&self, gate: &str) -> &GateMetrics {
        GateName::new(gate).map_or(&self.other, |gate| self.of(&gate))
    }
}

/// The counters of one gate. Each is created at its first use: most gates never use most sources.
#[derive(Default)]
pub(super) struct GateMetrics {
    /// `None` for all gates without a slot.
    gate: Option<GateName>,
    /// The value of the label `gate`: a readable name that comes after the first decision is not used.
    label: Option<Arc<str>>,
    decisions: [[OnceLock<Counter>; SOURCES]; OUTCOMES],
    near_limit: OnceLock<Counter>,
    grant_units: OnceLock<[Counter; GRANTED.len()]>,
    lease: OnceLock<LeaseMetrics>,
    settlements: OnceLock<[Counter; Settlement::ALL.len()]>,
    permits: OnceLock<PermitMetrics>,
}

/// The counters of a gate with an in-flight limit.
pub(super) struct PermitMetrics {
    pub(super) held: Gauge,
    pub(super) waiting: Gauge,
    pub(super) lapsed: Counter,
    pub(super) restored: Counter,
}

/// The counters of a leased gate.
pub(super) struct LeaseMetrics {
    /// Indexed like [`FATES`].
    pub(super) units: [Counter; FATES.len()],
    pub(super) held: Gauge,
}

impl GateMetrics {
    #[inline]
    pub(super) fn decision(&self, decision: &Decision, register: &Register) -> &Counter {
        let outcome = match (decision.is_shadow(), decision.is_allowed()) {
            (true, _) => 2,
            (false, true) => 0,
            (false, false) => 1,
        };
        let source = decision.source();
        let counter = &self.decisions[outcome][source as usize % SOURCES];
        counter.get_or_init(|| {
            let labels =
                [("gate", self.name()), ("outcome", decision.outcome()), ("source", source.as_str())];
            register.counter(&names::DECISIONS, &labels)
        })
    }

    pub(super) fn near_limit(&self, register: &Register) -> &Counter {
        self.near_limit.get_or_init(|| register.counter(&names::NEAR_LIMIT, &[("gate", self.name())]))
    }

    /// Returns the counters of granted and of denied units.
    pub(super) fn grant_units(&self, register: &Register) -> &[Counter; GRANTED.len()] {
        let counter =
            |outcome| register.counter(&names::GRANT_UNITS, &[("gate", self.name()), ("outcome", outcome)]);
        self.grant_units.get_or_init(|| GRANTED.map(counter))
    }

    pub(super) fn lease(&self, register: &Register) -> &LeaseMetrics {
        let units = |fate| register.counter(&names::LEASE_UNITS, &[("gate", self.name()), ("fate", fate)]);
        self.lease.get_or_init(|| LeaseMetrics {
            units: FATES.map(units),
            held: register.gauge(&names::LEASE_HELD, &[("gate", self.name())]),
        })
    }

    pub(super) fn settlement(&self, settlement: Settlement, register: &Register) -> &Counter {
        let counter = |settlement: Settlement| {
            let labels = [("gate", self.name()), ("result", settlement.as_str())];
            register.counter(&names::SETTLEMENTS, &labels)
        };
        &self.settlements.get_or_init(|| Settlement::ALL.map(counter))[settlement as usize]
    }

    pub(super) fn permits(&self, register: &Register) -> &PermitMetrics {
        self.permits.get_or_init(|| {
            let gate = [("gate", self.name())];
            PermitMetrics {
                held: register.gauge(&names::PERMITS_HELD, &gate),
                waiting: register.gauge(&names::PERMITS_WAITING, &gate),
                lapsed: register.counter(&names::PERMITS_LAPSED, &gate),
                restored: register.counter(&names::PERMITS_RESTORED, &gate),
            }
        })
    }

    /// Returns the value of the label `gate`.
    pub(super) fn name(&self) -> &str {
        self.label.as_deref().unwrap_or(OTHER)
    }
}

/// Returns a gate's first slot. The hash has no secret seed: a client that invents names which collide gets them
/// counted under [`OTHER`], and a search ends after [`MAX_PROBES`].
#[inline]
fn slot(gate: &GateName) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = gate.words().fold(0_u64, |hash, word| (hash.rotate_left(23) ^ word).wrapping_mul(ODD));
    (hash >> (64 - SLOTS.ilog2())) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_that_clients_invent_are_counted_as_other_when_the_table_is_full() {
        let gates = Gates::new();
        let names = (0..SLOTS + 4_000).map(|number| format!("invented-{number}"));
        let counted: HashSet<String> = names.map(|name| gates.named(&name).name().to_owned()).collect();
        assert!(counted.len() <= SLOTS + 1, "{} names", counted.len());
        assert!(counted.contains(OTHER));
        assert_eq!(gates.named("invented-0").name(), "invented-0", "a name keeps its slot");
    }
}
