//! Random sequences of calls on three gates with holds. Proptest generates and shrinks a [`Plan`]. A step
//! becomes a call only when the sequence reaches it, so that it can name an earlier reservation, and a pause
//! can last exactly until a hold ends.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Quota, Rate};

use crate::plan::Family;

/// The number of steps of a sequence, and of gates.
pub const STEPS: usize = 50;
pub const GATES: usize = 3;
/// A hold lasts at least 1 s and at most 24 h.
pub const TTLS_US: std::ops::RangeInclusive<u64> = 1_000_000..=86_400_000_000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub quotas: Vec<Quota>,
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
    /// Until the end of one of the next holds, plus this many µs.
    HoldEnd(u8, i64),
    /// Until a charge of an open hold of this gate stops to count, plus this many µs.
    Life(u8, i64),
    /// Part of the time in which a charge of this gate counts.
    Share(u8, u16),
    /// The server's clock is stepped back.
    StepBack(u64),
}

/// An index of a gate or of a reservation is taken modulo their number.
#[derive(Clone, Debug)]
pub enum Action {
    /// Shrinking ends here.
    Nothing,
    /// Checks on gates that do not see holds.
    Check(u64, Vec<Part>),
    /// Checks, group after group. The bits of the first number are the gates that see holds.
    Take(u8, Vec<(u64, Vec<Part>)>),
    Reserve(Vec<Part>, Ttl, bool),
    /// As many reservations of one unit of a gate, in one call. Those with an odd number last for the other
    /// time, and what happens at their end may differ.
    Crowd(u8, u8, [(Ttl, bool); 2]),
    /// Reserves again with the same id, counted from the newest reservation.
    Repeat(u8),
    /// Commits these parts of a reservation, counted from the newest.
    Settle(u8, [Actual; GATES]),
    /// Settles with a token that no reservation has.
    Forge(u8, Forgery),
    Penalize(u8, Units),
    Refund(u8, Units),
    /// For a part of the time in which a charge counts; 0 lifts the block.
    Block(u8, u16),
    Reset(u8),
    LoseState(u8),
    LoseHolds(u8),
}

#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub gate: u8,
    pub units: Units,
    pub is_free: bool,
    pub max_delay: Option<u16>,
}

#[derive(Clone, Copy, Debug)]
pub enum Units {
    Few(u64),
    Share(u16),
}

#[derive(Clone, Copy, Debug)]
pub enum Ttl {
    Micros(u64),
    /// Part of the time in which a charge of the first gate counts.
    Share(u16),
}

/// The units that a reservation used.
#[derive(Clone, Copy, Debug)]
pub enum Actual {
    Zero,
    All,
    Share(u16),
    /// As many more than reserved.
    More(u64),
}

#[derive(Clone, Copy, Debug)]
pub enum Forgery {
    Id,
    Units,
    Ttl,
    What,
}

/// Generates sequences on a bucket, a window and a bucket; in some, on any algorithms.
pub fn plans() -> impl Strategy<Value = Plan> {
    let usual = (bucket(limit()), window(limit()), bucket(limit()));
    let usual = usual.prop_map(|(one, two, three)| vec![one, two, three]);
    // Which denied checks of a group a log counts, the definitions leave open. Every fixed window can follow a calendar.
    let excluded = [Family::CountingLog, Family::CalendarWindow];
    let defined = Family::ALL.into_iter().filter(|family| !excluded.contains(family));
    let any = prop::sample::select(defined.collect::<Vec<_>>()).prop_flat_map(quota_of);
    let any = prop::collection::vec(any, GATES);
    let few = (prop_oneof![2 => usual, 1 => any], prop::collection::vec(step(1), STEPS));
    let wide = || 100..=1_000u64;
    let crowded = (bucket(wide()), window(wide()), bucket(wide()));
    let crowded = crowded.prop_map(|(one, two, three)| vec![one, two, three]);
    let crowded = (crowded, prop::collection::vec(step(20), STEPS));
    let start = 1_577_836_800_000_000..1_893_456_000_000_000u64;
    (prop_oneof![9 => few, 1 => crowded], start).prop_map(|((quotas, steps), start_us)| {
        let mut plan = Plan { quotas, start_us, steps };
        plan.remove_undefined_cases();
        plan
    })
}

