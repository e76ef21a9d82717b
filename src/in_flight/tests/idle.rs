//! Whatever happened, an idle key is forgotten once the store answers.

use proptest::prelude::*;

use super::{Caller, Key, MS, TTL_US, timeout};
use crate::error::Error;
use crate::in_flight::key_state::Step;
use crate::in_flight::waiting::PermitGrant;
use crate::local::on_failure::OnFailure;
use crate::quota::Quota;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A caller that waits for the second number of ms, if any.
    Acquire(u64, Option<u64>),
    /// The driver looks at the key.
    Step,
    /// The store answers the message in flight, and admits at most so many acquires.
    Reply(u64),
    Fail(Failure),
    Release,
    /// A group takes its turn, and its message is answered, not answered or not sent.
    Group(Option<bool>),
    Heartbeat,
    /// The lease ends, and another one begins.
    Lapse,
    Advance(u64),
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    NoReply,
    NotSent,
    Lapsed,
    Stale,
    Corrupt,
}

fn event() -> impl Strategy<Value = Event> {
    use Failure::{Corrupt, Lapsed, NoReply, NotSent, Stale};
    let failure = prop::sample::select(&[NoReply, NoReply, NotSent, Lapsed, Stale, Corrupt][..]);
    prop_oneof![
        4 => (1..=3u64, prop::option::of(1..=500u64)).prop_map(|(cost, wait)| Event::Acquire(cost, wait)),
        6 => Just(Event::Step),
        4 => (0..=3u64).prop_map(Event::Reply),
        3 => failure.prop_map(Event::Fail),
        3 => Just(Event::Release),
        2 => prop::option::of(any::<bool>()).prop_map(Event::Group),
        2 => Just(Event::Heartbeat),
        1 => Just(Event::Lapse),
        3 => (1..=2 * TTL_US).prop_map(Event::Advance),
    ]
}

struct History {
    key: Key,
    /// The acquires of the message in flight.
    sent: Option<u64>,
    callers: Vec<Caller>,
    grants: Vec<PermitGrant>,
}

impl History {
    fn collect_grants(&mut self) {
        let answers = self.callers.iter_mut().filter_map(Caller::answer);
        self.grants.extend(answers.filter_map(|answer| answer.grant()));
    }

    fn play(&mut self, event: Event) {
        let now = self.key.now;
        match event {
            Event::Acquire(cost, wait_ms) => {
                let caller = self.key.acquire(cost, wait_ms.map(|ms| ms * MS));
                self.callers.push(caller);
            }
            Event::Step => {
                if let Step::Send(plan) = self.key.state.step(&now) {
                    self.sent = Some(plan.n);
                }
            }
            Event::Reply(most) => {
                if let Some(n) = self.sent.take() {
                    self.key.reply(most.min(n), n, 0);
                }
            }
            Event::Fail(failure) => {
                if self.sent.take().is_some() {
                    self.key.fail(match failure {
                        Failure::NoReply => timeout(),
                        Failure::NotSent => Error::breaker_open(),
                        Failure::Lapsed => Error::lapsed_lease(),
                        Failure::Stale => Error::stale_message(),
                        Failure::Corrupt => Error::from_script("STATE held"),
                    });
                }
            }
            Event::Release => {
                if let Some(grant) = self.grants.pop() {
                    self.key.state.release(&grant, now.now_us, None);
                }
            }
            Event::Group(is_answered) => self.group(is_answered),
            Event::Heartbeat => {
                self.key.state.prompt(&now, 0);
            }
            Event::Lapse => {
                self.key.state.lapse();
                self.key.now.lease = now.lease.map(|lease| lease + 1);
            }
            Event::Advance(us) => self.key.advance(us),
        }
        self.collect_grants();
    }

    fn group(&mut self, is_answered: Option<bool>) {
        let (Key { state, now, terms }, sent) = (&mut self.key, self.sent.is_some());
        if sent || state.is_busy() {
            return;
        }
        let (sender, _turn) = tokio::sync::oneshot::channel();
        state.turns.push_back(sender);
        if !state.grant_turn() {
            return;
        }
        let lease = now.lease.unwrap_or_default();
        state.begin_turn(lease, now.now_us);
        match is_answered {
            Some(true) => {
                let admitted = std::slice::from_ref(&*terms);
                self.grants.extend(state.turn_answered(lease, admitted, None, now));
            }
            Some(false) => drop(state.turn_answered(lease, &[], Some(&timeout()), now)),
            None => {}
        }
        state.end_turn(now);
    }

    /// All callers leave and all permits are released. From now on the store answers.
    fn idle(&mut self) {
        self.callers.clear();
        while let Some(grant) = self.grants.pop() {
            self.key.state.release(&grant, self.key.now.now_us, None);
        }
        self.key.advance(1_000 * MS);
        for _ in 0..20 {
            match self.key.state.step(&self.key.now) {
                Step::Send(plan) => drop(self.key.reply(0, plan.n, 0)),
                Step::Wait(_) if self.sent.take().is_some() => drop(self.key.reply(0, 1, 0)),
                Step::Wait(_) => self.key.advance(1_000 * MS),
                Step::Rest => return,
            }
        }
        panic!("the driver does not rest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn key_that_is_idle_for_two_ttls_is_forgotten(
        events in prop::collection::vec(event(), 1..60),
        policy in prop::sample::select(&[OnFailure::Error, OnFailure::Open, OnFailure::Local][..]),
    ) {
        let mut key = Key::new(Quota::in_flight(4));
        key.terms.on_failure = policy;
        let mut history = History { key, sent: None, callers: Vec::new(), grants: Vec::new() };
        events.into_iter().for_each(|event| history.play(event));
        for _ in 0..6 {
            history.idle();
            history.key.advance(TTL_US / 3);
            history.key.state.prompt(&history.key.now, 0);
        }
        history.idle();
        prop_assert!(history.key.state.is_unused(&history.key.now), "{:?}", history.key.state);
    }
}
