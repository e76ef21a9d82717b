//! Models of cached denials with concurrent refunds and charges of their key.

use loom::thread;

use super::denials::{Charges, Denials};
use crate::check::{Model, Preemptions};
use crate::store::{KeyedHash, Target};
use crate::sync::Arc;

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
fn remember(denials: &Arc<Denials<u64>>, charges: Charges, server_now_us: u64) -> thread::JoinHandle<()> {
    let denials = denials.clone();
    thread::spawn(move || denials.remember(charges, &KEY, server_now_us, server_now_us, UNTIL_US))
}

/// A denied check is sent before units of its key are refunded. A check that starts after the refund does not
/// find the denial.
pub(crate) fn no_denial_is_found_after_its_key_was_forgotten() -> Model {
    let execution = || {
        let denials = denials();
        let charges = denials.charges(&KEY, false);
        let remembering = remember(&denials, charges, 5);
        denials.forget(&KEY);
        let found = find(&denials);
        assert!(found.is_none(), "violated: found while it is remembered: {found:?}");
        remembering.join().unwrap();
        let found = find(&denials);
        assert!(found.is_none(), "violated: found after it was remembered: {found:?}");
    };
    Model { preemptions: ALL, execution }
}

/// A check is denied before another check is charged in the same call. A check that starts after the charge
/// was recorded does not find the denial.
pub(crate) fn no_denial_is_found_after_a_later_charge() -> Model {
    let execution = || {
        let denials = denials();
        let charges = denials.charges(&KEY, true);
        let remembering = remember(&denials, charges, 5);
        denials.charged(&KEY, 5);
        let found = find(&denials);
        assert!(found.is_none(), "violated: found while it is remembered: {found:?}");
        remembering.join().unwrap();
        let found = find(&denials);
        assert!(found.is_none(), "violated: found after it was remembered: {found:?}");
    };
    Model { preemptions: ALL, execution }
}

/// A refund before the check was sent does not remove the denial, and neither does a charge before the
/// denial. With two concurrent denials of the key, one of them is found.
pub(crate) fn a_denial_that_is_not_out_of_date_is_found() -> Model {
    let execution = || {
        let denials = denials();
        denials.forget(&KEY);
        let charges = [denials.charges(&KEY, true), denials.charges(&KEY, false)];
        let remembering = [remember(&denials, charges[0], 5), remember(&denials, charges[1], 6)];
        denials.charged(&KEY, 4);
        remembering.into_iter().for_each(|remembering| remembering.join().unwrap());
        let found = find(&denials);
        assert!(found.is_some(), "violated: not found");
    };
    Model { preemptions: BOUNDED, execution }
}
