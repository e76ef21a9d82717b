//! Models of cached denials with concurrent refunds and admissions of their key.

use loom::thread;

use super::denials::{Denials, SlotSnapshot};
use crate::check::{Model, Preemptions};
use crate::runtime::sync::Arc;
use crate::store::{KeyedHash, Target};

const ALL: Preemptions = Preemptions { quick: None, full: None };
const BOUNDED: Preemptions = Preemptions { quick: Some(3), full: Some(4) };
const KEY: Target = Target { keyed_hash: KeyedHash(7) };
const UNTIL_US: u64 = 1_000;

/// A denial is represented by its server time.
fn denials() -> Arc<Denials<u64>> {
    Arc::new(Denials::new(1))
}

/// Looks for a denial as a check does.
fn find(denials: &Denials<u64>) -> Option<u64> {
    if denials.until_us(&KEY) == 0 { None } else { denials.find(&KEY) }
}

/// Caches a denial on another thread.
fn remember(
    denials: &Arc<Denials<u64>>,
    snapshot: SlotSnapshot,
    server_now_us: u64,
) -> thread::JoinHandle<()> {
    let denials = denials.clone();
    thread::spawn(move || denials.remember(snapshot, &KEY, server_now_us, server_now_us, UNTIL_US))
}

/// A denied check is sent before units of its key are refunded. A check that starts after the refund does not
/// find the denial.
pub(crate) fn no_denial_is_found_after_its_key_was_forgotten() -> Model {
    let execution = || {
        let denials = denials();
        let snapshot = denials.snapshot(&KEY, false);
        let remembering = remember(&denials, snapshot, 5);
        denials.forget(&KEY);
        let found = find(&denials);
        assert!(found.is_none(), "violated: found while it is remembered: {found:?}");
        remembering.join().unwrap();
        let found = find(&denials);
        assert!(found.is_none(), "violated: found after it was remembered: {found:?}");
    };
    Model { preemptions: ALL, execution }
}

/// A check is denied before another check is admitted in the same call. A check that starts after the
/// admission was recorded does not find the denial.
pub(crate) fn no_denial_is_found_after_a_later_admission() -> Model {
    let execution = || {
        let denials = denials();
        let snapshot = denials.snapshot(&KEY, true);
        let remembering = remember(&denials, snapshot, 5);
        denials.record_admission(&KEY, 5);
        let found = find(&denials);
        assert!(found.is_none(), "violated: found while it is remembered: {found:?}");
        remembering.join().unwrap();
        let found = find(&denials);
        assert!(found.is_none(), "violated: found after it was remembered: {found:?}");
    };
    Model { preemptions: ALL, execution }
}

/// A check is denied before its key is charged without a check. A check that starts after the charge was recorded finds
/// the denial with the charge, or none.
pub(crate) fn no_denial_is_found_without_a_later_charge() -> Model {
    let execution = || {
        let denials = denials();
        let snapshot = denials.snapshot(&KEY, false);
        let remembering = remember(&denials, snapshot, 5);
        denials.record_charge(&KEY, 6, |denial| {
            *denial += 100;
            true
        });
        let found = find(&denials);
        assert!(found != Some(5), "violated: found while it is remembered: {found:?}");
        remembering.join().unwrap();
        let found = find(&denials);
        assert!(found != Some(5), "violated: found after it was remembered: {found:?}");
    };
    Model { preemptions: ALL, execution }
}

/// A refund before the check was sent does not remove the denial, and neither does an admission before
/// the denial. With two concurrent denials of the key, one of them is found.
pub(crate) fn a_denial_that_is_not_out_of_date_is_found() -> Model {
    let execution = || {
        let denials = denials();
        denials.forget(&KEY);
        let snapshots = [denials.snapshot(&KEY, true), denials.snapshot(&KEY, false)];
        let remembering = [remember(&denials, snapshots[0], 5), remember(&denials, snapshots[1], 6)];
        denials.record_admission(&KEY, 4);
        remembering.into_iter().for_each(|remembering| remembering.join().unwrap());
        let found = find(&denials);
        assert!(found.is_some(), "violated: not found");
    };
    Model { preemptions: BOUNDED, execution }
}
