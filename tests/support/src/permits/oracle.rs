//! The definition of in-flight limits, written for clarity: lists that are scanned on every call, no caches.
//!
//! The definition leaves some details open: when a key expires within a range, which lapsed data is still stored,
//! and, after a backward step of the clock, until when a lapsed holder counts (rule 15). There, the oracle checks
//! that the store's choice is permitted, and continues with that choice.

use std::collections::BTreeSet;

use tidegate::Quota;
use tidegate::reference::Before;

use super::bucket;
use super::call::{Call, Group, Item, KEYS, Limit, Message, Name, Outcome, Refusal, Reply};
use super::state::{Entry, Kept, Level, Permits, State};

#[derive(Clone, Debug)]
pub struct Oracle {
    pub(super) state: State,
    pub(super) bucket: Quota,
    /// For each key, the holders whose leases ended earlier than their end when `sure until` was stored.
    pub(super) disturbed: [BTreeSet<Name>; KEYS],
    /// For each key, whether its expiry was set by a clock that was too far ahead to be trusted.
    pub(super) is_far_ahead: [bool; KEYS],
    /// For each key, the effect of the call in progress.
    pub(super) effects: [Effect; KEYS],
}

/// The effect of a call on a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// A message changed units.
    pub(super) is_changed: bool,
    /// A message was applied, and its holder has units now.
    pub(super) is_in_use: bool,
}

/// How an in-flight gate decides a message or peek.
struct View {
    /// The lapsed holders, which do not count.
    lapsed: Vec<Name>,
    is_blocked: bool,
    affordable: u64,
}

impl Oracle {
    pub fn new(bucket: Quota) -> Self {
        Self {
            state: State::default(),
            bucket,
            disturbed: Default::default(),
            is_far_ahead: [false; KEYS],
            effects: Default::default(),
        }
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Compares a call's reply and the state after it with the definition. Returns the keys of in-flight limits
    /// that had expired before the call.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn check(
        &mut self,
        call: &Call,
        now: u64,
        reply: &Reply,
        after: &State,
    ) -> Result<Vec<usize>, String> {
        let leases = self.state.leases.clone();
        let expired = self.state.expire(call, now);
        if self.state.leases.is_none() {
            self.disturb(leases.into_iter().flat_map(|leases| leases.value.into_keys()));
        }
        let before = self.state.clone();
        self.effects = Default::default();
        match (call, reply) {
            (Call::Take(_, Some(bound)), _) if *bound <= now => {
                if *reply != Reply::Late {
                    return Err(format!("a call that is late since {bound} is processed"));
                }
            }
            (Call::Take(groups, _), Reply::Take(outcomes)) if groups.len() == outcomes.len() => {
                groups
                    .iter()
                    .zip(outcomes)
                    .try_for_each(|(group, outcome)| self.take(group, outcome, after, now))?;
            }
            (Call::Lease(verb, name), Reply::Lease(reply)) => {
                self.lease(*verb, name, (*reply, after), now)?
            }
            (Call::Block { key, for_us, .. }, Reply::Done) => self.block(*key, *for_us, now),
            (Call::Lose(loss), Reply::Done) => self.lose(*loss),
            _ => return Err(format!("the reply does not belong to the call: {reply:?}")),
        }
        self.adopt(call, before, after, now)?;
        Ok(expired)
    }

    fn take(
        &mut self,
        group: &Group,
        reply: &Result<Outcome, Refusal>,
        after: &State,
        now: u64,
    ) -> Result<(), String> {
        let expected = self.refusal(group, now);
        if expected != reply.as_ref().err().copied() {
            return Err(format!("the refusal is {expected:?}"));
        }
        let Ok(outcome) = reply else {
            self.forget_lapsed_sender(group, after, now);
            return Ok(());
        };
        if group.items.len() != outcome.before.len() {
            return Err(format!("not one state for each item: {outcome:?}"));
        }
        match self.repeated(group) {
            Some(k) => self.confirm_repetition(group, k, outcome, now),
            None => self.decide(group, outcome, now),
        }
    }

