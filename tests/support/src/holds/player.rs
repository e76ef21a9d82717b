//! Makes the steps of a [`Plan`] concrete, and runs them on the oracle and on an implementation, step by step.

use tidegate::reference::Before;

use super::call::{Call, Group, Hold, Item, Phase, Reply, SettleItem, Token, Verb};
use super::oracle::{HoldOracle, life_us};
use super::plan::{Action, Actual, Forgery, Part, Pause, Plan, TTLS_US, Ttl, Units};

/// In this range every time is exact in a double, and no window starts before 1970.
const TIMES_US: std::ops::RangeInclusive<u64> = 1 << 50..=1 << 52;

/// An implementation of reservations, on three gates with one key each.
pub trait Subject {
    /// Makes the call, then observes each gate at the same time.
    ///
    /// # Errors
    ///
    /// A call that failed.
    fn call(&mut self, call: &Call) -> Result<(Reply, Vec<Seen>), String>;
}

/// The state of a gate after a call.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The reply to a peek.
    pub before: Before,
    /// When the server removes the state (ms). `None` if there is none.
    pub state_expires_ms: Option<u64>,
    /// Sorted by their ends.
    pub holds: Vec<Hold>,
    /// When the server removes the holds (ms). `None` if there are none.
    pub holds_expire_ms: Option<u64>,
}

/// A sequence that runs.
pub struct Player<'a> {
    plan: &'a Plan,
    now: u64,
    oracle: HoldOracle,
    /// All reservations, newest last.
    reserved: Vec<Group>,
    seen: Vec<Option<Seen>>,
}

/// Runs a plan. Returns the number of calls.
///
/// # Errors
///
/// The first difference, and the calls before it.
pub fn run(plan: &Plan, subject: &mut impl Subject) -> Result<usize, String> {
    let mut player = Player::new(plan);
    let mut calls = Vec::new();
    for step in &plan.steps {
        player.pause(step.pause);
        let call = Call { now_us: player.now, verb: player.verb(&step.action) };
        let stepped = player.step(&call, subject);
        calls.push(call);
        stepped.map_err(|error| {
            let done = calls.iter().filter(|call| !matches!(call.verb, Verb::Nothing));
            let done: String = done.map(|call| format!("{call:?}\n")).collect();
            format!("{:?}\n{done}then {error}\n{:?}", plan.quotas, player.oracle)
        })?;
    }
    Ok(calls.len())
}

/// Returns the part `share / 65535` of a number, from 0 to all of it.
fn share(whole: u64, share: u16) -> u64 {
    (u128::from(whole) * u128::from(share) / 0xffff) as u64
}

impl<'a> Player<'a> {
    fn new(plan: &'a Plan) -> Self {
        Self {
            plan,
            now: plan.start_us,
            oracle: HoldOracle::new(&plan.quotas),
            reserved: Vec::new(),
            seen: vec![None; plan.quotas.len()],
        }
    }

    fn step(&mut self, call: &Call, subject: &mut impl Subject) -> Result<(), String> {
        self.expire()?;
        let (reply, seen) = subject.call(call)?;
        self.oracle.call(call, &reply)?;
        let before: Vec<Before> = seen.iter().map(|seen| seen.before).collect();
        self.oracle.peek(&before, self.now).map_err(|error| format!("{error}, after {reply:?}"))?;
        for (gate, seen) in self.oracle.gates.iter_mut().zip(&seen) {
            if gate.holds != seen.holds {
                return Err(format!("the holds are not {:?}", seen.holds));
            }
            let kept = seen.holds_expire_ms.map(|ms| ms * 1_000);
            if !gate.holds.is_empty() && kept.is_none_or(|kept| kept < gate.kept_until_us) {
                return Err(format!("the holds expire at {kept:?}, before {}", gate.kept_until_us));
            }
            if seen.before.blocked_until_us == 0 {
                gate.used.forget_block(self.now);
            }
        }
        self.seen = seen.into_iter().map(Some).collect();
        Ok(())
    }

    /// Lets the oracle forget the keys that the server has removed by now.
    fn expire(&mut self) -> Result<(), String> {
        let now = self.now;
        let has_passed = |at: Option<u64>| at.is_some_and(|at_ms| now / 1_000 > at_ms);
        for (gate, seen) in self.oracle.gates.iter_mut().zip(&self.seen) {
            let Some(seen) = seen else { continue };
            // First the holds: an end of one must not have changed a state that is removed.
            if has_passed(seen.holds_expire_ms) {
                gate.expire_holds(now)?;
            }
            if has_passed(seen.state_expires_ms) {
                gate.used.expire(&gate.quota, now)?;
            }
        }
        Ok(())
    }

    fn gate(&self, index: u8) -> usize {
        usize::from(index) % self.plan.quotas.len()
    }

    fn pause(&mut self, pause: Pause) {
        let life = |gate| life_us(&self.plan.quotas[self.gate(gate)]);
        let until = |at: u64, more: i64| at.saturating_add_signed(more).saturating_sub(self.now) as i64;
        let by = match pause {
            Pause::None => 0,
            Pause::Micros(us) => us as i64,
            Pause::HoldEnd(next, more) => {
                let holds = self.oracle.gates.iter().flat_map(|gate| &gate.holds);
                let mut ends: Vec<u64> = holds.map(|hold| hold.end_us).filter(|at| *at > self.now).collect();
                ends.sort_unstable();
                ends.dedup();
                ends.get(usize::from(next).min(ends.len().saturating_sub(1))).map_or(0, |at| until(*at, more))
            }
            Pause::Life(gate, more) => {
                let mut open = self.oracle.gates[self.gate(gate)].holds.iter();
                let open = open.find(|hold| hold.phase != Phase::Late);
                open.map_or(0, |hold| until(hold.end_us - hold.ttl_us + life(gate), more))
            }
            Pause::Share(gate, part) => share(life(gate), part) as i64,
            Pause::StepBack(us) => -(us as i64),
        };
        self.now = self.now.saturating_add_signed(by).clamp(*TIMES_US.start(), *TIMES_US.end());
    }

