//! Random sequences of calls. Proptest generates and shrinks a [`Plan`]. [`Plan::play`] makes it concrete
//! with the reference's answers, so that a pause can last exactly as long as a denial reported.

use proptest::prelude::*;
use tidegate::algorithm::MAX_DEBT;
use tidegate::quota::Calendar;
use tidegate::reference;
use tidegate::reference::{Before, Record, Taken};
use tidegate::{Quota, Rate};

use std::borrow::Cow;
use std::time::Duration;

pub const STEPS: usize = 50;
const HOUR_US: i64 = 3_600_000_000;
/// In this range every time is exact in a double, and no window starts before 1970.
const TIMES_US: std::ops::Range<u64> = 1 << 50..1 << 52;

/// Returns the number of random sequences for each property, from `TIDEGATE_SEQUENCES`. Properties that cost
/// more or find less use a part of it.
pub fn sequences() -> u32 {
    std::env::var("TIDEGATE_SEQUENCES").map_or(500, |count| count.parse().unwrap())
}

/// Returns whether this is a long run, as in `scripts/test full`.
pub fn is_long_run() -> bool {
    sequences() >= 5_000
}

/// The quotas to generate: each algorithm, and each option that changes its arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    ClockWindow,
    CalendarWindow,
    SlidingLog,
    CountingLog,
    SlidingCounter,
}

/// Calendars with changes of daylight-saving time, half hours, anchors that months lack, and a skipped midnight.
const CALENDARS: [&str; 12] = [
    "day@UTC",
    "day@Europe/Berlin",
    "day@Australia/Lord_Howe",
    "day@Africa/Cairo",
    "week+7@America/St_Johns",
    "week@UTC",
    "month@UTC",
    "month+31@America/New_York",
    "month+15@Asia/Kolkata",
    "quarter+02-30@Pacific/Chatham",
    "year@Pacific/Apia",
    "year+02-29@Europe/London",
];

impl Family {
    pub const ALL: [Self; 8] = [
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::FixedWindow,
        Self::ClockWindow,
        Self::CalendarWindow,
        Self::SlidingLog,
        Self::CountingLog,
        Self::SlidingCounter,
    ];

    /// Generates one to three limits that share their keys, as when an operator changes a limit in place.
    pub fn limits(self) -> BoxedStrategy<Vec<Quota>> {
        let count = prop_oneof![2 => 1..=1usize, 1 => 2..=3usize];
        match self {
            Self::TokenBucket | Self::LeakyBucket => count
                .prop_flat_map(|count| prop::collection::vec((limit(), rate()), count))
                .prop_map(move |limits| {
                    limits.into_iter().map(|(limit, rate)| self.bucket(limit, rate)).collect()
                })
                .boxed(),
            _ => (count, window(), any::<u16>())
                .prop_flat_map(|(count, window_us, offset)| {
                    (prop::collection::vec(limit(), count), Just(window_us), Just(offset))
                })
                .prop_map(move |(limits, window_us, offset)| {
                    limits.into_iter().map(|limit| self.window(limit, window_us, offset)).collect()
                })
                .boxed(),
        }
    }

    /// Returns a bucket with the largest capacity up to `limit` that this rate can fill.
    fn bucket(self, limit: u64, rate: Rate) -> Quota {
        let build = match self {
            Self::LeakyBucket => Quota::try_leaky_bucket,
            _ => Quota::try_token_bucket,
        };
        (0..=48).find_map(|halvings| build((limit >> halvings).max(1), rate).ok()).unwrap()
    }

    fn window(self, limit: u64, window_us: u64, offset: u16) -> Quota {
        let window = Duration::from_micros(window_us);
        match self {
            Self::FixedWindow => Quota::fixed_window(limit, window),
            Self::ClockWindow => {
                let offset = Duration::from_micros(share(window_us - 1, offset));
                Quota::fixed_window(limit, window).aligned_to_clock_at(offset)
            }
            Self::CalendarWindow => {
                let calendar: Calendar = CALENDARS[usize::from(offset) % CALENDARS.len()].parse().unwrap();
                Quota::calendar_window(limit, calendar)
            }
            Self::SlidingLog => Quota::sliding_log(limit, window),
            Self::CountingLog => Quota::sliding_log(limit, window).count_denied(),
            Self::SlidingCounter => Quota::sliding_counter(limit.min((1 << 52) / window_us), window),
            Self::TokenBucket | Self::LeakyBucket => unreachable!("a bucket has a rate"),
        }
    }
}