    /// Rules 4a and 4b.
    fn refusal(&self, group: &Group, now: u64) -> Option<Refusal> {
        let messages = || group.permits().filter_map(|(key, message)| Some((key, message?)));
        let has_lapsed =
            |message: &Message| !self.state.is_live(&message.holder, now) || message.lease_end_us <= now;
        let is_stale = |(key, message): (usize, &Message)| {
            self.entry(key, &message.holder).is_some_and(|entry| message.number < entry.number)
        };
        if messages().any(|(_, message)| has_lapsed(message)) {
            Some(Refusal::Lapsed)
        } else if messages().any(is_stale) {
            Some(Refusal::Stale)
        } else {
            None
        }
    }

    /// Rule 8: removes the entry of a sender whose lease has ended, and the lease. Of a group, a store may remove
    /// only the first entry: the others no longer count.
    fn forget_lapsed_sender(&mut self, group: &Group, after: &State, now: u64) {
        let messages = group.permits().filter_map(|(key, message)| Some((key, message?)));
        for (index, (key, message)) in messages.enumerate() {
            if self.state.is_live(&message.holder, now) {
                return;
            }
            if index == 0 || after.units(key, &message.holder) == 0 {
                self.forget(key, &message.holder);
            }
        }
    }

    fn forget(&mut self, key: usize, name: &str) {
        if let Some(permits) = &mut self.state.keys[key] {
            permits.value.entries.remove(name);
        }
        if let Some(leases) = &mut self.state.leases {
            leases.value.remove(name);
        }
        self.disturb([name.to_owned()]);
    }

    /// Rule 4c: returns the result of a group of which a message was applied before.
    fn repeated(&self, group: &Group) -> Option<u64> {
        let result = |item: &Item| match item {
            Item::Permit { key, cost, message: Some(message), .. } => {
                let entry = self.entry(*key, &message.holder)?;
                let acquired = entry.units.saturating_sub(message.keep.unwrap_or(entry.units));
                (entry.number == message.number)
                    .then(|| acquired.checked_div(*cost).map_or(group.n, |k| k.min(group.n)))
            }
            _ => None,
        };
        group.items.iter().filter_map(result).min()
    }

    /// Compares the reply to a repetition. It changes nothing but to count the units of messages whose keys were
    /// lost since.
    fn confirm_repetition(
        &mut self,
        group: &Group,
        k: u64,
        outcome: &Outcome,
        now: u64,
    ) -> Result<(), String> {
        if outcome.k != k {
            return Err(format!("the repetition admits {k}"));
        }
        for (item, reported) in group.items.iter().zip(&outcome.before) {
            match item {
                Item::Permit { key, limit, cost, message } => {
                    let view = self.view(*key, *limit, (group.n, *cost), message.as_ref(), reported, now)?;
                    let is_applied = |message: &Message| {
                        let entry = self.entry(*key, &message.holder);
                        entry.is_some_and(|entry| entry.number == message.number)
                    };
                    let lost = message.as_ref().filter(|message| !is_applied(message));
                    if let Some(message) = lost {
                        self.apply(*key, (k, *cost), message, &view);
                    }
                    self.check_sure_until(*key, message.as_ref(), reported.raw[1], now)?;
                    if let Some(message) = lost {
                        self.store_sure_until(*key, &message.holder, reported.raw[1], now);
                    }
                }
                Item::Bucket { .. } => self.confirm_level(reported, now)?,
            }
        }
        Ok(())
    }

    /// Rule 4d.
    fn decide(&mut self, group: &Group, outcome: &Outcome, now: u64) -> Result<(), String> {
        let mut k = group.n;
        let mut views = Vec::new();
        for (item, reported) in group.items.iter().zip(&outcome.before) {
            match item {
                Item::Permit { key, limit, cost, message } => {
                    let view = self.view(*key, *limit, (group.n, *cost), message.as_ref(), reported, now)?;
                    k = k.min(view.affordable);
                    views.push(Some(view));
                }
                Item::Bucket { cost } => {
                    self.confirm_level(reported, now)?;
                    k = k.min(bucket::affordable(&self.bucket, reported.raw[0], group.n, *cost));
                    views.push(None);
                }
            }
        }
        if outcome.k != k {
            return Err(format!("{k} are admitted"));
        }
        for ((item, view), reported) in group.items.iter().zip(views).zip(&outcome.before) {
            match (item, view) {
                (Item::Permit { key, cost, message, .. }, Some(view)) => {
                    if let Some(message) = message {
                        self.apply(*key, (k, *cost), message, &view);
                    }
                    self.check_sure_until(*key, message.as_ref(), reported.raw[1], now)?;
                    if let Some(message) = message {
                        self.store_sure_until(*key, &message.holder, reported.raw[1], now);
                    }
                }
                (item, _) => self.charge(group.n * item.cost(), k * item.cost(), now),
            }
        }
        Ok(())
    }

