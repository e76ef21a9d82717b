//! Makes the steps of a [`Plan`] concrete, and runs them on the oracle and on an implementation, step by step.

use tidegate::reference::Before;

use super::oracle::{BanOracle, Call, Group, Item, Taken, Verb};
use super::plan::{Action, Part, Pause, Plan};
use crate::holds::oracle::life_us;
use crate::holds::plan::Units;

/// In this range every time is exact in a double, and no window starts before 1970.
const TIMES_US: std::ops::RangeInclusive<u64> = 1 << 50..=1 << 52;

/// An implementation of bans, on three gates with one key each.
pub trait Subject {
    /// Makes the call, then observes each gate at the same time. Returns a reply for each group of checks.
    ///
    /// # Errors
    ///
    /// A call that failed.
    fn call(&mut self, call: &Call) -> Result<(Vec<Taken>, Vec<Seen>), String>;
}

/// The state of a gate after a call.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The reply to a peek.
    pub before: Before,
    /// When the server removes the state (ms). `None` if there is none.
    pub state_expires_ms: Option<u64>,
    /// The number of counted denials, and when the server removes it (ms).
    pub denials: Option<(u64, u64)>,
}

struct Player<'a> {
    plan: &'a Plan,
    now: u64,
    oracle: BanOracle,
    seen: Vec<Option<Seen>>,
}

/// Runs a plan. Returns the number of calls.
///
/// # Errors
///
/// The first difference, and the calls before it.
pub fn run(plan: &Plan, subject: &mut impl Subject) -> Result<usize, String> {
    let (oracle, seen) = (BanOracle::new(&plan.quotas), vec![None; plan.quotas.len()]);
    let mut player = Player { plan, now: plan.start_us, oracle, seen };
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

impl Player<'_> {
    fn step(&mut self, call: &Call, subject: &mut impl Subject) -> Result<(), String> {
        self.expire()?;
        let (replies, seen) = subject.call(call)?;
        self.oracle.call(call, &replies)?;
        let before: Vec<Before> = seen.iter().map(|seen| seen.before).collect();
        self.oracle.peek(&before, self.now).map_err(|error| format!("{error}, after {replies:?}"))?;
        for (index, (gate, seen)) in self.oracle.gates.iter_mut().zip(&seen).enumerate() {
            let count = gate.denials.len() as u64;
            let expected = (count > 0).then_some((count, gate.counted_until / 1_000));
            if expected != seen.denials {
                return Err(format!("gate {index}: the denials are {expected:?}, not {:?}", seen.denials));
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
        let now_ms = self.now / 1_000;
        for (gate, seen) in self.oracle.gates.iter_mut().zip(&self.seen) {
            let Some(seen) = seen else { continue };
            if seen.state_expires_ms.is_some_and(|at_ms| now_ms > at_ms) {
                gate.used.expire(&gate.quota, self.now)?;
            }
            if seen.denials.is_some_and(|(_, at_ms)| now_ms > at_ms) {
                gate.forget_denials();
            }
        }
        Ok(())
    }

    fn gate(&self, index: u8) -> usize {
        usize::from(index) % self.plan.quotas.len()
    }

    fn pause(&mut self, pause: Pause) {
        let until = |at: u64, more: i64| match at > self.now {
            true => at.saturating_add_signed(more).saturating_sub(self.now) as i64,
            false => 0,
        };
        let by = match pause {
            Pause::None => 0,
            Pause::Micros(us) => us as i64,
            Pause::CountEnd(gate, more) => {
                let gate = &self.oracle.gates[self.gate(gate)];
                if gate.denials.is_empty() { 0 } else { until(gate.counted_until, more) }
            }
            Pause::BlockEnd(gate, more) => {
                until(self.oracle.gates[self.gate(gate)].used.blocked_until(), more)
            }
            Pause::Share(gate, part) => share(life_us(&self.plan.quotas[self.gate(gate)]), part) as i64,
            Pause::StepBack(us) => -(us as i64),
        };
        self.now = self.now.saturating_add_signed(by).clamp(*TIMES_US.start(), *TIMES_US.end());
    }

    fn verb(&self, action: &Action) -> Verb {
        match action {
            Action::Nothing => Verb::Nothing,
            Action::Check(n, parts) => {
                let parts: Vec<Part> = parts.iter().map(|part| Part { ban: None, ..*part }).collect();
                Verb::Check(self.group(*n, false, &parts))
            }
            Action::Take(groups) => {
                let group = |(n, is_grant, parts): &(u64, bool, Vec<Part>)| self.group(*n, *is_grant, parts);
                Verb::Take(groups.iter().map(group).collect())
            }
            Action::Block(gate, part) => {
                let gate = self.gate(*gate);
                Verb::Block(gate, share(life_us(&self.plan.quotas[gate]), *part))
            }
            Action::Reset(gate) => Verb::Reset(self.gate(*gate)),
            Action::LoseState(gate) => Verb::LoseState(self.gate(*gate)),
            Action::LoseCount(gate) => Verb::LoseCount(self.gate(*gate)),
        }
    }

    /// Each gate occurs once per group, since the limiter merges duplicates.
    fn group(&self, n: u64, is_grant: bool, parts: &[Part]) -> Group {
        let is_single = parts.len() == 1;
        let mut items: Vec<Item> = Vec::new();
        for part in parts {
            let gate = self.gate(part.gate);
            if items.iter().all(|item| item.gate != gate) {
                let limit = self.plan.quotas[gate].limit();
                let units = match part.units {
                    Units::Few(units) => units.min(limit),
                    Units::Share(part) => share(limit, part).max(1),
                };
                items.push(Item {
                    gate,
                    cost: if part.is_free && !is_single { 0 } else { units },
                    max_delay: part.max_delay.map(|part| share(life_us(&self.plan.quotas[gate]), part)),
                    ban: part.ban.map(|second| self.plan.bans[usize::from(second)]),
                });
            }
        }
        Group { n, is_grant, items }
    }
}
