//! Random histories of processes that share in-flight limits. Proptest generates and shrinks a [`Plan`];
//! [`play`](super::player::play) makes it concrete with the replies of a store.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Quota, Rate};

use super::call::{KEYS, Loss};

pub const STEPS: usize = 60;
const SECOND_US: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub gates: [GatePlan; KEYS],
    pub bucket: Quota,
    pub processes: Vec<ProcessPlan>,
    pub start_us: u64,
    pub steps: Vec<Step>,
}

/// The quotas of a key: its limit changes in place.
#[derive(Clone, Debug)]
pub struct GatePlan {
    pub limits: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
pub struct ProcessPlan {
    pub ttl_us: u64,
    /// Whether the process restores its permits after a lapse. Otherwise it counts them as lost.
    pub restores: bool,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub pause: Pause,
    pub action: Action,
}

/// A movement of the server's clock. An index of a key or process is taken modulo their number.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    None,
    Micros(u64),
    /// Part of the ttl of a process.
    Ttl(u8, u16),
    /// To the end of the lease of a process, plus this many µs.
    LeaseEnd(u8, i64),
    /// To the end of the lease of a process as that process knows it, plus this many µs.
    KnownEnd(u8, i64),
    /// To the stored `sure until` of a key, plus this many µs.
    SureUntil(u8, i64),
    /// To the time from which on the store refuses the last call, plus this many µs.
    Bound(i64),
    /// To the end of a key's block, plus this many µs.
    BlockEnd(u8, i64),
    Step(i64),
}

#[derive(Clone, Debug)]
pub enum Action {
    /// A process sends messages about different keys in one call, which the store refuses after so many µs. `None`:
    /// the process does not know the store's time.
    Acquire(u8, Vec<Want>, Fate, Option<u64>),
    Renew(u8, Fate),
    RenewAll,
    /// So many heartbeats pass without another call, if no lease is shorter than a minute.
    Idle(u8),
    /// The process sends a message again of which it got no reply.
    Repeat(u8, Fate),
    /// An earlier call arrives once more, or for the first time.
    Copy(u8),
    Kill(u8),
    /// The process ends its lease, after it reported that it holds nothing or without that.
    End(u8, bool),
    Peek(u8),
    /// For part of a minute.
    Block(u8, u16),
    Unblock(u8),
    Lose(Loss),
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    LostCall,
    LostReply,
}

#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub shape: Shape,
    /// 0 releases, or reports without a change.
    pub n: u64,
    pub cost: u64,
    /// The part of the held units that the process releases with this message.
    pub released: u16,
    /// An index of the limits of the key.
    pub limit: u8,
}

/// The items of a group.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    Key(u8),
    Both,
    KeyAndBucket(u8),
    All,
}

