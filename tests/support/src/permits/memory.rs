//! The reference implementation, with a record for each key.

use tidegate::algorithm::State as KeyState;
use tidegate::reference::in_flight::{self, Acquire, PermitLeases, Refused};
use tidegate::reference::{self, Record};
use tidegate::{Quota, Rate};

use super::call::{
    Call, Group, Item, KEPT_US, KEYS, LeaseVerb, Limit, Loss, Message, Outcome, Refusal, Reply,
};
use super::state::{Entry, Kept, Level, Permits, State, Store};

#[derive(Debug)]
pub struct Memory {
    keys: [Record; KEYS],
    bucket: Record,
    bucket_quota: Quota,
    leases: PermitLeases,
    leases_expire_ms: u64,
}

impl Default for Memory {
    fn default() -> Self {
        let bucket_quota = Quota::token_bucket(1, Rate::per_second(1));
        Self {
            keys: Default::default(),
            bucket: Record::default(),
            bucket_quota,
            leases: PermitLeases::default(),
            leases_expire_ms: 0,
        }
    }
}

impl Memory {
    fn expire(&mut self, call: &Call, now: u64) {
        for key in call.keys() {
            expire(&mut self.keys[key], now);
        }
        if call.names_bucket() {
            expire(&mut self.bucket, now);
        }
        if call.names_leases() && now / 1_000 > self.leases_expire_ms {
            self.leases = PermitLeases::default();
        }
    }

    fn take(&mut self, group: &Group, now: u64) -> Result<Outcome, Refusal> {
        let quotas: Vec<Quota> = group
            .items
            .iter()
            .map(|item| match item {
                Item::Permit { limit, .. } => quota(*limit),
                Item::Bucket { .. } => self.bucket_quota,
            })
            .collect();
        let mut records: Vec<Record> =
            group.items.iter().map(|item| std::mem::take(self.record(item))).collect();
        let mut items: Vec<Acquire<'_>> = group
            .items
            .iter()
            .zip(&quotas)
            .zip(&mut records)
            .map(|((item, quota), record)| Acquire {
                item: reference::Item::new(quota, record, item.cost(), None),
                message: item.message().map(message),
            })
            .collect();
        let k = in_flight::acquire(&mut items, group.n, &mut self.leases, now);
        let before = items.iter().map(|acquire| acquire.item.before).collect();
        for (item, record) in group.items.iter().zip(records) {
            *self.record(item) = record;
        }
        match k {
            Ok(k) => Ok(Outcome { k, before }),
            Err(Refused::Lapsed(_)) => Err(Refusal::Lapsed),
            Err(Refused::Stale(_)) => Err(Refusal::Stale),
        }
    }

    fn record(&mut self, item: &Item) -> &mut Record {
        match item {
            Item::Permit { key, .. } => &mut self.keys[*key],
            Item::Bucket { .. } => &mut self.bucket,
        }
    }

    fn lease(&mut self, verb: LeaseVerb, name: &str, now: u64) -> Reply {
        let end = match verb {
            LeaseVerb::Open => self.leases.open(name, now),
            LeaseVerb::Renew => self.leases.renew(name, now),
            LeaseVerb::End => {
                self.leases.end(name);
                return Reply::Lease(Ok(now));
            }
        };
        // As Redis; in a process nothing expires the leases.
        self.leases_expire_ms = (now + KEPT_US).div_ceil(1_000);
        Reply::Lease(end.ok_or(Refusal::Lapsed))
    }

    fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Everything => *self = Self { bucket_quota: self.bucket_quota, ..Self::default() },
            Loss::Key(key) => self.keys[key] = Record::default(),
            Loss::Leases => self.leases = PermitLeases::default(),
        }
    }

    fn state(&self) -> State {
        let leases: std::collections::BTreeMap<_, _> =
            self.leases.iter().map(|(name, end)| (name.to_owned(), end)).collect();
        let bucket = match self.bucket.state {
            KeyState::Level { ticks, at_us, .. } => Some(Level { ticks, at_us }),
            _ => None,
        };
        State {
            keys: [0, 1].map(|key: usize| permits(&self.keys[key])),
            leases: (!leases.is_empty()).then_some(Kept { value: leases, expires_ms: self.leases_expire_ms }),
            bucket: bucket.map(|value| Kept { value, expires_ms: self.bucket.expires_ms }),
        }
    }
}

impl Store for Memory {
    fn clear(&mut self, bucket: Quota) {
        *self = Self { bucket_quota: bucket, ..Self::default() };
    }

    fn call(&mut self, call: &Call, now: u64) -> Result<(Reply, State), String> {
        self.expire(call, now);
        let reply = match call {
            Call::Take(_, Some(bound)) if *bound <= now => Reply::Late,
            Call::Take(groups, _) => Reply::Take(groups.iter().map(|group| self.take(group, now)).collect()),
            Call::Lease(verb, name) => self.lease(*verb, name, now),
            Call::Block { key, limit, for_us } => {
                let until = if *for_us > 0 { now + for_us } else { 0 };
                self.keys[*key].block(&quota(*limit), until, now);
                Reply::Done
            }
            Call::Lose(loss) => {
                self.lose(*loss);
                Reply::Done
            }
        };
        Ok((reply, self.state()))
    }
}

fn expire(record: &mut Record, now: u64) {
    if record.has_expired(now) {
        *record = Record::default();
    }
}

fn quota(limit: Limit) -> Quota {
    Quota::in_flight(limit.units)
}

fn message(message: &Message) -> in_flight::Message<'_> {
    in_flight::Message {
        holder: &message.holder,
        lease_end_us: message.lease_end_us,
        number: message.number,
        keep: message.keep,
    }
}

fn permits(record: &Record) -> Option<Kept<Permits>> {
    if *record == Record::default() {
        return None;
    }
    let mut permits = Permits { blocked_until_us: record.blocked_until_us, ..Permits::default() };
    if let KeyState::InFlight(holdings) = &record.state {
        permits.held = holdings.held;
        permits.sure_until_us = holdings.sure_until_us;
        permits.entries = holdings
            .holders
            .iter()
            .map(|(name, holding)| (name.clone(), Entry { units: holding.units, number: holding.number }))
            .collect();
    }
    Some(Kept { value: permits, expires_ms: record.expires_ms })
}
