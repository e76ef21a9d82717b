//! The definition of reservations, written for clarity: lists that are scanned on every call, one hold at a
//! time. It shares no code with the scripts or with `src`, except the numbers of a quota.

use tidegate::Quota;
use tidegate::algorithm::{Kind, LeakyBucket};
use tidegate::reference::{self, Before};

use super::call::{Call, Group, Hold, Phase, Reply, SettleItem, Settled, Taken, Token, Verb};
use crate::oracle::Oracle;

/// A call ends at most so many holds, besides those that it settles or repeats, ...
const MAX_ENDED: usize = 64;
/// ... but of each key that it names so many.
const MIN_ENDED: usize = 3;

/// Gates with one key each.
#[derive(Clone, Debug)]
pub struct HoldOracle {
    pub gates: Vec<Gate>,
}

#[derive(Clone, Debug)]
pub struct Gate {
    pub quota: Quota,
    pub used: Oracle,
    /// Sorted by their ends.
    pub holds: Vec<Hold>,
    /// The holds must not expire before this time (µs).
    pub kept_until_us: u64,
}

/// Returns how long a charge can count, in µs; in windows of a calendar their mean length.
pub fn life_us(quota: &Quota) -> u64 {
    match quota.kind() {
        Kind::TokenBucket(bucket) | Kind::LeakyBucket(LeakyBucket(bucket)) => {
            (bucket.capacity * bucket.per).div_ceil(bucket.rate)
        }
        Kind::FixedWindow(fixed) => fixed.window_us,
        Kind::SlidingLog(log) => log.window_us,
        Kind::SlidingCounter(counter) => 2 * counter.window_us,
        Kind::InFlight(_) => panic!("an in-flight limit has no reservations"),
    }
}

impl Hold {
    fn new(token: &Token, units: u64, now: u64) -> Self {
        let phase = if token.is_refunded { Phase::Back } else { Phase::Keep };
        Self { id: token.id.clone(), units, ttl_us: token.ttl_us, phase, end_us: now + token.ttl_us }
    }

    /// Returns the time of the charge of an open hold.
    fn stamp(&self) -> u64 {
        self.end_us - self.ttl_us
    }

    fn is_of(&self, token: &Token, units: u64) -> bool {
        let Token { id, ttl_us, is_refunded } = token;
        let is_of_its_kind = self.phase == Phase::Late || *is_refunded == (self.phase == Phase::Back);
        (&self.id, self.ttl_us, self.units) == (id, *ttl_us, units) && is_of_its_kind
    }

    /// Holds that end at the same time are sorted by their texts.
    fn order(&self) -> (u64, String) {
        let phase = match self.phase {
            Phase::Keep => "keep",
            Phase::Back => "back",
            Phase::Late => "late",
        };
        (self.end_us, format!("{}:{}:{}:{phase}", self.id, self.units, self.ttl_us))
    }
}

impl Gate {
    fn new(quota: Quota) -> Self {
        Self { quota, used: Oracle::new(&quota), holds: Vec::new(), kept_until_us: 0 }
    }

    /// Adds a hold. A set holds each member once.
    fn insert(&mut self, hold: Hold) {
        self.holds.retain(|other| other.order().1 != hold.order().1);
        self.holds.push(hold);
        self.holds.sort_by_key(Hold::order);
    }

    /// Refunds units of a hold with the stamp of its charge.
    fn refund(&mut self, hold: &Hold, units: u64, now: u64) {
        if units > 0 {
            self.used.refund_charge_of(&self.quota, units, hold.stamp(), now);
        }
    }

    /// Charges units without a check.
    fn charge(&mut self, units: u64, now: u64) {
        if units > 0 {
            self.used.penalize(&self.quota, units, now);
        }
    }

    /// Ends as many holds as a call may that has ended so many before.
    fn end_some(&mut self, ended: &mut usize, now: u64) {
        *ended += self.end_holds(MAX_ENDED.saturating_sub(*ended).max(MIN_ENDED), now);
    }