impl Plan {
    /// The definitions leave open whether refunded units of a log count again after the clock is stepped
    /// back to before the refund.
    fn remove_undefined_cases(&mut self) {
        if self.quotas.iter().any(|quota| quota.algorithm() == "sliding_log") {
            self.steps.retain(|step| !matches!(step.pause, Pause::StepBack(_)));
        }
    }
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(1), 5 => 2..=12u64, 3 => 13..=100u64, 1 => 101..=1_000_000u64]
}

/// Generates the time in which a charge counts: often that of a hold, sometimes much shorter or longer.
fn time_scale() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => (1..=60u64).prop_map(|seconds| seconds * 1_000_000),
        3 => 1_000_000..=100_000_000u64,
        1 => (1..=24u64).prop_map(|hours| hours * 3_600_000_000),
        1 => 1_000..=1_000_000u64,
        1 => 100_000_000..=1_000_000_000_000u64,
    ]
}

fn bucket_rate(limit: impl Strategy<Value = u64>) -> impl Strategy<Value = (u64, Rate)> {
    (limit, time_scale()).prop_map(|(limit, scale)| {
        (limit.min(scale), Rate::new(limit.min(scale), Duration::from_micros(scale)))
    })
}

fn bucket(limit: impl Strategy<Value = u64>) -> impl Strategy<Value = Quota> {
    bucket_rate(limit).prop_filter_map("too fine", |(limit, rate)| Quota::try_token_bucket(limit, rate).ok())
}

fn window(limit: impl Strategy<Value = u64>) -> impl Strategy<Value = Quota> {
    let settings = (limit, time_scale(), prop::option::weighted(0.3, any::<u64>()), 0..10u8);
    settings.prop_map(|(limit, window_us, offset, kind)| {
        // Holds last for at most a day.
        let calendar = ["day@Europe/Berlin", "day@Asia/Kolkata"].get(usize::from(kind));
        if let Some(calendar) = calendar {
            return Quota::calendar_window(limit, calendar.parse().unwrap());
        }
        let quota = Quota::fixed_window(limit, Duration::from_micros(window_us));
        match offset {
            Some(offset) => quota.aligned_to_clock_at(Duration::from_micros(offset % window_us)),
            None => quota,
        }
    })
}

/// Generates a quota of one algorithm.
pub fn quota_of(family: Family) -> BoxedStrategy<Quota> {
    let window_of = |build: fn(u64, Duration) -> Quota| {
        (limit(), time_scale()).prop_map(move |(limit, window_us)| {
            // A sliding counter holds at most 2^52 unit microseconds.
            build(limit.min((1 << 52) / window_us), Duration::from_micros(window_us))
        })
    };
    match family {
        Family::TokenBucket => bucket(limit()).boxed(),
        Family::LeakyBucket => bucket_rate(limit())
            .prop_filter_map("too fine", |(limit, rate)| Quota::try_leaky_bucket(limit, rate).ok())
            .boxed(),
        Family::FixedWindow | Family::ClockWindow | Family::CalendarWindow => window(limit()).boxed(),
        Family::SlidingLog => window_of(Quota::sliding_log).boxed(),
        Family::CountingLog => {
            window_of(|limit, window| Quota::sliding_log(limit, window).count_denied()).boxed()
        }
        Family::SlidingCounter => window_of(Quota::sliding_counter).boxed(),
    }
}

fn step(crowds: u32) -> impl Strategy<Value = Step> {
    (pause(), action(crowds)).prop_map(|(pause, action)| Step { pause, action })
}

