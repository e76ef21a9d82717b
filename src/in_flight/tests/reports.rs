//! Messages without a reply, failure policies and lapses.

use smallvec::smallvec;

use super::{DEADLINE_US, Key, MS, TTL_US, out_of_memory, timeout};
use crate::batch::Share;
use crate::error::Error;
use crate::in_flight::waiting::{AcquireAnswer, AcquireTerms, OnLapse};
use crate::local::on_failure::OnFailure;
use crate::quota::Quota;
use crate::quota::reference::Before;
use crate::store::Outcome;

#[test]
fn caller_that_gives_up_while_its_message_is_in_flight_gets_its_failure_policy() {
    let mut key = Key::new(Quota::in_flight(1));
    let mut caller = key.acquire(1, None);
    key.sent();
    assert_eq!(key.assert_waits(), Some(key.now.now_us + DEADLINE_US));
    key.advance(DEADLINE_US);
    key.assert_waits();
    assert!(matches!(caller.answer(), Some(AcquireAnswer::Failed(error)) if error.is_timeout()));
    key.reply(1, 1, 0);
    assert_eq!(key.sent().keep, 0, "the admitted unit has no owner");
}

#[test]
fn message_without_memory_for_its_acquires_has_reported_what_is_kept() {
    let mut key = Key::new(Quota::in_flight(5));
    let terms = key.terms.clone();
    let (kept, released) = (key.admit(terms.clone()), key.admit(terms));
    key.state.release(&released, key.now.now_us, None);
    let mut rejected = key.acquire(1, None);
    assert_eq!(key.sent().keep, kept.units);
    key.fail(out_of_memory());
    assert!(matches!(rejected.answer(), Some(AcquireAnswer::Failed(error)) if error.is_out_of_memory()));
    key.assert_rests();
    assert!(!key.state.prompt(&key.now, 0), "Redis counts the unit that is left");
}

#[test]
fn message_without_a_reply_leaves_the_key_unsure_until_the_next_one() {
    let mut key = Key::new(Quota::in_flight(5));
    let terms = key.terms.clone();
    let held = key.admit(terms);
    let mut lost = key.acquire(1, None);
    key.sent();
    key.fail(timeout());
    assert!(matches!(lost.answer(), Some(AcquireAnswer::Failed(error)) if error.is_timeout()));
    key.assert_rests();
    assert!(!key.state.is_unused(&key.now));
    assert!(key.state.prompt(&key.now, 0), "the heartbeat reports the units truly held");
    assert_eq!(key.sent().keep, 1);
    key.reply(0, 0, 1);
    assert!(!key.state.prompt(&key.now, 0));
    key.state.release(&held, key.now.now_us, None);
    key.advance(5 * MS);
    key.sent();
    key.fail(timeout());
    key.assert_rests();
    assert!(key.state.prompt(&key.now, 0), "a release without a reply is repeated");
    assert_eq!(key.sent().keep, 0);
    key.reply(0, 0, 0);
    assert_eq!(key.reported_after_doubt(), 0);
    assert!(key.state.is_unused(&key.now));
}

#[test]
fn key_in_doubt_is_kept_until_no_old_message_can_arrive() {
    let mut key = Key::new(Quota::in_flight(5));
    let _caller = key.acquire(1, None);
    key.sent();
    key.fail(timeout());
    key.advance(TTL_US - 10 * MS);
    let terms = key.terms.clone();
    let held = key.admit(terms);
    key.state.release(&held, key.now.now_us, None);
    key.advance(5 * MS);
    key.sent();
    key.reply(0, 0, 0);
    assert_eq!(key.reported_after_doubt(), 0);
    assert!(key.state.is_unused(&key.now));
}

#[test]
fn message_that_was_not_sent_leaves_no_doubt() {
    let mut key = Key::new(Quota::in_flight(5));
    let _caller = key.acquire(1, None);
    key.sent();
    key.fail(Error::breaker_open());
    key.assert_rests();
    assert!(key.state.is_unused(&key.now));
}

#[test]
fn local_share_counts_the_units_held_before() {
    let mut key = Key::new(Quota::in_flight(5));
    key.terms.on_failure = OnFailure::Local;
    let terms = key.terms.clone();
    let held = key.admit(AcquireTerms { cost: 2, ..terms });
    // Two instances: a share of 3 units.
    let mut callers: Vec<_> = (0..2).map(|_| key.acquire(1, None)).collect();
    key.sent();
    key.fail(timeout());
    let local = callers[0].granted();
    assert!(callers[1].is_denied());
    assert!(!key.state.is_counted(&local));
    key.state.release(&held, key.now.now_us, None);
    let mut waiting = key.acquire(2, Some(1_000 * MS));
    assert_eq!(key.sent().keep, 1);
    key.fail(timeout());
    waiting.granted();
    key.state.prompt(&key.now, 0);
    assert_eq!(key.sent().keep, 3, "the store counts the units when it answers again");
    key.reply(0, 0, 3);
    assert!(key.state.is_counted(&local));
}