fn limit() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(1),
        4 => 2..=10u64,
        3 => 11..=1_000u64,
        1 => (10..=48u32, any::<u64>()).prop_map(|(bits, raw)| (raw % (1 << bits)).max(1)),
    ]
}

/// Generates rates from 1 per day to 1,000,000 per second, many of them irreducible.
fn rate() -> impl Strategy<Value = Rate> {
    prop_oneof![
        1 => Just(Rate::per_day(1)),
        1 => Just(Rate::per_second(1_000_000)),
        2 => (1..=1_000_000u64).prop_map(Rate::per_second),
        2 => (1..=10_000u64).prop_map(Rate::per_minute),
        2 => (1..=1_000_000u64, 1..=86_400_000_000u64)
            .prop_map(|(units, us)| Rate::new(units, Duration::from_micros(us))),
    ]
}

fn window() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(1_000),
        1 => Just(86_400_000_000),
        2 => (1..=3_600u64).prop_map(|seconds| seconds * 1_000_000),
        3 => 1_000..=100_000_000u64,
        1 => 1_000..=315_360_000_000_000u64,
    ]
}

/// Returns the part `share / 65535` of a number, from 0 to all of it.
fn share(whole: u64, share: u16) -> u64 {
    (u128::from(whole) * u128::from(share) / 0xffff) as u64
}

