//! The queue of a fair gate: rule 18.

use super::state::Place;

/// Returns the places of holders that were seen within `patience_us`.
pub fn alive(queue: &[Place], patience_us: u64, now: u64) -> Vec<Place> {
    queue.iter().filter(|place| place.seen_us.abs_diff(now) < patience_us).cloned().collect()
}

/// Returns the units in front of a holder's place, or of the whole queue if it has none.
pub fn units_before(queue: &[Place], holder: &str) -> u64 {
    queue.iter().take_while(|place| place.holder != holder).map(|place| place.units).sum()
}

/// Keeps or makes a holder's place, for so many units.
pub fn keep_place(queue: &mut Vec<Place>, holder: &str, units: u64, now: u64) {
    let place = Place { holder: holder.to_owned(), units, seen_us: now };
    match queue.iter_mut().find(|place| place.holder == holder) {
        Some(own) => *own = place,
        None => queue.push(place),
    }
}

pub fn leave(queue: &mut Vec<Place>, holder: &str) {
    queue.retain(|place| place.holder != holder);
}
