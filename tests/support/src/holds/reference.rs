//! Runs the reference implementation of reservations.

use tidegate::reference::holds::{AtEnd, Call as HoldCall, Holds, NewHold, Part};
use tidegate::reference::{Before, Record, take};
use tidegate::{Quota, Settlement, reference};

use super::call::{Call, Group, Hold, Item, Phase, Reply, SettleItem, Settled, Taken, Token, Verb};
use super::player::{Seen, Subject};

/// The record and the holds of each gate's key.
#[derive(Debug)]
pub struct HoldReference {
    gates: Vec<(Quota, Record, Holds)>,
}

fn new_hold(token: &Token) -> NewHold {
    NewHold { id: token.id.as_str().into(), ttl_us: token.ttl_us, is_refunded: token.is_refunded }
}

impl HoldReference {
    pub fn new(quotas: &[Quota]) -> Self {
        let gate = |quota: &Quota| (*quota, Record::default(), Holds::default());
        Self { gates: quotas.iter().map(gate).collect() }
    }

    fn take(&mut self, group: &Group, call: &mut HoldCall) -> Taken {
        let hold = group.hold.as_ref().map(new_hold);
        // Each gate occurs once per group.
        let mut parts: Vec<Option<Part<'_>>> = group.items.iter().map(|_| None).collect();
        for (gate, (quota, record, holds)) in self.gates.iter_mut().enumerate() {
            if let Some(index) = group.items.iter().position(|item| item.gate == gate) {
                let Item { cost, max_delay, names_holds, .. } = group.items[index];
                parts[index] = Some(Part::new(quota, record, cost, max_delay, names_holds.then_some(holds)));
            }
        }
        let mut parts: Vec<Part<'_>> = parts.into_iter().flatten().collect();
        let k = call.reserve(&mut parts, group.n, hold.as_ref());
        Taken {
            k,
            before: parts.iter().map(|part| part.item.before).collect(),
            repeated: (0..parts.len()).filter(|index| parts[*index].was_held).collect(),
        }
    }

    fn settle(&mut self, item: &SettleItem, token: &Token, call: &mut HoldCall) -> Settled {
        let (quota, record, holds) = &mut self.gates[item.gate];
        match call.settle(quota, record, holds, &new_hold(token), item.units, item.actual) {
            Settlement::Settled => Settled::Settled,
            Settlement::Late => Settled::Late,
            Settlement::Nothing => Settled::Nothing,
            other => panic!("{other:?}"),
        }
    }

    fn reply(&mut self, verb: &Verb, now: u64) -> Reply {
        let mut call = HoldCall::at(now);
        match verb {
            Verb::Nothing => {}
            Verb::Check(group) => return Reply::Taken(vec![self.take(group, &mut call)]),
            Verb::Take(groups) => {
                return Reply::Taken(groups.iter().map(|group| self.take(group, &mut call)).collect());
            }
            Verb::Settle(items, token) => {
                let settled = items.iter().map(|item| self.settle(item, token, &mut call));
                return Reply::Settled(settled.collect());
            }
            Verb::Penalize(gate, units) => {
                let (quota, record, _) = &mut self.gates[*gate];
                record.penalize(quota, *units, now);
            }
            Verb::Refund(gate, units) => {
                let (quota, record, _) = &mut self.gates[*gate];
                record.refund(quota, *units, None, now);
            }
            Verb::Block(gate, for_us) => {
                let (quota, record, _) = &mut self.gates[*gate];
                record.block(quota, if *for_us == 0 { 0 } else { now + for_us }, now);
            }
            Verb::Reset(gate) => {
                self.gates[*gate].1 = Record::default();
                self.gates[*gate].2 = Holds::default();
            }
            Verb::LoseState(gate) => self.gates[*gate].1 = Record::default(),
            Verb::LoseHolds(gate) => self.gates[*gate].2 = Holds::default(),
        }
        Reply::Done
    }

    fn peek(quota: &Quota, record: &mut Record, now: u64) -> Before {
        let mut items = [reference::Item::new(quota, record, 1, None)];
        take(&mut items, 0, now);
        items[0].before
    }
}

impl Subject for HoldReference {
    fn call(&mut self, call: &Call) -> Result<(Reply, Vec<Seen>), String> {
        let now = call.now_us;
        for (_, record, holds) in &mut self.gates {
            if record.has_expired(now) {
                *record = Record::default();
            }
            if holds.has_expired(now) {
                *holds = Holds::default();
            }
        }
        let reply = self.reply(&call.verb, now);
        let seen = self.gates.iter_mut().map(|(quota, record, holds)| Seen {
            before: Self::peek(quota, record, now),
            state_expires_ms: (record.expires_ms > 0).then_some(record.expires_ms),
            holds: holds.iter().map(|(end_us, hold)| seen(end_us, hold)).collect(),
            holds_expire_ms: (!holds.is_empty()).then(|| holds.expires_ms()),
        });
        Ok((reply, seen.collect()))
    }
}

fn seen(end_us: u64, hold: &reference::holds::Hold) -> Hold {
    let phase = match hold.at_end {
        AtEnd::Keep => Phase::Keep,
        AtEnd::Refund => Phase::Back,
        AtEnd::Forget => Phase::Late,
    };
    Hold { id: hold.id.to_string(), units: hold.units, ttl_us: hold.ttl_us, phase, end_us }
}