    /// Ends the first holds whose time has come. Returns their number.
    fn end_holds(&mut self, max: usize, now: u64) -> usize {
        let ended = self.holds.iter().take(max).filter(|hold| hold.end_us <= now).count();
        for hold in self.holds.drain(..ended).collect::<Vec<_>>() {
            self.end(hold, now);
        }
        self.forget_expiry();
        ended
    }

    /// Ends one hold, which is no longer in the list.
    fn end(&mut self, hold: Hold, now: u64) {
        match hold.phase {
            Phase::Keep => {}
            Phase::Back => self.refund(&hold, hold.units, now),
            Phase::Late => return,
        }
        let late_until = hold.end_us + hold.ttl_us;
        if late_until > now {
            self.insert(Hold { phase: Phase::Late, end_us: late_until, ..hold });
        }
    }

    /// Returns the index of the open hold of this token, or of its late one. If its time has come, it is
    /// ended first, also beyond the maximum of a call.
    fn find(&mut self, token: &Token, units: u64, is_late: bool, now: u64) -> Option<usize> {
        let is_it = |hold: &Hold| hold.is_of(token, units) && is_late == (hold.phase == Phase::Late);
        let index = self.holds.iter().position(is_it)?;
        if self.holds[index].end_us > now {
            return Some(index);
        }
        let hold = self.holds.remove(index);
        self.end(hold, now);
        self.forget_expiry();
        None
    }

    /// The last hold takes the expiry with it, as in Redis.
    fn forget_expiry(&mut self) {
        if self.holds.is_empty() {
            self.kept_until_us = 0;
        }
    }

    fn settle(&mut self, item: &SettleItem, token: &Token, now: u64) -> Settled {
        if let Some(index) = self.find(token, item.units, false, now) {
            let hold = self.holds.remove(index);
            self.refund(&hold, hold.units.saturating_sub(item.actual), now);
            self.charge(item.actual.saturating_sub(hold.units), now);
            Settled::Settled
        } else if let Some(index) = self.find(token, item.units, true, now) {
            let hold = self.holds.remove(index);
            let still_charged = if token.is_refunded { 0 } else { hold.units };
            self.charge(item.actual.saturating_sub(still_charged), now);
            Settled::Late
        } else {
            Settled::Nothing
        }
    }

    /// Records that the server removed the holds. This is correct only if all have ended, and no ended one
    /// has units that count.
    ///
    /// # Errors
    ///
    /// The holds that it must not remove.
    pub fn expire_holds(&mut self, now: u64) -> Result<(), String> {
        let mut ended = self.clone();
        ended.end_holds(usize::MAX, now);
        if !ended.holds.is_empty() || ended.used != self.used {
            return Err(format!("the holds expired although they matter: {:?}", self.holds));
        }
        self.holds.clear();
        Ok(())
    }
}

impl HoldOracle {
    pub fn new(quotas: &[Quota]) -> Self {
        Self { gates: quotas.iter().copied().map(Gate::new).collect() }
    }

    /// Makes the call, and compares the reply with the result.
    ///
    /// # Errors
    ///
    /// The difference.
    pub fn call(&mut self, call: &Call, reply: &Reply) -> Result<(), String> {
        let now = call.now_us;
        let mut ended = 0;
        match (&call.verb, reply) {
            (Verb::Check(group), Reply::Taken(replies)) if replies.len() == 1 => {
                self.take(group, &replies[0], now)?;
            }
            (Verb::Take(groups), Reply::Taken(replies)) if groups.len() == replies.len() => {
                for (index, (group, reply)) in groups.iter().zip(replies).enumerate() {
                    let named = group.items.iter().filter(|item| item.names_holds);
                    named.for_each(|item| self.gates[item.gate].end_some(&mut ended, now));
                    self.take(group, reply, now).map_err(|error| format!("group {index}: {error}"))?;
                }
            }
            (Verb::Settle(items, token), Reply::Settled(replies)) => {
                let settle = |item: &SettleItem| {
                    let gate = &mut self.gates[item.gate];
                    gate.end_some(&mut ended, now);
                    gate.settle(item, token, now)
                };
                let expected: Vec<Settled> = items.iter().map(settle).collect();
                if expected != *replies {
                    return Err(format!("the settle does {expected:?}, not {replies:?}"));
                }
            }
            (verb, Reply::Done) => self.write(verb, now)?,
            _ => return Err("a reply to another call".to_owned()),
        }
        self.gates.iter_mut().for_each(Gate::forget_expiry);
        Ok(())
    }

