//! What is counted for each gate: found by its name without a lock, and counted without a word to the
//! recorder but the first time.

use std::sync::OnceLock;

use metrics::{Counter, Gauge};

use super::names;
use super::register::Register;
use crate::decision::Decision;
use crate::gate_name::GateName;

/// A power of two. Names of gates are as many as a program or its files hold, so that nobody fills this by asking;
/// what is beyond it is counted under [`OTHER`].
const PLACES: usize = 1 << 14;
/// How far a name may lie from its place.
const NEAR: usize = 64;
const OTHER: &str = "other";

/// Allowed, denied, denied but for shadow mode.
const OUTCOMES: usize = 3;
/// At least as many as there are variants of `Source`.
const SOURCES: usize = 12;
const FATES: [&str; 4] = ["taken", "spent", "returned", "stranded"];

pub(super) struct Gates {
    places: Box<[OnceLock<Box<Counts>>]>,
    other: Counts,
}

impl Gates {
    pub(super) fn new() -> Self {
        let places = (0..PLACES).map(|_| OnceLock::new()).collect();
        Self { places, other: Counts::new(None) }
    }

    #[inline]
    pub(super) fn of(&self, gate: &GateName) -> &Counts {
        let first = place(gate);
        for at in first..first + NEAR {
            let counts = self.places[at % PLACES].get_or_init(|| Box::new(Counts::new(Some(*gate))));
            if counts.gate.is_some_and(|known| known.words().eq(gate.words())) {
                return counts;
            }
        }
        &self.other
    }

    pub(super) fn named(&self, gate: &str) -> &Counts {
        GateName::new(gate).map_or(&self.other, |gate| self.of(&gate))
    }
}

/// One gate's. Each is made when first needed: most gates never see most sources.
pub(super) struct Counts {
    /// `None`: all for which there is no place.
    gate: Option<GateName>,
    decisions: [[OnceLock<Counter>; SOURCES]; OUTCOMES],
    near_limit: OnceLock<Counter>,
    lease: OnceLock<Lease>,
}

/// Of a leased gate.
pub(super) struct Lease {
    /// By their places in [`FATES`].
    pub(super) units: [Counter; FATES.len()],
    pub(super) held: Gauge,
}

impl Counts {
    fn new(gate: Option<GateName>) -> Self {
        Self { gate, decisions: Default::default(), near_limit: OnceLock::new(), lease: OnceLock::new() }
    }

    #[inline]
    pub(super) fn decision(&self, decision: &Decision, register: &Register) -> &Counter {
        let outcome = match (decision.is_shadow(), decision.is_allowed()) {
            (true, _) => 2,
            (false, true) => 0,
            (false, false) => 1,
        };
        let source = decision.source();
        let place = &self.decisions[outcome][source as usize % SOURCES];
        place.get_or_init(|| {
            let labels =
                [("gate", self.name()), ("outcome", decision.outcome()), ("source", source.as_str())];
            register.counter(&names::DECISIONS, &labels)
        })
    }

    pub(super) fn near_limit(&self, register: &Register) -> &Counter {
        self.near_limit.get_or_init(|| register.counter(&names::NEAR_LIMIT, &[("gate", self.name())]))
    }

    pub(super) fn lease(&self, register: &Register) -> &Lease {
        let units = |fate| register.counter(&names::LEASE_UNITS, &[("gate", self.name()), ("fate", fate)]);
        self.lease.get_or_init(|| Lease {
            units: FATES.map(units),
            held: register.gauge(&names::LEASE_HELD, &[("gate", self.name())]),
        })
    }

    fn name(&self) -> &str {
        self.gate.as_deref().unwrap_or(OTHER)
    }
}

/// Nobody chooses names of gates to have them meet.
#[inline]
fn place(gate: &GateName) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = gate.words().fold(0_u64, |hash, word| (hash.rotate_left(23) ^ word).wrapping_mul(ODD));
    (hash >> (64 - PLACES.ilog2())) as usize
}