    fn verb(&mut self, action: &Action) -> Verb {
        match action {
            Action::Nothing => Verb::Nothing,
            Action::Check(n, parts) => Verb::Check(self.group(*n, parts, 0)),
            Action::Take(seeing, groups) => {
                Verb::Take(groups.iter().map(|(n, parts)| self.group(*n, parts, *seeing)).collect())
            }
            Action::Reserve(parts, ttl, is_refunded) => {
                let hold = Some(self.token(*ttl, *is_refunded));
                let group = Group { hold, ..self.group(1, parts, u8::MAX) };
                self.reserved.push(group.clone());
                Verb::Take(vec![group])
            }
            Action::Crowd(gate, number, ends) => {
                let gate = self.gate(*gate);
                let first = self.reserved.len();
                for index in 0..usize::from(*number) {
                    let (ttl, is_refunded) = ends[index % 2];
                    let hold = Some(self.token(ttl, is_refunded));
                    let items = vec![Item { gate, cost: 1, max_delay: None, names_holds: true }];
                    self.reserved.push(Group { n: 1, items, hold });
                }
                Verb::Take(self.reserved[first..].to_vec())
            }
            Action::Repeat(back) => match self.reservation(*back) {
                Some(group) => Verb::Take(vec![group.clone()]),
                None => Verb::Nothing,
            },
            Action::Settle(back, actuals) => self.settle(*back, actuals, None),
            Action::Forge(back, forgery) => self.settle(*back, &[Actual::Zero; 3], Some(*forgery)),
            Action::Penalize(gate, units) => Verb::Penalize(self.gate(*gate), self.units(*gate, *units)),
            Action::Refund(gate, units) => Verb::Refund(self.gate(*gate), self.units(*gate, *units)),
            Action::Block(gate, part) => {
                let gate = self.gate(*gate);
                Verb::Block(gate, share(life_us(&self.plan.quotas[gate]), *part))
            }
            Action::Reset(gate) => Verb::Reset(self.gate(*gate)),
            Action::LoseState(gate) => Verb::LoseState(self.gate(*gate)),
            Action::LoseHolds(gate) => Verb::LoseHolds(self.gate(*gate)),
        }
    }

    fn token(&self, ttl: Ttl, is_refunded: bool) -> Token {
        let ttl_us = match ttl {
            Ttl::Micros(us) => us,
            Ttl::Share(part) => share(life_us(&self.plan.quotas[0]), part),
        };
        let number = self.reserved.len() as u64;
        Token {
            // Ids do not sort by age.
            id: format!("{:015x}-", number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 4),
            ttl_us: ttl_us.clamp(*TTLS_US.start(), *TTLS_US.end()),
            is_refunded,
        }
    }

    fn units(&self, gate: u8, units: Units) -> u64 {
        let limit = self.plan.quotas[self.gate(gate)].limit();
        match units {
            Units::Few(units) => units.min(limit),
            Units::Share(part) => share(limit, part).max(1),
        }
    }

    /// Each gate occurs once per group, since the limiter merges duplicates.
    fn group(&self, n: u64, parts: &[Part], seeing: u8) -> Group {
        let is_single = parts.len() == 1;
        let mut items: Vec<Item> = Vec::new();
        for part in parts {
            let gate = self.gate(part.gate);
            if items.iter().all(|item| item.gate != gate) {
                let life = life_us(&self.plan.quotas[gate]);
                items.push(Item {
                    gate,
                    cost: if part.is_free && !is_single { 0 } else { self.units(part.gate, part.units) },
                    max_delay: part.max_delay.map(|part| share(life, part)),
                    names_holds: seeing >> gate & 1 == 1,
                });
            }
        }
        Group { n, items, hold: None }
    }

    fn reservation(&self, back: u8) -> Option<&Group> {
        let index = self.reserved.len().checked_sub(1)?;
        self.reserved.get(index - usize::from(back) % (index + 1))
    }

    fn settle(&self, back: u8, actuals: &[Actual], forgery: Option<Forgery>) -> Verb {
        let Some((group, mut token)) =
            self.reservation(back).and_then(|group| Some((group, group.hold.clone()?)))
        else {
            return Verb::Nothing;
        };
        let charged = group.items.iter().filter(|item| item.cost > 0);
        let mut items: Vec<SettleItem> = charged
            .zip(actuals)
            .map(|(item, actual)| SettleItem {
                gate: item.gate,
                units: item.cost,
                actual: match actual {
                    Actual::Zero => 0,
                    Actual::All => item.cost,
                    Actual::Share(part) => share(item.cost, *part),
                    Actual::More(units) => item.cost + units,
                },
            })
            .collect();
        match forgery {
            None => {}
            Some(Forgery::Id) => token.id.replace_range(..1, "~"),
            Some(Forgery::Units) => items.iter_mut().for_each(|item| item.units += 1),
            Some(Forgery::Ttl) => token.ttl_us += 1,
            Some(Forgery::What) => token.is_refunded = !token.is_refunded,
        }
        if items.is_empty() { Verb::Nothing } else { Verb::Settle(items, token) }
    }
}