    fn write(&mut self, verb: &Verb, now: u64) -> Result<(), String> {
        match *verb {
            Verb::Nothing => {}
            Verb::Penalize(gate, units) => self.gates[gate].charge(units, now),
            Verb::Refund(gate, units) => {
                let gate = &mut self.gates[gate];
                gate.used.refund(&gate.quota, units, None, now);
            }
            Verb::Block(gate, for_us) => {
                let gate = &mut self.gates[gate];
                gate.used.block(&gate.quota, if for_us == 0 { 0 } else { now + for_us }, now);
            }
            Verb::Reset(gate) => self.gates[gate] = Gate::new(self.gates[gate].quota),
            Verb::LoseState(gate) => self.gates[gate].used = Oracle::new(&self.gates[gate].quota),
            Verb::LoseHolds(gate) => self.gates[gate].holds.clear(),
            Verb::Check(_) | Verb::Take(_) | Verb::Settle(..) => {
                return Err("a reply without its numbers".to_owned());
            }
        }
        Ok(())
    }

    fn take(&mut self, group: &Group, reply: &Taken, now: u64) -> Result<(), String> {
        let mut repeated = Vec::new();
        let mut k = group.n;
        for (index, item) in group.items.iter().enumerate() {
            let gate = &mut self.gates[item.gate];
            if let Some(token) = &group.hold
                && gate.find(token, item.cost, false, now).is_some()
            {
                repeated.push(index);
                continue;
            }
            k = k.min(gate.used.afford(&gate.quota, (group.n, item.cost, item.max_delay), now));
        }
        if (k, &repeated) != (reply.k, &reply.repeated) {
            return Err(format!("definitions admit {k} and repeat {repeated:?}, not {reply:?}"));
        }
        for (index, (item, before)) in group.items.iter().zip(&reply.before).enumerate() {
            if repeated.contains(&index) {
                continue;
            }
            let gate = &mut self.gates[item.gate];
            gate.used
                .charge_group_item(&gate.quota, (item.cost, item.max_delay), (group.n, k, *before), now)
                .map_err(|error| format!("gate {}: {error}", item.gate))?;
            if let Some(token) = &group.hold
                && k * item.cost > 0
            {
                gate.insert(Hold::new(token, item.cost, now));
                let life = match gate.quota.calendar() {
                    _ if !token.is_refunded => 0,
                    Some(calendar) => calendar.window_at(now).end - now,
                    None => life_us(&gate.quota),
                };
                gate.kept_until_us = gate.kept_until_us.max(now + life.max(2 * token.ttl_us));
            }
        }
        Ok(())
    }

    /// Compares the reply to a peek at one unit of each gate with the state.
    ///
    /// # Errors
    ///
    /// The difference.
    pub fn peek(&self, before: &[Before], now: u64) -> Result<(), String> {
        for (index, (gate, before)) in self.gates.iter().zip(before).enumerate() {
            let quota = &gate.quota;
            let peek = reference::Taken { quota, cost: 1, max_delay: None, n: 0, k: 0, before: *before, now };
            let compared = gate.used.clone().take(quota, (0, 1, None), now, |_| peek.answer(0));
            compared.map_err(|error| format!("gate {index}: {error}"))?;
        }
        Ok(())
    }
}
