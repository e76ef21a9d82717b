//! Acquires, releases, and the order of callers.

use tokio::sync::oneshot;

use super::{DEADLINE_US, Key, MS};
use crate::error::Error;
use crate::in_flight::waiting::AcquireAnswer;
use crate::quota::Quota;

#[test]
fn equal_acquires_at_the_front_travel_in_one_message() {
    let mut key = Key::new(Quota::in_flight(10));
    let mut callers: Vec<_> = (0..3).map(|_| key.acquire(2, None)).collect();
    let _unlike = key.acquire(1, None);
    callers.push(key.acquire(2, None));
    let plan = key.sent();
    assert_eq!((plan.n, plan.keep, plan.terms.unwrap().cost), (3, 0, 2));
    key.reply(2, 3, 6);
    assert_eq!([callers[0].granted().units, callers[1].granted().units], [2, 2]);
    assert!(callers[2].is_denied());
    let plan = key.sent();
    assert_eq!((plan.n, plan.keep, plan.terms.unwrap().cost), (1, 4, 1));
}

#[test]
fn message_asks_for_no_more_acquires_than_an_unused_key_admits() {
    let mut key = Key::new(Quota::in_flight(5));
    let _callers: Vec<_> = (0..9).map(|_| key.acquire(2, Some(MS))).collect();
    assert_eq!(key.sent().n, 2);
}

#[test]
fn one_message_is_in_flight_and_releases_travel_with_the_next_acquire() {
    let mut key = Key::new(Quota::in_flight(3));
    let terms = key.terms.clone();
    let first = key.admit(terms.clone());
    let second = key.admit(terms);
    let mut third = key.acquire(1, None);
    assert_eq!(key.sent().keep, 2);
    key.state.release(&first, key.now.now_us, None);
    key.state.release(&second, key.now.now_us, None);
    let mut fourth = key.acquire(1, None);
    key.assert_waits();
    key.reply(1, 1, 2);
    third.granted();
    let plan = key.sent();
    assert_eq!((plan.n, plan.keep), (1, 1));
    key.reply(1, 1, 1);
    fourth.granted();
    key.assert_rests();
}

#[test]
fn release_alone_is_sent_after_5_ms_and_at_once_if_its_caller_waits() {
    let mut key = Key::new(Quota::in_flight(3));
    let terms = key.terms.clone();
    let (first, second) = (key.admit(terms.clone()), key.admit(terms));
    key.state.release(&first, key.now.now_us, None);
    assert_eq!(key.assert_waits(), Some(key.now.now_us + 5 * MS));
    key.advance(5 * MS);
    let plan = key.sent();
    assert_eq!((plan.n, plan.keep), (0, 1));
    key.reply(0, 0, 1);
    let (reporter, mut reported) = oneshot::channel();
    key.state.release(&second, key.now.now_us, Some(reporter));
    assert_eq!(key.sent().keep, 0);
    assert!(reported.try_recv().is_err());
    key.reply(0, 0, 0);
    assert!(reported.try_recv().unwrap().is_ok());
    key.assert_rests();
    assert!(key.state.is_unused(&key.now));
}

#[test]
fn release_in_this_process_is_offered_to_its_waiting_callers_at_once() {
    let mut key = Key::new(Quota::in_flight(1));
    let terms = key.terms.clone();
    let held = key.admit(terms);
    let mut waiting = key.acquire(1, Some(1_000 * MS));
    key.sent();
    key.reply(0, 1, 1);
    assert!(key.assert_waits().unwrap() > key.now.now_us);
    key.state.release(&held, key.now.now_us, None);
    let plan = key.sent();
    assert_eq!((plan.n, plan.keep), (1, 0));
    key.reply(1, 1, 0);
    waiting.granted();
}

#[test]
fn units_of_a_caller_that_left_go_to_the_next_or_are_released() {
    let mut key = Key::new(Quota::in_flight(4));
    let gone = key.acquire(1, None);
    let lost = key.acquire(1, None);
    assert_eq!(key.sent().n, 2);
    key.state.leave(gone.id, key.now.now_us);
    drop(lost);
    let mut next = key.acquire(1, None);
    key.reply(2, 2, 0);
    assert_eq!(next.granted().units, 1);
    assert_eq!(key.state.held.total(), 1);
    assert_eq!(key.sent().keep, 1);
    key.reply(0, 0, 1);
    key.assert_rests();
}

#[test]
fn denied_callers_that_wait_keep_their_order_and_no_caller_overtakes_them() {
    let mut key = Key::new(Quota::in_flight(4));
    let mut large = key.acquire(4, Some(1_000 * MS));
    key.sent();
    key.reply(0, 4, 2);
    let mut small = key.acquire(1, Some(1_000 * MS));
    key.assert_waits();
    let mut once = key.acquire(1, None);
    assert_eq!(key.sent().terms.unwrap().cost, 4, "the front is asked for again");
    key.reply(0, 1, 2);
    assert!(once.is_denied());
    assert!(small.answer().is_none());
    let until_us = key.assert_waits().unwrap();
    assert!(until_us > key.now.now_us && until_us <= key.now.now_us + 15 * MS);
    key.now.now_us = until_us;
    key.sent();
    key.reply(1, 1, 0);
    large.granted();
    assert_eq!(key.sent().terms.unwrap().cost, 1);
}

#[test]
fn caller_gives_up_with_the_last_denial() {
    let mut key = Key::new(Quota::in_flight(1));
    let mut caller = key.acquire(1, Some(30 * MS));
    key.sent();
    key.reply(0, 1, 1);
    key.advance(29 * MS);
    key.sent();
    key.reply(0, 1, 1);
    assert!(caller.answer().is_none());
    key.advance(MS);
    key.assert_rests();
    assert!(matches!(caller.answer(), Some(AcquireAnswer::Decided { grant: None, .. })));
}

#[test]
fn denial_of_callers_that_have_left_answers_no_later_caller() {
    let mut key = Key::new(Quota::in_flight(1));
    let denied = key.acquire(1, Some(1_000 * MS));
    key.sent();
    key.reply(0, 1, 1);
    key.state.leave(denied.id, key.now.now_us);
    let mut later = key.acquire(1, Some(10 * MS));
    key.sent();
    key.advance(10 * MS);
    key.assert_waits();
    assert!(later.answer().is_none(), "the store may still decide");
    key.advance(DEADLINE_US - 10 * MS);
    key.assert_waits();
    assert!(matches!(later.answer(), Some(AcquireAnswer::Failed(error)) if error.is_timeout()));
}

#[test]
fn close_answers_the_releases_in_flight_and_those_behind() {
    for (error, is_released) in [(Error::shut_down(), true), (Error::runtime_ended(), false)] {
        let mut key = Key::new(Quota::in_flight(2));
        let terms = key.terms.clone();
        let held = [key.admit(terms.clone()), key.admit(terms)];
        let (first, mut in_flight) = oneshot::channel();
        key.state.release(&held[0], key.now.now_us, Some(first));
        key.sent();
        let (second, mut behind) = oneshot::channel();
        key.state.release(&held[1], key.now.now_us, Some(second));
        key.state.close(&error);
        assert_eq!(in_flight.try_recv().unwrap().is_ok(), is_released);
        assert_eq!(behind.try_recv().unwrap().is_ok(), is_released);
    }
}
