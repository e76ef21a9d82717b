//! The properties that processes depend on, checked on the state alone.

use super::call::{Call, Group, Item, KEYS, Reply};
use super::process::Process;
use super::state::State;

/// Rule 5: after a message with k > 0, no more than the limit is held.
pub fn confirm_bound(
    (call, reply): (&Call, &Reply),
    before: &State,
    after: &State,
    now: u64,
) -> Result<(), String> {
    let (Call::Take(groups, _), Reply::Take(outcomes)) = (call, reply) else { return Ok(()) };
    let mut confirmed = [false; KEYS];
    // Groups of one call may have different limits for a key: that of the last one that was admitted holds. A
    // repetition counts what its process holds of a key that was lost, also above the limit.
    for (group, outcome) in groups.iter().zip(outcomes).rev() {
        if outcome.as_ref().map_or(0, |outcome| outcome.k) == 0 {
            continue;
        }
        let is_repetition = is_repetition(group, before);
        for item in &group.items {
            if let Item::Permit { key, limit, .. } = item
                && !std::mem::replace(&mut confirmed[*key], true)
                && !is_repetition
                && after.live_units(*key, now) > limit.units
            {
                return Err(format!("key {key} holds more than {limit:?}: {after:#?}"));
            }
        }
    }
    Ok(())
}

/// Returns whether the store had applied a message of the group before.
fn is_repetition(group: &Group, before: &State) -> bool {
    group.permits().any(|(key, message)| {
        let entry = |name: &str| before.keys[key].as_ref()?.value.entries.get(name);
        message
            .is_some_and(|message| entry(&message.holder).is_some_and(|entry| entry.number == message.number))
    })
}

/// An entry is never less than its live holder believes.
pub fn confirm_beliefs(processes: &[Process], state: &State, now: u64) -> Result<(), String> {
    for process in processes {
        let Some(name) = process.name.as_ref().filter(|name| state.is_live(name, now)) else { continue };
        for key in 0..KEYS {
            let (units, held) = (state.units(key, name), process.held[key]);
            if !process.is_unrestored[key] && units < held {
                return Err(format!("{name} believes to hold {held} of key {key}: {state:#?}"));
            }
        }
    }
    Ok(())
}

/// The store counts nothing of a process that has forgotten a key.
pub fn confirm_forgotten(processes: &[Process], state: &State, now: u64) -> Result<(), String> {
    for process in processes {
        let Some(name) = process.name.as_ref().filter(|name| state.is_live(name, now)) else { continue };
        for key in 0..KEYS {
            if process.has_forgotten(key) && state.units(key, name) > 0 {
                return Err(format!("{name} has forgotten key {key}: {state:#?}"));
            }
        }
    }
    Ok(())
}