    /// Compares the reported state of a key, and returns how the gate decides.
    fn view(
        &self,
        key: usize,
        limit: Limit,
        (n, cost): (u64, u64),
        message: Option<&Message>,
        reported: &Before,
        now: u64,
    ) -> Result<View, String> {
        let empty = Permits::default();
        let permits = self.state.keys[key].as_ref().map_or(&empty, |kept| &kept.value);
        let sender = message.map_or("", |message| &*message.holder);
        let others = || permits.entries.iter().filter(|(name, _)| *name != sender);
        let units_of = |names: &[Name]| -> u64 {
            others().filter(|(name, _)| names.contains(name)).map(|(_, entry)| entry.units).sum()
        };

        let (live, lapsed): (Vec<Name>, Vec<Name>) =
            others().map(|(name, _)| name.clone()).partition(|name| self.state.is_live(name, now));
        let lingering: Vec<Name> = match self.is_cached(key, sender, now) {
            true => lapsed.iter().filter(|name| self.disturbed[key].contains(*name)).cloned().collect(),
            false => Vec::new(),
        };
        let own = permits.entries.get(sender).map_or(0, |entry| entry.units);
        let held = units_of(&live) + message.map_or(0, |message| message.keep.unwrap_or(own));
        let most = held + units_of(&lingering);
        let (held, lapsed) = if reported.raw[0] == most && most > held {
            (most, lapsed.into_iter().filter(|name| !lingering.contains(name)).collect())
        } else {
            (held, lapsed)
        };

        let blocked_until = Some(permits.blocked_until_us).filter(|until| now < *until).unwrap_or(0);
        let found = (held, 0, blocked_until);
        let reported_block = Some(reported.blocked_until_us).filter(|until| now < *until).unwrap_or(0);
        if (reported.raw[0], reported.raw[2], reported_block) != found {
            return Err(format!("key {key} holds {held}, blocked until {blocked_until}"));
        }

        let is_blocked = blocked_until > 0;
        let room = if is_blocked { 0 } else { limit.units.saturating_sub(held) };
        let affordable = room.checked_div(cost).map_or(n, |most| n.min(most));
        Ok(View { lapsed, is_blocked, affordable })
    }

    fn apply(&mut self, key: usize, (k, cost): (u64, u64), message: &Message, view: &View) {
        for name in &view.lapsed {
            self.forget(key, name);
        }
        let empty = Kept { value: Permits::default(), expires_ms: 0 };
        let permits = &mut self.state.keys[key].get_or_insert(empty).value;
        let own = permits.entries.get(&message.holder).map_or(0, |entry| entry.units);
        let units = message.keep.unwrap_or(own) + k * cost;
        if k > 0 || units != own {
            permits.entries.insert(message.holder.clone(), Entry { units, number: message.number });
            self.effects[key].is_changed = true;
        }
        permits.entries.retain(|_, entry| entry.units > 0);
        self.effects[key].is_in_use |= units > 0;

        if permits.entries.is_empty() && !view.is_blocked {
            self.state.keys[key] = None;
        }
    }

    fn confirm_level(&self, reported: &Before, now: u64) -> Result<(), String> {
        let ticks = bucket::ticks(&self.bucket, self.state.bucket.as_ref(), now);
        match reported.raw[0] == ticks {
            true => Ok(()),
            false => Err(format!("the level of the bucket is {ticks}")),
        }
    }

    /// Charges the bucket. A store may date a level in the future to now if any units are `wanted`.
    fn charge(&mut self, wanted: u64, units: u64, now: u64) {
        let is_ahead = self.state.bucket.as_ref().is_some_and(|level| level.value.at_us > now);
        if units > 0 || (is_ahead && wanted > 0) {
            let ticks = bucket::ticks(&self.bucket, self.state.bucket.as_ref(), now);
            let value = Level { ticks: ticks + bucket::ticks_of(&self.bucket, units), at_us: now };
            self.state.bucket = Some(Kept { value, expires_ms: 0 });
        }
    }

    fn entry(&self, key: usize, name: &str) -> Option<Entry> {
        self.state.keys[key].as_ref()?.value.entries.get(name).copied()
    }
}