pub fn plan() -> impl Strategy<Value = Plan> {
    let gate = prop::collection::vec(1..=8u64, 1..=3).prop_map(|limits| GatePlan { limits });
    let ttl = || {
        prop_oneof![
            4 => Just(10 * SECOND_US),
            1 => Just(SECOND_US),
            1 => Just(60 * SECOND_US),
        ]
    };
    // Most fleets have one ttl.
    let ttls = (ttl(), prop::collection::vec(prop::option::weighted(0.15, ttl()), 2..=4));
    let processes = (ttls, any::<[bool; 4]>()).prop_map(|((common, others), restores)| {
        let process =
            |(ttl, restores): (Option<u64>, bool)| ProcessPlan { ttl_us: ttl.unwrap_or(common), restores };
        others.into_iter().zip(restores).map(process).collect()
    });
    let bucket = (
        1..=20u64,
        prop_oneof![
            (1..=100u64).prop_map(Rate::per_second),
            (1..=100u64).prop_map(Rate::per_minute),
            (1..=1_000u64, 1_000..=100_000_000u64)
                .prop_map(|(units, us)| Rate::new(units, Duration::from_micros(us))),
        ],
    );
    let start = 1_577_836_800_000_000..1_893_456_000_000_000u64;
    (gate.clone(), gate, bucket, processes, start, prop::collection::vec(step(), STEPS)).prop_map(
        |(first, second, (capacity, rate), processes, start_us, steps)| Plan {
            gates: [first, second],
            bucket: Quota::token_bucket(capacity, rate),
            processes,
            start_us,
            steps,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let off_by_one = || -1..=1i64;
    let step = (any::<bool>(), 0..=32u32, any::<u16>()).prop_map(|(is_back, bits, part)| {
        // From 1 µs to 1 h 11 min, evenly over the magnitudes.
        let us = (1i64 << bits) + (((1i64 << bits) * i64::from(part)) >> 16);
        Pause::Step(if is_back { -us } else { us }.clamp(-3_600_000_000, 3_600_000_000))
    });
    let pause = prop_oneof![
        12 => Just(Pause::None),
        4 => (1..=1_000u64).prop_map(Pause::Micros),
        4 => (1_000..=1_000_000u64).prop_map(Pause::Micros),
        5 => (any::<u8>(), 0..=0x6000u16).prop_map(|(process, part)| Pause::Ttl(process, part)),
        2 => (any::<u8>(), any::<u16>()).prop_map(|(process, part)| Pause::Ttl(process, part)),
        2 => (any::<u8>(), off_by_one()).prop_map(|(process, more)| Pause::LeaseEnd(process, more)),
        1 => (any::<u8>(), off_by_one()).prop_map(|(process, more)| Pause::KnownEnd(process, more)),
        2 => (any::<u8>(), off_by_one()).prop_map(|(key, more)| Pause::SureUntil(key, more)),
        1 => (any::<u8>(), off_by_one()).prop_map(|(key, more)| Pause::BlockEnd(key, more)),
        2 => off_by_one().prop_map(Pause::Bound),
        2 => step,
    ];
    (pause, action()).prop_map(|(pause, action)| Step { pause, action })
}

fn action() -> impl Strategy<Value = Action> {
    let fate = || {
        prop_oneof![
            8 => Just(Fate::Answered),
            1 => Just(Fate::LostCall),
            1 => Just(Fate::LostReply),
        ]
    };
    let bound = prop_oneof![
        2 => Just(None),
        1 => Just(Some(0)),
        4 => (1..=300_000u64).prop_map(Some),
        1 => (1..=20 * SECOND_US).prop_map(Some),
    ];
    let loss = prop_oneof![
        2 => Just(Loss::Everything),
        1 => (0..KEYS).prop_map(Loss::Key),
        1 => Just(Loss::Leases),
    ];
    prop_oneof![
        60 => (any::<u8>(), prop::collection::vec(want(), 1..=2), fate(), bound)
            .prop_map(|(process, wants, fate, bound)| Action::Acquire(process, wants, fate, bound)),
        8 => (any::<u8>(), fate()).prop_map(|(process, fate)| Action::Renew(process, fate)),
        10 => Just(Action::RenewAll),
        1 => (1..=60u8).prop_map(Action::Idle),
        6 => (any::<u8>(), fate()).prop_map(|(process, fate)| Action::Repeat(process, fate)),
        5 => any::<u8>().prop_map(Action::Copy),
        2 => any::<u8>().prop_map(Action::Kill),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(process, is_orderly)| Action::End(process, is_orderly)),
        4 => any::<u8>().prop_map(Action::Peek),
        1 => (any::<u8>(), any::<u16>()).prop_map(|(key, part)| Action::Block(key, part)),
        1 => any::<u8>().prop_map(Action::Unblock),
        1 => loss.prop_map(Action::Lose),
    ]
}

fn want() -> impl Strategy<Value = Want> {
    let shape = prop_oneof![
        6 => any::<u8>().prop_map(Shape::Key),
        2 => Just(Shape::Both),
        1 => any::<u8>().prop_map(Shape::KeyAndBucket),
        1 => Just(Shape::All),
    ];
    let n = prop_oneof![5 => Just(1), 3 => Just(0), 2 => 2..=6u64];
    let cost = prop_oneof![5 => Just(1), 4 => 2..=8u64];
    let released = prop_oneof![4 => Just(0), 2 => Just(u16::MAX), 2 => any::<u16>()];
    let limit = prop_oneof![3 => Just(0), 1 => any::<u8>()];
    (shape, n, cost, released, limit).prop_map(|(shape, n, cost, released, limit)| Want {
        shape,
        n,
        cost,
        released,
        limit,
    })
}
