//! The parts of the oracle that leave choices to the store: leases, expiries, and lapsed data that is still stored.

use super::bucket;
use super::call::{Call, KEPT_US, KEYS, LeaseVerb, Loss, Refusal, ttl_us};
use super::oracle::{Effect, Oracle};
use super::state::{Kept, Permits, State};

impl Oracle {
    /// Rule 9.
    pub(super) fn lease(
        &mut self,
        verb: LeaseVerb,
        name: &str,
        (reply, after): (Result<u64, Refusal>, &State),
        now: u64,
    ) -> Result<(), String> {
        let end = now + ttl_us(name);
        let found = self.state.lease_end(name);
        let is_live = self.state.is_live(name, now);
        let is_refused = match verb {
            LeaseVerb::Open => found.is_some() && !is_live,
            LeaseVerb::Renew => !is_live,
            LeaseVerb::End => false,
        };
        match (reply, verb) {
            (Err(Refusal::Lapsed), _) if is_refused => {}
            (Ok(_), LeaseVerb::End) => {}
            (Ok(reported), _) if !is_refused && reported == end => {}
            _ => return Err(format!("refused: {is_refused}, or until {end}")),
        }

        let is_heartbeat = !is_refused && verb != LeaseVerb::End;
        if !is_heartbeat || found.is_some_and(|found| end < found) {
            self.disturb([name.to_owned()]);
        }
        let empty = Kept { value: Default::default(), expires_ms: 0 };
        let leases = &mut self.state.leases.get_or_insert(empty).value;
        leases.remove(name);
        let mut disturbed = Vec::new();
        for (other, end) in leases.iter_mut() {
            let kept = after.lease_end(other);
            if !permitted_ends(other, *end, is_heartbeat.then_some(name), now).contains(&kept) {
                return Err(format!("{other}, which ends at {end}, then ends at {kept:?}"));
            }
            if kept != Some(*end) {
                disturbed.push(other.clone());
            }
            *end = kept.unwrap_or(0);
        }
        leases.retain(|_, end| *end > 0);
        if is_heartbeat {
            leases.insert(name.to_owned(), end);
        }
        self.disturb(disturbed);
        Ok(())
    }

    /// A block needs no holder. 0 lifts it.
    pub(super) fn block(&mut self, key: usize, for_us: u64, now: u64) {
        if for_us > 0 {
            let empty = Kept { value: Permits::default(), expires_ms: 0 };
            self.state.keys[key].get_or_insert(empty).value.blocked_until_us = now + for_us;
        } else if let Some(permits) = &mut self.state.keys[key] {
            permits.value.blocked_until_us = 0;
        }
    }

    pub(super) fn lose(&mut self, loss: Loss) {
        if loss != Loss::Leases {
            let lost = |key: &usize| matches!(loss, Loss::Everything) || loss == Loss::Key(*key);
            (0..KEYS).filter(lost).for_each(|key| self.state.keys[key] = None);
        }
        if matches!(loss, Loss::Everything | Loss::Leases) {
            let leases = self.state.leases.take();
            self.disturb(leases.into_iter().flat_map(|leases| leases.value.into_keys()));
        }
        if loss == Loss::Everything {
            self.state.bucket = None;
        }
    }

    /// Compares the state after a call, and continues with it.
    pub(super) fn adopt(
        &mut self,
        call: &Call,
        before: State,
        after: &State,
        now: u64,
    ) -> Result<(), String> {
        for key in call.keys() {
            let was_set_ms = before.keys[key].as_ref().map_or(0, |kept| kept.expires_ms);
            self.is_far_ahead[key] &= was_set_ms > 0;
            self.is_far_ahead[key] |= was_set_ms * 1_000 > now + 2 * KEPT_US;
            self.compare_key(call, key, before.keys[key].as_ref(), after.keys[key].as_ref(), now)
                .map_err(|error| format!("key {key}: {error}"))?;
        }
        if call.names_leases() {
            self.compare_leases(call, before.leases.map(|leases| leases.expires_ms), after, now)?;
        }
        if call.names_bucket() {
            let expected = self.state.bucket.as_ref().map(|level| level.value);
            let found = after.bucket.as_ref().map(|level| level.value);
            if expected != found {
                return Err(format!("the bucket holds {expected:?}"));
            }
            let is_too_short = |level: &Kept<_>| {
                level.expires_ms * 1_000 < bucket::empty_us(&self.bucket, &level.value).max(now)
                    && before.bucket.as_ref() != Some(level)
            };
            if after.bucket.as_ref().is_some_and(is_too_short) {
                return Err("the bucket expires before it is empty".to_owned());
            }
        }
        self.state = after.clone();
        Ok(())
    }