fn pause() -> impl Strategy<Value = Pause> {
    prop_oneof![
        6 => Just(Pause::None),
        3 => (1..=2_000_000u64).prop_map(Pause::Micros),
        5 => (0..3u8, -1..=1i64).prop_map(|(next, more)| Pause::HoldEnd(next, more)),
        1 => (any::<u8>(), -1_000..=1_000i64).prop_map(|(gate, more)| Pause::Life(gate, more)),
        1 => (any::<u8>(), -1..=1i64).prop_map(|(gate, more)| Pause::Life(gate, more)),
        2 => (any::<u8>(), any::<u16>()).prop_map(|(gate, part)| Pause::Share(gate, part)),
        1 => prop_oneof![1..=3u64, 1..=3_000u64, 1..=2_000_000u64].prop_map(Pause::StepBack),
    ]
}

fn action(crowds: u32) -> impl Strategy<Value = Action> {
    let parts = || prop::collection::vec(part(), 1..=GATES);
    let n = || prop_oneof![6 => Just(1), 1 => Just(0), 2 => 2..=5u64];
    let recent = || prop_oneof![5 => 0..2u8, 1 => any::<u8>()];
    let end = || (ttl(), any::<bool>());
    let ends = || prop_oneof![2 => end().prop_map(|end| [end; 2]), 1 => [end(), end()]];
    let forgery = prop::sample::select(&[Forgery::Id, Forgery::Units, Forgery::Ttl, Forgery::What][..]);
    prop_oneof![
        1 => Just(Action::Nothing),
        12 => (parts(), ttl(), any::<bool>())
            .prop_map(|(parts, ttl, back)| Action::Reserve(parts, ttl, back)),
        crowds => (any::<u8>(), 2..=90u8, ends())
            .prop_map(|(gate, number, ends)| Action::Crowd(gate, number, ends)),
        2 => recent().prop_map(Action::Repeat),
        12 => (recent(), [actual(), actual(), actual()]).prop_map(|(which, all)| Action::Settle(which, all)),
        1 => (recent(), forgery).prop_map(|(which, forgery)| Action::Forge(which, forgery)),
        3 => (n(), parts()).prop_map(|(n, parts)| Action::Check(n, parts)),
        5 => (any::<u8>(), prop::collection::vec((n(), parts()), 1..=2))
            .prop_map(|(seeing, groups)| Action::Take(seeing, groups)),
        1 => (any::<u8>(), units()).prop_map(|(gate, units)| Action::Penalize(gate, units)),
        1 => (any::<u8>(), units()).prop_map(|(gate, units)| Action::Refund(gate, units)),
        1 => (any::<u8>(), prop_oneof![1 => Just(0), 2 => any::<u16>()])
            .prop_map(|(gate, part)| Action::Block(gate, part)),
        1 => any::<u8>().prop_map(Action::Reset),
        1 => any::<u8>().prop_map(Action::LoseState),
        1 => any::<u8>().prop_map(Action::LoseHolds),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    let max_delay = prop_oneof![8 => Just(None), 1 => any::<u16>().prop_map(Some)];
    (any::<u8>(), units(), prop::bool::weighted(0.1), max_delay)
        .prop_map(|(gate, units, is_free, max_delay)| Part { gate, units, is_free, max_delay })
}

pub fn units() -> impl Strategy<Value = Units> {
    prop_oneof![3 => (1..=4u64).prop_map(Units::Few), 1 => any::<u16>().prop_map(Units::Share)]
}

fn ttl() -> impl Strategy<Value = Ttl> {
    prop_oneof![
        2 => Just(Ttl::Micros(*TTLS_US.start())),
        3 => (1..=60u64).prop_map(|seconds| Ttl::Micros(seconds * 1_000_000)),
        3 => any::<u16>().prop_map(Ttl::Share),
        1 => TTLS_US.prop_map(Ttl::Micros),
    ]
}

fn actual() -> impl Strategy<Value = Actual> {
    prop_oneof![
        3 => Just(Actual::Zero),
        1 => Just(Actual::All),
        4 => any::<u16>().prop_map(Actual::Share),
        1 => (1..=20u64).prop_map(Actual::More),
    ]
}
