//! The definition of bans, written for clarity: lists of denials, one check at a time. It shares no code with the
//! scripts or with `src`, except the numbers of a quota.

use tidegate::reference::{self, Before};
use tidegate::{Ban, Quota};

use crate::oracle::Oracle;

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    pub now_us: u64,
    pub verb: Verb,
}

/// Gates are indices. Each gate has one key.
#[derive(Clone, Debug)]
pub enum Verb {
    Nothing,
    /// Checks of clients that know no bans.
    Check(Group),
    Take(Vec<Group>),
    /// Blocks the key for a time, in µs. 0 lifts the block.
    Block(usize, u64),
    /// Removes the state and the count of a key.
    Reset(usize),
    /// The server loses the state of a key.
    LoseState(usize),
    /// The server loses the count of a key.
    LoseCount(usize),
}

#[derive(Clone, Debug)]
pub struct Group {
    pub n: u64,
    pub is_grant: bool,
    pub items: Vec<Item>,
}

#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub gate: usize,
    pub cost: u64,
    pub max_delay: Option<u64>,
    pub ban: Option<Ban>,
}

/// The reply to a group.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The number of admitted checks.
    pub k: u64,
    /// The state of each item before.
    pub before: Vec<Before>,
    /// The items (from 0) whose ban begins.
    pub begins: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct Gate {
    pub quota: Quota,
    pub used: Oracle,
    /// The times of the denials that were counted together.
    pub denials: Vec<u64>,
    /// When they stop to count.
    pub counted_until: u64,
}

/// Gates with one key each.
#[derive(Clone, Debug)]
pub struct BanOracle {
    pub gates: Vec<Gate>,
}

impl Gate {
    fn new(quota: Quota) -> Self {
        Self { quota, used: Oracle::new(&quota), denials: Vec::new(), counted_until: 0 }
    }

    pub fn forget_denials(&mut self) {
        self.denials.clear();
    }

    fn block(&mut self, until: u64, now: u64) {
        self.used.block(&self.quota, until, now);
    }

    /// Counts one denial. Returns whether it begins the ban.
    fn deny(&mut self, ban: &Ban, now: u64) -> bool {
        if self.used.is_blocked(now) {
            return false;
        }
        // Denials stop to count with a millisecond.
        let latest = (now + ban.within().as_micros() as u64).div_ceil(1_000) * 1_000;
        if self.denials.is_empty() || self.counted_until <= now {
            self.denials.clear();
            self.counted_until = latest;
        }
        self.counted_until = self.counted_until.min(latest);
        self.denials.push(now);
        let begins = self.denials.len() as u64 >= ban.denials();
        if begins {
            self.forget_denials();
            self.block(now + ban.lasts().as_micros() as u64, now);
        }
        begins
    }
}

impl BanOracle {
    pub fn new(quotas: &[Quota]) -> Self {
        Self { gates: quotas.iter().copied().map(Gate::new).collect() }
    }

    /// Makes the call, and compares the replies with the results.
    ///
    /// # Errors
    ///
    /// The difference.
    pub fn call(&mut self, call: &Call, replies: &[Taken]) -> Result<(), String> {
        let now = call.now_us;
        let groups = match &call.verb {
            Verb::Check(group) => std::slice::from_ref(group),
            Verb::Take(groups) => groups,
            _ => &[],
        };
        if groups.len() != replies.len() {
            return Err("a reply to another call".to_owned());
        }
        for (index, (group, reply)) in groups.iter().zip(replies).enumerate() {
            self.take(group, reply, now).map_err(|error| format!("group {index}: {error}"))?;
        }
        match call.verb {
            Verb::Block(gate, 0) => {
                self.gates[gate].block(0, now);
                self.gates[gate].forget_denials();
            }
            Verb::Block(gate, for_us) => self.gates[gate].block(now + for_us, now),
            Verb::Reset(gate) => self.gates[gate] = Gate::new(self.gates[gate].quota),
            Verb::LoseState(gate) => self.gates[gate].used = Oracle::new(&self.gates[gate].quota),
            Verb::LoseCount(gate) => self.gates[gate].forget_denials(),
            Verb::Nothing | Verb::Check(_) | Verb::Take(_) => {}
        }
        Ok(())
    }

    fn take(&mut self, group: &Group, reply: &Taken, now: u64) -> Result<(), String> {
        let own = |item: &Item| {
            let Gate { quota, used, .. } = &self.gates[item.gate];
            used.afford(quota, (group.n, item.cost, item.max_delay), now)
        };
        let k = group.items.iter().map(own).min().unwrap_or(0);
        if k != reply.k {
            return Err(format!("definitions admit {k}, not {reply:?}"));
        }
        for (item, before) in group.items.iter().zip(&reply.before) {
            let Gate { quota, used, .. } = &mut self.gates[item.gate];
            let taken = (group.n, k, *before);
            used.charge_group_item(quota, (item.cost, item.max_delay), taken, now)
                .map_err(|error| format!("gate {}: {error}", item.gate))?;
        }
        // One check after the other: which of the keys alone would have denied it?
        let denied = match group.is_grant {
            true => u64::from(k == 0).min(group.n),
            false => group.n - k,
        };
        let mut begins = Vec::new();
        for _ in 0..denied {
            for (index, item) in group.items.iter().enumerate() {
                let gate = &mut self.gates[item.gate];
                let fits = item.cost == 0 || gate.used.fits(&gate.quota, item.cost, item.max_delay, now);
                if let Some(ban) = item.ban.filter(|_| !fits)
                    && gate.deny(&ban, now)
                {
                    begins.push(index);
                }
            }
        }
        begins.sort_unstable();
        if begins != reply.begins {
            return Err(format!("bans of {begins:?} begin, not {reply:?}"));
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
