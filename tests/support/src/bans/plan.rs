//! Random sequences of calls on three gates, each with one key and two possible bans. Proptest generates and shrinks
//! a [`Plan`]. A step becomes a call only when the sequence reaches it, so that a pause can last exactly until a
//! count or a block ends.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Ban, Quota};

use crate::holds::plan::{Units, quota_of, units};
use crate::plan::Family;

/// The number of steps of a sequence, and of gates.
pub const STEPS: usize = 60;
pub const GATES: usize = 3;

#[derive(Clone, Debug)]
pub struct Plan {
    pub quotas: Vec<Quota>,
    /// Two versions of the bans, as during a rollout.
    pub bans: [Ban; 2],
    pub start_us: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub pause: Pause,
    pub action: Action,
}

#[derive(Clone, Copy, Debug)]
pub enum Pause {
    None,
    Micros(u64),
    /// Until the count of this gate's denials ends, plus this many µs.
    CountEnd(u8, i64),
    /// Until the block of this gate ends, plus this many µs.
    BlockEnd(u8, i64),
    /// Part of the time in which a charge of this gate counts.
    Share(u8, u16),
    /// The server's clock is stepped back.
    StepBack(u64),
}

/// An index of a gate is taken modulo their number.
#[derive(Clone, Debug)]
pub enum Action {
    /// Shrinking ends here.
    Nothing,
    /// Checks of clients that know no bans.
    Check(u64, Vec<Part>),
    /// Checks, group after group; whether each group is a partial grant.
    Take(Vec<(u64, bool, Vec<Part>)>),
    /// For a part of the time in which a charge counts; 0 lifts the block.
    Block(u8, u16),
    Reset(u8),
    LoseState(u8),
    LoseCount(u8),
}

#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub gate: u8,
    pub units: Units,
    pub is_free: bool,
    pub max_delay: Option<u16>,
    /// The version of the ban; `None` for a client without it.
    pub ban: Option<bool>,
}

pub fn plans() -> impl Strategy<Value = Plan> {
    // Which denied checks of a group a log counts, the definitions leave open.
    let defined = Family::ALL.into_iter().filter(|family| *family != Family::CountingLog);
    let quota = prop::sample::select(defined.collect::<Vec<_>>()).prop_flat_map(quota_of);
    let start = 1_577_836_800_000_000..1_893_456_000_000_000u64;
    let steps =
        prop::collection::vec((pause(), action()).prop_map(|(pause, action)| Step { pause, action }), STEPS);
    (prop::collection::vec(quota, GATES), bans(), start, steps).prop_map(|(quotas, bans, start_us, steps)| {
        let mut plan = Plan { quotas, bans, start_us, steps };
        // The definitions leave open whether units of a log count again after the clock is stepped back.
        if plan.quotas.iter().any(|quota| quota.algorithm() == "sliding_log") {
            plan.steps.retain(|step| !matches!(step.pause, Pause::StepBack(_)));
        }
        plan
    })
}

/// Generates two bans, which mostly differ in nothing.
fn bans() -> impl Strategy<Value = [Ban; 2]> {
    let time = || {
        prop_oneof![
            3 => (1..=60u64).prop_map(|seconds| seconds * 1_000_000),
            2 => 1_000..=10_000_000u64,
            1 => (1..=48u64).prop_map(|hours| hours * 3_600_000_000),
        ]
        .prop_map(Duration::from_micros)
    };
    let after = prop_oneof![1 => Just(1), 4 => 2..=6u64, 1 => 7..=40u64];
    let ban =
        (after, time(), time()).prop_map(|(after, within, lasts)| Ban::after(after, within).lasting(lasts));
    let other = prop::option::weighted(0.3, ban.clone());
    (ban, other).prop_map(|(ban, other)| [ban, other.unwrap_or(ban)])
}

fn pause() -> impl Strategy<Value = Pause> {
    prop_oneof![
        8 => Just(Pause::None),
        3 => (1..=2_000_000u64).prop_map(Pause::Micros),
        4 => (any::<u8>(), -1..=1i64).prop_map(|(gate, more)| Pause::CountEnd(gate, more)),
        2 => (any::<u8>(), -1_000..=1_000i64).prop_map(|(gate, more)| Pause::CountEnd(gate, more)),
        3 => (any::<u8>(), -1..=1i64).prop_map(|(gate, more)| Pause::BlockEnd(gate, more)),
        1 => (any::<u8>(), any::<u16>()).prop_map(|(gate, part)| Pause::Share(gate, part)),
        1 => prop_oneof![1..=3u64, 1..=3_000u64, 1..=20_000_000u64].prop_map(Pause::StepBack),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let parts = || prop::collection::vec(part(), 1..=GATES);
    let n = || prop_oneof![6 => Just(1), 1 => Just(0), 3 => 2..=6u64];
    prop_oneof![
        1 => Just(Action::Nothing),
        30 => prop::collection::vec((n(), prop::bool::weighted(0.1), parts()), 1..=2).prop_map(Action::Take),
        3 => (n(), parts()).prop_map(|(n, parts)| Action::Check(n, parts)),
        2 => (any::<u8>(), prop_oneof![2 => Just(0), 1 => any::<u16>()])
            .prop_map(|(gate, part)| Action::Block(gate, part)),
        1 => any::<u8>().prop_map(Action::Reset),
        1 => any::<u8>().prop_map(Action::LoseState),
        1 => any::<u8>().prop_map(Action::LoseCount),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    let max_delay = prop_oneof![8 => Just(None), 1 => any::<u16>().prop_map(Some)];
    let ban = prop_oneof![1 => Just(None), 5 => any::<bool>().prop_map(Some)];
    (any::<u8>(), units(), prop::bool::weighted(0.1), max_delay, ban)
        .prop_map(|(gate, units, is_free, max_delay, ban)| Part { gate, units, is_free, max_delay, ban })
}