    fn compare_key(
        &self,
        call: &Call,
        key: usize,
        before: Option<&Kept<Permits>>,
        after: Option<&Kept<Permits>>,
        now: u64,
    ) -> Result<(), String> {
        let empty = Permits::default();
        let expected = self.state.keys[key].as_ref().map_or(&empty, |kept| &kept.value);
        let found = after.map_or(&empty, |kept| &kept.value);
        let in_force = |permits: &Permits| Permits {
            entries: permits.entries.clone(),
            blocked_until_us: if now < permits.blocked_until_us { permits.blocked_until_us } else { 0 },
            ..Permits::default()
        };
        if in_force(expected) != in_force(found) {
            return Err(format!("the state is {:?}", in_force(expected)));
        }
        if found.held != found.entries.values().map(|entry| entry.units).sum::<u64>() {
            return Err("the stored sum is another".to_owned());
        }
        let is_written = before.map(|kept| &kept.value) != after.map(|kept| &kept.value);
        let without_past = in_force(found);
        // Other writes may leave them to the next message.
        let is_cleaned = is_written && self.effects[key].is_changed;
        if is_cleaned && found.blocked_until_us != without_past.blocked_until_us {
            return Err("a message left a block that has ended".to_owned());
        }
        let Some(after) = after else { return Ok(()) };
        if is_cleaned && in_force(found) == empty {
            return Err("the key exists although it holds nothing".to_owned());
        }
        let is_blocked = |kept: &Kept<Permits>| kept.value.blocked_until_us > 0;
        // A group may remove the key, and a later one of the call make it again.
        let may_shrink = self.is_far_ahead[key]
            || is_blocked(after)
            || before.is_some_and(is_blocked)
            || call.names_repeatedly(key);
        if let Some(before) = before
            && !may_shrink
            && !before.value.entries.is_empty()
            && after.expires_ms < before.expires_ms
        {
            // After a step back of the clock and forth, its holders would lose the key.
            return Err(format!("the expiry moves backward from {}", before.expires_ms));
        }
        compare_expiry(self.effects[key], is_written, before, after, now)
    }

    fn compare_leases(
        &self,
        call: &Call,
        expires_before: Option<u64>,
        after: &State,
        now: u64,
    ) -> Result<(), String> {
        let expected =
            self.state.leases.as_ref().map(|leases| &leases.value).filter(|leases| !leases.is_empty());
        if expected != after.leases.as_ref().map(|leases| &leases.value) {
            return Err(format!("the leases are {expected:?}"));
        }
        let Some(expires_ms) = after.leases.as_ref().map(|leases| leases.expires_ms) else { return Ok(()) };
        let is_heartbeat = matches!(call, Call::Lease(LeaseVerb::Open | LeaseVerb::Renew, _));
        let is_extended = kept_range(now).contains(&expires_ms);
        match is_extended && is_heartbeat || expires_before == Some(expires_ms) {
            true => Ok(()),
            false => Err(format!("the leases expire at {expires_ms}")),
        }
    }
}

/// Returns the ends that another holder's lease may have after a call about the lease of `heartbeat`, or after a
/// call that is no heartbeat.
fn permitted_ends(name: &str, end: u64, heartbeat: Option<&str>, now: u64) -> Vec<Option<u64>> {
    let shortened = now + ttl_us(name);
    // A heartbeat finds the leases that end later than its own.
    let must_shorten = |heartbeat: &str| end > now + ttl_us(heartbeat).max(ttl_us(name));
    match heartbeat {
        Some(_) if end <= now => vec![None],
        Some(heartbeat) if must_shorten(heartbeat) => vec![Some(shortened)],
        None if end <= now => vec![None, Some(end)],
        _ if end > shortened => vec![Some(shortened), Some(end)],
        _ => vec![Some(end)],
    }
}

/// Rule 14: returns the expiries, in ms, that a write may set.
fn kept_range(now: u64) -> std::ops::RangeInclusive<u64> {
    (now + KEPT_US) / 1_000..=(now + KEPT_US + KEPT_US / 4).div_ceil(1_000)
}

fn compare_expiry(
    effect: Effect,
    is_written: bool,
    before: Option<&Kept<Permits>>,
    after: &Kept<Permits>,
    now: u64,
) -> Result<(), String> {
    let blocked_ms = after.value.blocked_until_us.div_ceil(1_000);
    let expires_before = before.map_or(0, |kept| kept.expires_ms);
    let is_kept = |least_ms: u64| after.expires_ms >= least_ms.max(blocked_ms);
    let has_units = !after.value.entries.is_empty();
    let is_long_enough = if effect.is_changed {
        is_kept(*kept_range(now).start())
    } else if effect.is_in_use {
        is_kept((now + KEPT_US / 4 * 3) / 1_000)
    } else if has_units {
        is_kept(expires_before.min(*kept_range(now).start()))
    } else {
        is_kept(0)
    };
    let most = (*kept_range(now).end()).max(expires_before).max(blocked_ms);
    let may_change = is_written || effect.is_in_use;
    if !is_long_enough || after.expires_ms > most || (!may_change && after.expires_ms != expires_before) {
        return Err(format!("the expiry {} follows {expires_before}: {effect:?}", after.expires_ms));
    }
    Ok(())
}
