//! Models of a lease slot: callers that spend, and the keeper that opens, closes and reassigns the slot.

use loom::thread;

use super::packed_key::PackedKey;
use super::slot::{Slot, Spend, Spent, Term};
use crate::check::{Model, Preemptions};
use crate::runtime::sync::Arc;

const BOUNDED: Preemptions = Preemptions { quick: Some(3), full: Some(5) };

fn a() -> PackedKey {
    PackedKey::of(b"a")
}

fn b() -> PackedKey {
    PackedKey::of(b"b")
}

/// Opens one block with units until `ends_ms`. The stamp identifies the opening.
fn open(slot: &Slot, units: u32, stamp_us: u64, ends_ms: u64) {
    let ends_us = ends_ms * 1_000;
    let term =
        Term { newest: units, newest_ends_us: ends_us, older_ends_us: 0, stamp_us, reset_us: stamp_us };
    slot.open(units, term);
}

fn slot_of_a() -> Arc<Slot> {
    let slot = Slot::default();
    slot.assign(&a());
    Arc::new(slot)
}

/// Spends one unit at 15 ms.
fn spend(slot: &Slot, key: &PackedKey) -> Option<Spent> {
    match slot.spend(key, 1, 15_000) {
        Spend::Units(spent) => Some(spent),
        Spend::Another | Spend::Nothing => None,
    }
}

fn spender(slot: &Arc<Slot>, key: PackedKey) -> thread::JoinHandle<Option<Spent>> {
    let slot = slot.clone();
    thread::spawn(move || spend(&slot, &key))
}

/// Two callers spend, and the keeper takes the rest back. Each unit is either spent or taken back.
pub(crate) fn a_unit_is_spent_or_taken_back_and_only_once() -> Model {
    let execution = || {
        let slot = slot_of_a();
        open(&slot, 2, 1, 20);
        let spenders = [spender(&slot, a()), spender(&slot, a())];
        let mut left = slot.close();
        let spent = spenders.map(|spender| spender.join().unwrap()).iter().flatten().count() as u32;
        left += slot.close();
        assert!(spent + left == 2, "violated: of 2 units {spent} were spent and {left} taken back");
    };
    Model { preemptions: BOUNDED, execution }
}

/// A caller spends, and the keeper takes the unit back and opens another one. Each unit is spent by the terms
/// of its own opening, or taken back.
pub(crate) fn no_unit_is_spent_after_it_was_taken_back() -> Model {
    let execution = || {
        let slot = slot_of_a();
        open(&slot, 1, 1, 20);
        let spender = spender(&slot, a());
        let mut left = [slot.close(), 0];
        open(&slot, 1, 2, 20);
        let spent = spender.join().unwrap();
        left[1] = slot.close();
        let spent = [1, 2].map(|stamp_us| u32::from(spent.is_some_and(|spent| spent.stamp_us == stamp_us)));
        let sums = [spent[0] + left[0], spent[1] + left[1]];
        assert!(sums == [1, 1], "violated: of each opening's unit {spent:?} were spent, {left:?} taken back");
    };
    Model { preemptions: BOUNDED, execution }
}

/// Callers of two keys spend, and the keeper reassigns the slot from one key to the other.
pub(crate) fn no_unit_is_spent_for_another_key() -> Model {
    let execution = || {
        let slot = slot_of_a();
        open(&slot, 1, 1, 20);
        let spender = spender(&slot, a());
        let of_a = slot.close();
        slot.vacate();
        slot.assign(&b());
        open(&slot, 1, 2, 20);
        let spent = spender.join().unwrap();
        let of_b = slot.close();
        assert!(of_b == 1, "violated: the unit of another key was spent");
        assert!(
            spent.map(|spent| spent.stamp_us) == (of_a == 0).then_some(1),
            "violated: {spent:?}, but {of_a} taken back"
        );
    };
    Model { preemptions: BOUNDED, execution }
}

/// The second opening ends before the caller's time, the first one after it.
pub(crate) fn no_unit_is_spent_past_its_end() -> Model {
    let execution = || {
        let slot = slot_of_a();
        open(&slot, 1, 1, 20);
        let spender = spender(&slot, a());
        slot.close();
        open(&slot, 1, 2, 10);
        let spent = spender.join().unwrap();
        let left = slot.close();
        assert!(left == 1, "violated: {spent:?} is a unit whose block has ended");
    };
    Model { preemptions: BOUNDED, execution }
}

/// The slot has one unit of the older block, which has not ended, and one of the newest, which has. Of two
/// callers, one gets a unit.
pub(crate) fn the_newest_units_are_not_spent_by_the_end_of_the_older() -> Model {
    let execution = || {
        let slot = slot_of_a();
        let term =
            Term { newest: 1, newest_ends_us: 10_000, older_ends_us: 20_000, stamp_us: 1, reset_us: 1 };
        slot.open(2, term);
        let spender = spender(&slot, a());
        let spent = [spend(&slot, &a()), spender.join().unwrap()];
        let left = slot.close();
        assert!(spent.iter().flatten().count() == 1 && left == 1, "violated: {spent:?}, {left} left");
    };
    Model { preemptions: BOUNDED, execution }
}

/// A caller spends, the keeper takes the rest back, and a reset of the key discards it.
pub(crate) fn a_forgotten_unit_is_neither_spent_nor_taken_back() -> Model {
    let execution = || {
        let slot = slot_of_a();
        open(&slot, 2, 1, 20);
        let spender = spender(&slot, a());
        let resetting = slot.clone();
        let reset = thread::spawn(move || resetting.forget(&a()));
        let left = slot.close();
        let spent = u32::from(spender.join().unwrap().is_some());
        let forgotten = reset.join().unwrap() as u32;
        let left = left + slot.close();
        assert!(spent + forgotten + left == 2, "violated: {spent} spent, {forgotten} forgotten, {left} left");
    };
    Model { preemptions: BOUNDED, execution }
}

/// Two callers spend, and after each of them less than half of the units is left.
pub(crate) fn a_refill_is_requested_once() -> Model {
    let execution = || {
        let slot = slot_of_a();
        open(&slot, 2, 1, 20);
        slot.no_longer_wanted();
        let spender = spender(&slot, a());
        let spent = [spend(&slot, &a()), spender.join().unwrap()];
        let requests = spent.iter().flatten().filter(|spent| spent.is_low).count();
        assert!(requests == 1, "violated: {requests} requests");
    };
    Model { preemptions: BOUNDED, execution }
}
