//! Groups: they have the key for one message.

use tokio::sync::oneshot;

use super::{Key, MS, out_of_memory, timeout};
use crate::error::Error;
use crate::in_flight::waiting::OnLapse;
use crate::quota::Quota;

impl Key {
    /// Gives the key to a group. Returns whether it is behind callers.
    fn lend(&mut self) -> bool {
        let (turn, mut is_behind) = oneshot::channel();
        self.state.turns.push_back(turn);
        self.assert_waits();
        is_behind.try_recv().expect("no turn")
    }

    fn end_turn(&mut self) {
        self.state.end_turn(&self.now);
    }
}

#[test]
fn group_has_the_key_for_one_message_and_alternates_with_callers() {
    let mut key = Key::new(Quota::in_flight(2));
    let (turn, mut later) = oneshot::channel();
    let mut caller = key.acquire(1, Some(1_000 * MS));
    key.lend();
    key.state.turns.push_back(turn);
    key.assert_waits();
    assert!(later.try_recv().is_err(), "one group at a time");
    key.end_turn();
    assert_eq!(key.sent().n, 1);
    key.reply(1, 1, 0);
    caller.granted();
    key.assert_waits();
    assert!(!later.try_recv().unwrap());
}

#[test]
fn group_is_behind_callers_that_were_denied_and_behind_no_others() {
    let mut key = Key::new(Quota::in_flight(2));
    let denied = key.acquire(1, Some(1_000 * MS));
    assert!(!key.lend(), "units may be free");
    key.end_turn();
    key.sent();
    key.reply(0, 1, 2);
    assert!(key.lend());
    key.end_turn();
    key.state.leave(denied.id, key.now.now_us);
    let _new = key.acquire(1, Some(1_000 * MS));
    key.state.is_after_turn = false;
    assert!(!key.lend(), "the denied caller has left");
}

#[test]
fn admission_of_a_group_without_a_reply_is_taken_back_by_the_next_message() {
    for is_cancelled in [false, true] {
        let mut key = Key::new(Quota::in_flight(2));
        key.lend();
        assert_eq!(key.state.begin_turn(1, key.now.now_us), 0);
        if !is_cancelled {
            key.state.turn_answered(1, &[], Some(&timeout()), &key.now);
        }
        key.end_turn();
        assert!(!key.state.is_unused(&key.now));
        let plan = key.sent();
        assert_eq!((plan.n, plan.keep), (0, 0));
        key.reply(0, 0, 1);
        assert_eq!(key.reported_after_doubt(), 0);
        assert!(key.state.is_unused(&key.now));
    }
}

#[test]
fn units_held_without_a_reply_are_counted_with_the_next_answer() {
    let mut key = Key::new(Quota::in_flight(2));
    key.lend();
    key.state.begin_turn(1, key.now.now_us);
    key.state.turn_answered(1, &[], Some(&timeout()), &key.now);
    let grant = key.state.grant(&key.terms, false);
    key.state.hold(&grant);
    key.end_turn();
    assert!(!key.state.is_counted(&grant));
    assert_eq!(key.sent().keep, 1);
    key.reply(0, 0, 0);
    assert!(key.state.is_counted(&grant));
}

#[test]
fn group_admitted_under_a_lease_that_has_ended_holds_its_units_under_the_next_one() {
    for on_lapse in [OnLapse::Restore, OnLapse::Lost] {
        let mut key = Key::new(Quota::in_flight(2));
        key.terms.on_lapse = on_lapse;
        key.lend();
        key.state.begin_turn(1, key.now.now_us);
        key.state.lapse();
        key.now.lease = None;
        let admitted = std::slice::from_ref(&key.terms);
        let grant = key.state.turn_answered(1, admitted, None, &key.now).remove(0);
        key.end_turn();
        assert!(!key.state.is_counted(&grant));
        assert_eq!(key.sent().keep, 1);
        key.now.lease = Some(2);
        key.reply(0, 0, 0);
        assert!(key.state.is_counted(&grant));
        key.assert_rests();
    }
}

#[test]
fn release_in_a_message_that_failed_is_repeated_at_once() {
    let mut key = Key::new(Quota::in_flight(2));
    let terms = key.terms.clone();
    let held = key.admit(terms);
    key.state.release(&held, key.now.now_us, None);
    key.lend();
    assert_eq!(key.state.begin_turn(1, key.now.now_us), 0);
    key.state.turn_answered(1, &[], Some(&Error::from_script("STATE held")), &key.now);
    key.end_turn();
    assert_eq!(key.sent().keep, 0);
}

#[test]
fn group_without_memory_has_reported_what_is_kept() {
    let mut key = Key::new(Quota::in_flight(2));
    let terms = key.terms.clone();
    let held = key.admit(terms);
    let (reporter, mut released) = oneshot::channel();
    key.state.release(&held, key.now.now_us, Some(reporter));
    key.lend();
    assert_eq!(key.state.begin_turn(1, key.now.now_us), 0);
    key.state.turn_answered(1, &[], Some(&out_of_memory()), &key.now);
    key.end_turn();
    released.try_recv().unwrap().unwrap();
    assert!(key.state.is_unused(&key.now));
}