#[derive(Clone, Debug)]
pub struct Plan {
    /// For each key, the limits that calls use.
    pub keys: Vec<Vec<Quota>>,
    pub start_us: u64,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
pub enum Pause {
    None,
    Micros(u64),
    /// Part of the time to fill, drain or roll over.
    Share(u16),
    /// Part of the same time for one unit of the limit.
    UnitShare(u16),
    /// The wait that the last take reported, plus this many µs.
    RetryAfter(i64),
    ResetAfter(i64),
    /// The server's clock is stepped.
    Step(i64),
    StepBack(u16),
}

#[derive(Clone, Copy, Debug)]
pub enum Units {
    One,
    Few(u64),
    Share(u16),
    /// More than any limit.
    Huge(u64),
}

#[derive(Clone, Debug)]
pub struct Step {
    pub pause: Pause,
    pub action: Action,
}

/// An index of a key or a limit is taken modulo their number.
#[derive(Clone, Debug)]
pub enum Action {
    Take(Vec<(u64, Vec<Item>)>),
    Penalize(TargetIndex, Units),
    /// The debt is capped at this number of limits.
    ChargeUsed(TargetIndex, Units, u64),
    /// The stamp is that of an earlier take on the key, counted from the newest, or `None`.
    Refund(TargetIndex, Units, Option<u8>),
    Block(TargetIndex, u16),
    Unblock(TargetIndex),
    Reset(TargetIndex),
}

#[derive(Clone, Copy, Debug)]
pub struct TargetIndex {
    key: u8,
    limit: u8,
}

#[derive(Clone, Copy, Debug)]
pub struct Item {
    target: TargetIndex,
    units: Units,
    is_free: bool,
    max_delay: Option<u16>,
}

/// Generates 50 steps on two keys of one limit, which run through the scripts for one algorithm.
pub fn uniform(family: Family) -> impl Strategy<Value = Plan> {
    plan(family.limits().prop_map(|limits| vec![limits.clone(), limits]), 1)
}

/// Like [`uniform`], but every other step is a penalty beyond any limit, and pauses are short. Such debts
/// must be bounded to stay exact.
pub fn indebted(families: impl Into<Cow<'static, [Family]>>) -> impl Strategy<Value = Plan> {
    let plans = prop::sample::select(families).prop_flat_map(uniform);
    (plans, MAX_DEBT / 2..=MAX_DEBT).prop_map(|(mut plan, debt)| {
        for step in plan.steps.iter_mut().step_by(2) {
            step.action = Action::Penalize(TargetIndex { key: 0, limit: 0 }, Units::Huge(debt));
        }
        for step in &mut plan.steps[..40] {
            step.pause = Pause::Micros(1);
        }
        plan
    })
}

/// Generates 50 steps on up to four keys, each with its own algorithm, taken in groups.
pub fn mixed() -> impl Strategy<Value = Plan> {
    let limits = prop::sample::select(&Family::ALL[..]).prop_flat_map(Family::limits);
    plan(prop::collection::vec(limits, 1..=4), 4)
}

fn plan(keys: impl Strategy<Value = Vec<Vec<Quota>>>, max_items: usize) -> impl Strategy<Value = Plan> {
    let start = 1_577_836_800_000_000..1_893_456_000_000_000u64;
    (keys, start, prop::collection::vec(step(max_items), STEPS)).prop_map(|(keys, start_us, steps)| Plan {
        keys,
        start_us,
        steps,
    })
}

fn step(max_items: usize) -> impl Strategy<Value = Step> {
    let off_by_one = || -1..=1i64;
    let pause = prop_oneof![
        6 => Just(Pause::None),
        2 => (1..=1_000_000u64).prop_map(Pause::Micros),
        2 => any::<u16>().prop_map(Pause::Share),
        4 => any::<u16>().prop_map(Pause::UnitShare),
        5 => off_by_one().prop_map(Pause::RetryAfter),
        3 => off_by_one().prop_map(Pause::ResetAfter),
        1 => prop::sample::select(&[-HOUR_US, HOUR_US, -1, -1_000_000, 1_000_000][..]).prop_map(Pause::Step),
        1 => any::<u16>().prop_map(Pause::StepBack),
    ];
    let n = prop_oneof![6 => Just(1), 1 => Just(0), 3 => 2..=50u64];
    let groups = (n, prop::collection::vec(item(), 1..=max_items));
    let first_limit = |key| TargetIndex { key, limit: 0 };
    let index = (any::<u8>(), any::<u8>()).prop_map(|(key, limit)| TargetIndex { key, limit });
    let action = prop_oneof![
        30 => prop::collection::vec(groups, 1..=2).prop_map(Action::Take),
        3 => (index.clone(), penalties()).prop_map(|(at, units)| Action::Penalize(at, units)),
        3 => (index.clone(), penalties(), 0..=11u64)
            .prop_map(|(at, units, debt_cap)| Action::ChargeUsed(at, units, debt_cap)),
        5 => (index.clone(), refunds(), prop::option::weighted(0.8, 0..8u8))
            .prop_map(|(at, units, stamp)| Action::Refund(at, units, stamp)),
        1 => (index.clone(), any::<u16>()).prop_map(|(at, long)| Action::Block(at, long)),
        1 => index.prop_map(Action::Unblock),
        1 => any::<u8>().prop_map(move |key| Action::Reset(first_limit(key))),
    ];
    (pause, action).prop_map(|(pause, action)| Step { pause, action })
}

fn item() -> impl Strategy<Value = Item> {
    let limit = prop_oneof![3 => Just(0), 1 => any::<u8>()];
    let max_delay = prop_oneof![4 => Just(None), 1 => Just(Some(0)), 3 => any::<u16>().prop_map(Some)];
    (any::<u8>(), limit, units(), prop::bool::weighted(0.1), max_delay).prop_map(
        |(key, limit, units, is_free, max_delay)| Item {
            target: TargetIndex { key, limit },
            units,
            is_free,
            max_delay,
        },
    )
}

fn units() -> impl Strategy<Value = Units> {
    prop_oneof![
        4 => Just(Units::One),
        2 => (2..=5u64).prop_map(Units::Few),
        1 => any::<u16>().prop_map(Units::Share),
    ]
}

/// Generates units to refund, including 0.
fn refunds() -> impl Strategy<Value = Units> {
    prop_oneof![9 => units(), 1 => Just(Units::Few(0))]
}

fn penalties() -> impl Strategy<Value = Units> {
    prop_oneof![9 => units(), 1 => (1..=MAX_DEBT).prop_map(Units::Huge)]
}

impl Units {
    fn of(self, limit: u64) -> u64 {
        match self {
            Self::One => 1,
            Self::Few(units) => units.min(limit),
            Self::Share(part) => share(limit, part).max(1),
            Self::Huge(units) => units,
        }
    }
}

/// One call as it is sent.
#[derive(Clone, Debug)]
pub struct Call {
    pub now_us: u64,
    pub verb: Verb,
}

#[derive(Clone, Debug)]
pub enum Verb {
    Take(Vec<Group>),
    Penalize(Target, u64),
    /// Units, and the most units that are used afterwards.
    ChargeUsed(Target, u64, u64),
    Refund(Target, u64, Option<u64>),
    /// 0 lifts the block.
    Block(Target, u64),
    Reset(Target),
}

#[derive(Clone, Debug)]
pub struct Group {
    pub n: u64,
    pub items: Vec<Part>,
}

#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub key: usize,
    pub quota: Quota,
}

#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub target: Target,
    pub cost: u64,
    pub max_delay: Option<u64>,
}

impl Call {
    /// Returns the keys that the call names, in order.
    pub fn targets(&self) -> Vec<Target> {
        match &self.verb {
            Verb::Take(groups) => {
                groups.iter().flat_map(|group| &group.items).map(|item| item.target).collect()
            }
            Verb::Penalize(at, _)
            | Verb::ChargeUsed(at, ..)
            | Verb::Refund(at, ..)
            | Verb::Block(at, _)
            | Verb::Reset(at) => vec![*at],
        }
    }
}

