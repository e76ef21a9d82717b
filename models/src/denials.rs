//! Models of cached denials beside give-backs and charges of their key.

use loom::thread;

use super::denials::{Asked, Denials};
use crate::check::{Model, Preemptions};
use crate::store::{Fingerprint, Target};
use crate::sync::Arc;

const ALL: Preemptions = Preemptions { quick: None, full: None };
const BOUNDED: Preemptions = Preemptions { quick: Some(3), full: Some(4) };
const KEY: Target = Target { fingerprint: Fingerprint(7) };
const UNTIL_US: u64 = 1_000;

/// A denial is the server's time of it.
fn denials() -> Arc<Denials<u64>> {
    Arc::new(Denials::new(1))
}

/// Looks for a denial as a check does.
fn find(denials: &Denials<u64>) -> Option<u64> {
    if denials.until_us(&KEY) == 0 { None } else { denials.find(&KEY) }
}

/// Remembers a denial on a thread of its own.
fn remember(denials: &Arc<Denials<u64>>, asked: Asked, server_now_us: u64) -> thread::JoinHandle<()> {
    let denials = denials.clone();
    thread::spawn(move || denials.remember(asked, &KEY, server_now_us, server_now_us, UNTIL_US))
}

/// A denied check was sent before units of its key are given back: a check that starts after the give-back does
/// not find the denial.
pub(crate) fn no_denial_is_found_after_its_key_was_forgotten() -> Model {
    let execution = || {
        let denials = denials();
        let asked = denials.asked(&KEY, false);
        let remembering = remember(&denials, asked, 5);
        denials.forget(&KEY);
        let found = find(&denials);
        assert!(found.is_none(), "violated: found while it is remembered: {found:?}");
        remembering.join().unwrap();
        let found = find(&denials);
        assert!(found.is_none(), "violated: found after it was remembered: {found:?}");
    };
    Model { preemptions: ALL, execution }
}

/// A check was denied before another one is charged, in the same call: a check that starts after the charge was
/// recorded does not find the denial.
pub(crate) fn no_denial_is_found_after_a_later_charge() -> Model {
    let execution = || {
        let denials = denials();
        let asked = denials.asked(&KEY, true);
        let remembering = remember(&denials, asked, 5);
        denials.charged(&KEY, 5);
        let found = find(&denials);
        assert!(found.is_none(), "violated: found while it is remembered: {found:?}");
        remembering.join().unwrap();
        let found = find(&denials);
        assert!(found.is_none(), "violated: found after it was remembered: {found:?}");
    };
    Model { preemptions: ALL, execution }
}

/// A give-back before the check was sent, and a charge before it was denied, leave the denial. So does another
/// denial of the key at the same time: one of the two is found.
pub(crate) fn a_denial_that_is_not_out_of_date_is_found() -> Model {
    let execution = || {
        let denials = denials();
        denials.forget(&KEY);
        let asked = [denials.asked(&KEY, true), denials.asked(&KEY, false)];
        let remembering = [remember(&denials, asked[0], 5), remember(&denials, asked[1], 6)];
        denials.charged(&KEY, 4);
        remembering.into_iter().for_each(|remembering| remembering.join().unwrap());
        let found = find(&denials);
        assert!(found.is_some(), "violated: not found");
    };
    Model { preemptions: BOUNDED, execution }
}
