//! Runs the reference implementation of bans.

use tidegate::Quota;
use tidegate::reference::bans::{Counting, DenialCount, take};
use tidegate::reference::{self, Before, Record};

use super::oracle::{Call, Group, Item, Taken, Verb};
use super::player::{Seen, Subject};

/// The record and the denials of each gate's key.
#[derive(Debug)]
pub struct BanReference {
    gates: Vec<(Quota, Record, DenialCount)>,
}

impl BanReference {
    pub fn new(quotas: &[Quota]) -> Self {
        let gate = |quota: &Quota| (*quota, Record::default(), DenialCount::default());
        Self { gates: quotas.iter().map(gate).collect() }
    }

    fn take(&mut self, group: &Group, now: u64) -> Taken {
        // Each gate occurs once per group.
        let mut parts: Vec<_> = self.gates.iter_mut().map(Some).collect();
        let (mut items, mut counting) = (Vec::new(), Vec::new());
        for Item { gate, cost, max_delay, ban } in &group.items {
            let (quota, record, denials) = parts[*gate].take().unwrap();
            items.push(reference::Item::new(quota, record, *cost, *max_delay));
            let is_grant = group.is_grant;
            counting.push(ban.as_ref().map(|ban| Counting { is_grant, ..Counting::new(ban, denials) }));
        }
        let k = take(&mut items, &mut counting, group.n, now);
        let begins = |index: &usize| counting[*index].as_ref().is_some_and(|counting| counting.begins);
        Taken {
            k,
            before: items.iter().map(|item| item.before).collect(),
            begins: (0..items.len()).filter(begins).collect(),
        }
    }

    fn reply(&mut self, verb: &Verb, now: u64) -> Vec<Taken> {
        match verb {
            Verb::Nothing => {}
            Verb::Check(group) => return vec![self.take(group, now)],
            Verb::Take(groups) => return groups.iter().map(|group| self.take(group, now)).collect(),
            Verb::Block(gate, for_us) => {
                let (quota, record, denials) = &mut self.gates[*gate];
                if *for_us == 0 {
                    *denials = DenialCount::default();
                }
                record.block(quota, if *for_us == 0 { 0 } else { now + for_us }, now);
            }
            Verb::Reset(gate) => {
                self.gates[*gate].1 = Record::default();
                self.gates[*gate].2 = DenialCount::default();
            }
            Verb::LoseState(gate) => self.gates[*gate].1 = Record::default(),
            Verb::LoseCount(gate) => self.gates[*gate].2 = DenialCount::default(),
        }
        Vec::new()
    }

    fn peek(quota: &Quota, record: &mut Record, now: u64) -> Before {
        let mut items = [reference::Item::new(quota, record, 1, None)];
        reference::take(&mut items, 0, now);
        items[0].before
    }
}

impl Subject for BanReference {
    fn call(&mut self, call: &Call) -> Result<(Vec<Taken>, Vec<Seen>), String> {
        let now = call.now_us;
        for (_, record, denials) in &mut self.gates {
            if record.has_expired(now) {
                *record = Record::default();
            }
            if denials.has_expired(now) {
                *denials = DenialCount::default();
            }
        }
        let reply = self.reply(&call.verb, now);
        let seen = self.gates.iter_mut().map(|(quota, record, denials)| Seen {
            before: Self::peek(quota, record, now),
            state_expires_ms: (record.expires_ms > 0).then_some(record.expires_ms),
            denials: (denials.count > 0).then_some((denials.count, denials.ends_ms)),
        });
        Ok((reply, seen.collect()))
    }
}