/// The number of admitted checks, or of charged units, and the state of each item before.
pub type Outcome = (u64, Vec<Before>);

/// The reference implementation, with a record for each key.
#[derive(Clone, Debug)]
pub struct Reference {
    pub records: Vec<Record>,
}

impl Reference {
    pub fn new(keys: usize) -> Self {
        Self { records: vec![Record::default(); keys] }
    }

    /// Returns one outcome for each group of a take, and for a charge of used units.
    pub fn call(&mut self, call: &Call) -> Vec<Outcome> {
        let now = call.now_us;
        for target in call.targets() {
            let record = &mut self.records[target.key];
            if record.has_expired(now) {
                *record = Record::default();
            }
        }
        match &call.verb {
            Verb::Take(groups) => return groups.iter().map(|group| self.take(group, now)).collect(),
            Verb::Penalize(at, units) => self.records[at.key].penalize(&at.quota, *units, now),
            Verb::ChargeUsed(at, units, most) => {
                let (charged, before) = self.records[at.key].charge_used(&at.quota, *units, *most, now);
                return vec![(charged, vec![before])];
            }
            Verb::Refund(at, units, stamp) => {
                self.records[at.key].refund(&at.quota, *units, *stamp, now);
            }
            Verb::Block(at, 0) => self.records[at.key].block(&at.quota, 0, now),
            Verb::Block(at, for_us) => self.records[at.key].block(&at.quota, now + for_us, now),
            Verb::Reset(at) => self.records[at.key] = Record::default(),
        }
        Vec::new()
    }

    fn take(&mut self, group: &Group, now: u64) -> Outcome {
        let mut records: Vec<Record> =
            group.items.iter().map(|item| std::mem::take(&mut self.records[item.target.key])).collect();
        let mut items: Vec<reference::Item<'_>> = group
            .items
            .iter()
            .zip(&mut records)
            .map(|(item, record)| reference::Item::new(&item.target.quota, record, item.cost, item.max_delay))
            .collect();
        let k = reference::take(&mut items, group.n, now);
        let before = items.iter().map(|item| item.before).collect();
        for (item, record) in group.items.iter().zip(records) {
            self.records[item.target.key] = record;
        }
        (k, before)
    }
}

/// One call and the reference's result.
#[derive(Clone, Debug)]
pub struct Played {
    pub call: Call,
    pub outcomes: Vec<Outcome>,
    /// The records after the call, for each key that it names.
    pub records: Vec<Record>,
}

/// Formats a failure: the last call, and the earlier calls on the same keys.
pub fn told(played: &[Played]) -> String {
    let keys: Vec<usize> = played[played.len() - 1].call.targets().iter().map(|target| target.key).collect();
    let on_same = |played: &&Played| played.call.targets().iter().any(|target| keys.contains(&target.key));
    played
        .iter()
        .filter(on_same)
        .map(|played| format!("{:?} -> {:?}\n", played.call, played.outcomes))
        .collect()
}

impl Plan {
    pub fn play(&self) -> Vec<Played> {
        let mut reference = Reference::new(self.keys.len());
        let mut player = Player { plan: self, now: self.start_us, stamps: Vec::new(), waits: (0, 0) };
        self.steps
            .iter()
            .map(|step| {
                player.pause(step.pause);
                let call = Call { now_us: player.now, verb: player.verb(&step.action) };
                let outcomes = reference.call(&call);
                player.record(&call, &outcomes);
                let targets = call.targets();
                let records = targets.iter().map(|target| reference.records[target.key].clone()).collect();
                Played { call, outcomes, records }
            })
            .collect()
    }
}

struct Player<'a> {
    plan: &'a Plan,
    now: u64,
    /// The stamps of takes with their keys, newest last.
    stamps: Vec<(usize, u64)>,
    /// The last reported `retry_after` and `reset_after`.
    waits: (u64, u64),
}