#[test]
fn open_admits_and_closed_denies_while_the_store_does_not_answer() {
    let mut key = Key::new(Quota::in_flight(1));
    for (policy, is_admitted) in [(OnFailure::Open, true), (OnFailure::Closed, false)] {
        key.terms.on_failure = policy;
        let mut caller = key.acquire(1, None);
        key.sent();
        key.fail(timeout());
        assert_eq!(caller.answer().unwrap().grant().is_some(), is_admitted);
    }
    assert_eq!(key.state.held.total(), 1);
}

#[test]
fn lapsed_message_is_sent_again_under_the_next_lease_with_all_units() {
    let mut key = Key::new(Quota::in_flight(5));
    let terms = key.terms.clone();
    key.admit(AcquireTerms { on_lapse: OnLapse::Restore, cost: 2, ..terms.clone() });
    let lost = key.admit(AcquireTerms { on_lapse: OnLapse::Lost, ..terms });
    let mut caller = key.acquire(1, None);
    assert_eq!(key.sent().keep, 3);
    assert_eq!(key.state.lapse(), 3);
    key.now.lease = None;
    key.state.answered(Some(1), Err(Error::lapsed_lease()), &key.now);
    assert!(key.state.is_lost(&lost));
    let plan = key.sent();
    assert_eq!((plan.n, plan.keep), (1, 2));
    key.now.lease = Some(2);
    assert_eq!(key.reply(1, 1, 2), 2, "units counted again");
    caller.granted();
    key.state.release(&lost, key.now.now_us, None);
    assert_eq!(key.state.held.total(), 3, "a lost unit is released once");
    key.assert_rests();
}

#[test]
fn units_count_under_another_lease_only_when_a_message_of_it_is_answered() {
    let mut key = Key::new(Quota::in_flight(5));
    let terms = key.terms.clone();
    let held = key.admit(terms);
    assert!(key.state.counts_under(1));
    key.state.lapse();
    key.now.lease = Some(2);
    assert!(key.state.prompt(&key.now, 0));
    key.sent();
    key.fail(timeout());
    assert!(key.state.is_counted(&held) && !key.state.counts_under(2), "the message may have been lost");
    assert!(key.state.prompt(&key.now, 0));
    assert_eq!(key.sent().keep, 1);
    key.reply(0, 0, 1);
    assert!(key.state.counts_under(2));
    key.state.release(&held, key.now.now_us, None);
    key.advance(5 * MS);
    key.sent();
    key.fail(timeout());
    assert!(key.state.counts_under(2), "a later message without a reply takes nothing back");
}

#[test]
fn admission_under_a_lease_that_has_ended_counts_for_nothing() {
    let mut key = Key::new(Quota::in_flight(5));
    let mut caller = key.acquire(1, None);
    key.sent();
    key.state.lapse();
    key.now.lease = Some(2);
    let before = smallvec![Before::default()];
    let outcome = Outcome::new(1, before, 7);
    key.state.answered(Some(1), Ok(Share { outcome, n: 1, index: 0, sent_us: 0 }), &key.now);
    assert!(caller.answer().is_none());
    assert_eq!(key.sent().n, 1);
    key.reply(1, 1, 0);
    caller.granted();
}

#[test]
fn lease_that_lapses_again_and_again_is_a_failure() {
    let mut key = Key::new(Quota::in_flight(5));
    let mut caller = key.acquire(1, None);
    for _ in 0..4 {
        assert!(caller.answer().is_none());
        key.sent();
        key.fail(Error::lapsed_lease());
    }
    assert!(matches!(caller.answer(), Some(AcquireAnswer::Failed(error)) if error.is_unavailable()));
}

#[test]
fn key_that_was_not_reported_for_long_is_touched() {
    let mut key = Key::new(Quota::in_flight(5));
    let terms = key.terms.clone();
    key.admit(terms);
    assert!(!key.state.prompt(&key.now, key.now.now_us));
    assert!(key.state.prompt(&key.now, key.now.now_us + 1));
    let plan = key.sent();
    assert_eq!((plan.n, plan.keep), (0, 1));
    key.reply(0, 0, 1);
    key.assert_rests();
}

#[test]
fn first_message_of_a_key_that_is_abandoned_in_flight_is_corrected_later() {
    let mut key = Key::new(Quota::in_flight(5));
    let _caller = key.acquire(1, None);
    key.sent();
    key.state.close(&Error::runtime_ended());
    key.state.abandon(&key.now);
    assert!(!key.state.is_unused(&key.now));
    assert!(key.state.prompt(&key.now, 0));
    assert_eq!(key.sent().keep, 0);
    key.reply(0, 0, 1);
    assert_eq!(key.reported_after_doubt(), 0);
    assert!(key.state.is_unused(&key.now));
}

#[test]
fn message_whose_lease_was_opened_after_a_lapse_keeps_no_lost_units() {
    let mut key = Key::new(Quota::in_flight(5));
    let terms = key.terms.clone();
    key.admit(AcquireTerms { on_lapse: OnLapse::Lost, ..terms });
    let mut caller = key.acquire(1, None);
    let plan = key.sent();
    assert_eq!(plan.keep, 1);
    key.state.lapse();
    key.now.lease = Some(2);
    assert_eq!(key.state.update_keep(plan).keep, 0);
    key.reply(1, 1, 0);
    caller.granted();
    assert_eq!(key.state.held.total(), 1);
    key.assert_rests();
}