impl Player<'_> {
    fn pause(&mut self, pause: Pause) {
        let quota = &self.plan.keys[0][0];
        let (retry_after, reset_after) = self.waits;
        let by = match pause {
            Pause::None => 0,
            Pause::Micros(us) => us as i64,
            Pause::Share(part) => share(time_scale(quota), part) as i64,
            Pause::UnitShare(part) => share(2 * time_scale(quota) / quota.limit() + 2, part) as i64,
            Pause::RetryAfter(more) => (retry_after as i64 + more).max(0),
            Pause::ResetAfter(more) => (reset_after as i64 + more).max(0),
            Pause::Step(us) => us,
            Pause::StepBack(part) => -(share(time_scale(quota), part) as i64),
        };
        self.now = self.now.saturating_add_signed(by).clamp(TIMES_US.start, TIMES_US.end);
    }

    fn target(&self, index: TargetIndex) -> Target {
        let key = usize::from(index.key) % self.plan.keys.len();
        let limits = &self.plan.keys[key];
        Target { key, quota: limits[usize::from(index.limit) % limits.len()] }
    }

    fn verb(&self, action: &Action) -> Verb {
        match action {
            Action::Take(groups) => {
                Verb::Take(groups.iter().map(|(n, items)| self.group(*n, items)).collect())
            }
            Action::Penalize(index, units) => {
                let target = self.target(*index);
                Verb::Penalize(target, units.of(target.quota.limit()))
            }
            Action::ChargeUsed(index, units, debt_cap) => {
                let target = self.target(*index);
                let limit = target.quota.limit();
                Verb::ChargeUsed(target, units.of(limit), limit * (debt_cap + 1))
            }
            Action::Refund(index, units, back) => {
                let target = self.target(*index);
                let mut stamps = self.stamps.iter().rev().filter(|(key, _)| *key == target.key);
                let stamp = back.and_then(|back| stamps.nth(usize::from(back))).map(|(_, stamp)| *stamp);
                Verb::Refund(target, units.of(target.quota.limit()), stamp)
            }
            Action::Block(index, part) => {
                let target = self.target(*index);
                Verb::Block(target, share(time_scale(&target.quota), *part).max(1))
            }
            Action::Unblock(index) => Verb::Block(self.target(*index), 0),
            Action::Reset(index) => Verb::Reset(self.target(*index)),
        }
    }

    /// Each key occurs once per group, since the limiter merges duplicates.
    fn group(&self, n: u64, items: &[Item]) -> Group {
        let is_single = items.len() == 1;
        let mut parts: Vec<Part> = Vec::new();
        for item in items {
            let target = self.target(item.target);
            if parts.iter().all(|part| part.target.key != target.key) {
                parts.push(Part {
                    target,
                    cost: if item.is_free && !is_single { 0 } else { item.units.of(target.quota.limit()) },
                    max_delay: item.max_delay.map(|part| share(time_scale(&target.quota), part)),
                });
            }
        }
        Group { n, items: parts }
    }

    fn record(&mut self, call: &Call, outcomes: &[Outcome]) {
        let Verb::Take(groups) = &call.verb else { return };
        self.waits = (0, 0);
        for (group, (k, before)) in groups.iter().zip(outcomes) {
            for (item, before) in group.items.iter().zip(before) {
                let stamp = item.target.quota.kind().algorithm().stamp(before.raw, self.now);
                self.stamps.push((item.target.key, stamp));
                let answer = taken(group, item, *k, *before, self.now).answer(group.n.saturating_sub(1));
                self.waits =
                    (self.waits.0.max(answer.retry_after_us), self.waits.1.max(answer.reset_after_us));
            }
        }
    }
}

pub fn taken<'a>(group: &Group, item: &'a Part, k: u64, before: Before, now: u64) -> Taken<'a> {
    Taken {
        quota: &item.target.quota,
        cost: item.cost,
        max_delay: item.max_delay,
        n: group.n,
        k,
        before,
        now,
    }
}

/// Returns the time to fill or drain a bucket, or the length of a window.
pub fn time_scale(quota: &Quota) -> u64 {
    quota.kind().algorithm().window_us()
}

/// Defines a test for each family, which passes the family to a function.
#[macro_export]
macro_rules! for_each_family {
    ($check:expr) => {
        $crate::for_each_family!($check;
            token_bucket TokenBucket, leaky_bucket LeakyBucket,
            fixed_window_from_the_first_hit FixedWindow, fixed_window_by_the_clock ClockWindow,
            fixed_window_by_a_calendar CalendarWindow,
            sliding_log SlidingLog, sliding_log_that_counts_denied_checks CountingLog,
            sliding_counter SlidingCounter);
    };
    ($check:expr; $($name:ident $family:ident),+) => {
        $(
            #[test]
            fn $name() {
                $check($crate::plan::Family::$family);
            }
        )+
    };
}

/// Defines a test for each family, which passes its plans to a function.
#[macro_export]
macro_rules! held_for_each_family {
    ($hold:ident) => {
        $crate::for_each_family!(|family| $hold($crate::plan::uniform(family)));
    };
}
