//! Plays a plan against a store, compares each reply with the oracle, and checks the properties that processes
//! depend on.

use super::call::{Call, Group, Item, KEYS, LeaseVerb, Limit, Loss, Refusal, Reply};
use super::oracle::Oracle;
use super::plan::{Action, Fate, Pause, Plan, Shape, Want};
use super::process::Process;
use super::properties::{confirm_beliefs, confirm_bound, confirm_forgotten};
use super::state::{State, Store};

/// In this range every time is exact in a double.
const TIMES_US: std::ops::Range<u64> = 1 << 50..1 << 52;
const MINUTE_US: u64 = 60_000_000;

/// Plays a plan on an empty store. Returns the number of calls.
///
/// # Errors
///
/// The first difference, after the calls that led to it.
pub fn play(plan: &Plan, store: &mut dyn Store) -> Result<usize, String> {
    store.clear(plan.bucket);
    let mut player = Player {
        plan,
        store,
        oracle: Oracle::new(plan.bucket),
        now: plan.start_us,
        processes: plan.processes.iter().map(|process| Process::new(process.ttl_us)).collect(),
        names: 0,
        sent: Vec::new(),
        history: Vec::new(),
    };
    let mut steps = || -> Result<(), String> {
        plan.steps.iter().try_for_each(|step| {
            player.pause(step.pause);
            player.act(&step.action)?;
            confirm_beliefs(&player.processes, player.oracle.state(), player.now)?;
            confirm_forgotten(&player.processes, player.oracle.state(), player.now)
        })?;
        player.confirm_nothing_leaks()
    };
    match steps() {
        Ok(()) => Ok(player.history.len()),
        Err(error) => Err(format!("{}\n{error}", player.history.join("\n"))),
    }
}

struct Player<'a> {
    plan: &'a Plan,
    store: &'a mut dyn Store,
    oracle: Oracle,
    now: u64,
    processes: Vec<Process>,
    /// The number of names used.
    names: usize,
    /// Earlier takes of processes, which may arrive again.
    sent: Vec<Sent>,
    history: Vec<String>,
}

/// Returns whether groups have messages about the same key.
fn is_shared(groups: &[Group]) -> bool {
    let mut messages = groups.iter().flat_map(Group::permits).filter_map(|(_, message)| message);
    messages.any(|message| message.keep.is_none())
}

/// A take that a process has sent.
#[derive(Clone, Debug)]
struct Sent {
    process: usize,
    groups: Vec<Group>,
    bound: Option<u64>,
    /// Whether no client sends it again: it was answered. Or whether the store's clock was set back since, so that
    /// times that had passed have not.
    is_over: bool,
}

impl Player<'_> {
    fn pause(&mut self, pause: Pause) {
        let now = self.now;
        let key = |key: u8| self.oracle.state().keys[usize::from(key) % KEYS].as_ref();
        let process = |process: u8| &self.processes[usize::from(process) % self.processes.len()];
        let until =
            |time: Option<u64>, more: i64| time.map_or(now, |time| time.saturating_add_signed(more).max(now));
        self.now = match pause {
            Pause::None => now,
            Pause::Micros(us) => now + us,
            Pause::Ttl(index, part) => now + process(index).ttl_us * u64::from(part) / 0xffff,
            Pause::LeaseEnd(index, more) => {
                let name = process(index).name.as_ref();
                until(name.and_then(|name| self.oracle.state().lease_end(name)), more)
            }
            Pause::KnownEnd(index, more) => until(Some(process(index).lease_end_us), more),
            Pause::SureUntil(index, more) => until(key(index).map(|kept| kept.value.sure_until_us), more),
            Pause::BlockEnd(index, more) => until(key(index).map(|kept| kept.value.blocked_until_us), more),
            Pause::Bound(more) => until(self.sent.last().and_then(|sent| sent.bound), more),
            Pause::Step(us) => now.saturating_add_signed(us),
        }
        .clamp(TIMES_US.start, TIMES_US.end);
        if self.now < now {
            self.sent.iter_mut().for_each(|sent| sent.is_over = true);
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        let count = self.processes.len();
        let index = |process: &u8| usize::from(*process) % count;
        let key = |key: &u8| usize::from(*key) % KEYS;
        match action {
            Action::Acquire(process, wants, fate, bound) => {
                self.acquire(index(process), wants, *fate, bound.map(|after| self.now + after))
            }
            Action::Renew(process, fate) => self.renew(index(process), *fate),
            Action::RenewAll => self.renew_all(),
            Action::Idle(heartbeats) => {
                let is_slow = self.processes.iter().all(|process| process.ttl_us >= MINUTE_US);
                (0..if is_slow { *heartbeats } else { 0 }).try_for_each(|_| {
                    self.now += MINUTE_US * 4 / 5;
                    self.renew_all()
                })
            }
            Action::Repeat(process, fate) => {
                let process = index(process);
                // The reply would not tell which groups were admitted that share a message.
                let unanswered =
                    self.processes[process].unanswered.take().filter(|groups| !is_shared(groups));
                unanswered.map_or(Ok(()), |groups| self.send(process, groups, *fate, None))
            }
            Action::Copy(back) => {
                let copy = self.sent.iter().rev().nth(usize::from(*back) % 16).cloned();
                copy.map_or(Ok(()), |copy| self.deliver_again(copy))
            }
            Action::Kill(process) => {
                self.replace(index(process));
                Ok(())
            }
            Action::End(process, is_orderly) => self.end(index(process), *is_orderly),
            Action::Peek(index) => {
                let (key, limit) = (key(index), self.limit(key(index), 0));
                let items = vec![Item::Permit { key, limit, cost: 1, message: None }];
                self.call(&Call::Take(vec![Group { n: 0, items }], None)).map(drop)
            }
            Action::Block(index, part) => {
                let for_us = 1 + MINUTE_US * u64::from(*part) / 0xffff;
                self.block(key(index), for_us)
            }
            Action::Unblock(index) => self.block(key(index), 0),
            Action::Lose(loss) => {
                self.call(&Call::Lose(*loss))?;
                for process in &mut self.processes {
                    for key in 0..KEYS {
                        process.is_unrestored[key] |= *loss == Loss::Everything || *loss == Loss::Key(key);
                    }
                }
                Ok(())
            }
        }
    }

    fn limit(&self, key: usize, index: u8) -> Limit {
        let gate = &self.plan.gates[key];
        Limit { units: gate.limits[usize::from(index) % gate.limits.len()] }
    }

    /// Puts a new process in place of one that ended or was killed.
    fn replace(&mut self, process: usize) {
        self.processes[process] = Process::new(self.processes[process].ttl_us);
    }

    fn block(&mut self, key: usize, for_us: u64) -> Result<(), String> {
        self.call(&Call::Block { key, limit: self.limit(key, 0), for_us }).map(drop)
    }

    /// Opens a lease if the process has none.
    fn open(&mut self, process: usize) -> Result<(), String> {
        if self.processes[process].name.is_some() {
            return Ok(());
        }
        let ttl_us = self.processes[process].ttl_us;
        self.names += 1;
        let name = format!("p{process}.{}/{}", self.names, ttl_us / 1_000);
        let Reply::Lease(Ok(end)) = self.call(&Call::Lease(LeaseVerb::Open, name.clone()))? else {
            return Err(format!("{name} is refused"));
        };
        let process = &mut self.processes[process];
        (process.name, process.lease_end_us) = (Some(name), end);
        Ok(())
    }

    fn renew_all(&mut self) -> Result<(), String> {
        (0..self.processes.len()).try_for_each(|process| self.renew(process, Fate::Answered))
    }

    fn renew(&mut self, process: usize, fate: Fate) -> Result<(), String> {
        let Some(name) = self.processes[process].name.clone() else { return self.open(process) };
        if fate == Fate::LostCall {
            return Ok(());
        }
        let reply = self.call(&Call::Lease(LeaseVerb::Renew, name))?;
        match reply {
            _ if fate == Fate::LostReply => Ok(()),
            Reply::Lease(Ok(end)) => {
                self.processes[process].lease_end_us = end;
                Ok(())
            }
            _ => {
                self.forget_name(process);
                self.open(process)?;
                self.report_all(process)
            }
        }
    }

    fn forget_name(&mut self, process: usize) {
        self.processes[process].forget_name(self.plan.processes[process].restores);
    }

    /// Reports the units held on each key.
    fn report_all(&mut self, process: usize) -> Result<(), String> {
        let groups = (0..KEYS)
            .map(|key| {
                let limit = self.limit(key, 0);
                Group { n: 0, items: vec![self.processes[process].item(key, limit, 1, 0)] }
            })
            .collect();
        self.send(process, groups, Fate::Answered, None)
    }

    fn end(&mut self, process: usize, is_orderly: bool) -> Result<(), String> {
        let Some(name) = self.processes[process].name.clone() else { return Ok(()) };
        if is_orderly {
            self.processes[process].held = [0; KEYS];
            self.report_all(process)?;
        }
        self.call(&Call::Lease(LeaseVerb::End, name))?;
        self.replace(process);
        Ok(())
    }

    fn acquire(
        &mut self,
        process: usize,
        wants: &[Want],
        fate: Fate,
        bound: Option<u64>,
    ) -> Result<(), String> {
        self.open(process)?;
        let mut groups: Vec<Group> = Vec::new();
        for want in wants {
            let (keys, has_bucket) = match want.shape {
                Shape::Key(key) => (vec![usize::from(key) % KEYS], false),
                Shape::KeyAndBucket(key) => (vec![usize::from(key) % KEYS], true),
                Shape::Both => (vec![0, 1], false),
                Shape::All => (vec![1, 0], true),
            };
            let mut items = Vec::new();
            for key in keys {
                let limit = self.limit(key, want.limit);
                let process = &mut self.processes[process];
                if groups.iter().any(|group| group.message(key).is_some()) {
                    items.push(process.shared_item(key, limit, want.cost.min(limit.units)));
                    continue;
                }
                let released = (process.held[key] * u64::from(want.released)).div_ceil(0xffff);
                items.push(process.item(key, limit, want.cost.min(limit.units), released));
            }
            if has_bucket {
                let at = items.len() * usize::from(want.limit % 2);
                items.insert(at, Item::Bucket { cost: want.cost.min(self.plan.bucket.limit()) });
            }
            groups.push(Group { n: want.n, items });
        }
        self.send(process, groups, fate, bound)
    }

    /// Sends the newest messages of a process. Of a call that the store refuses as late, with a bound for another time
    /// than the store's, the process learns the store's time, and sends it again.
    fn send(
        &mut self,
        process: usize,
        groups: Vec<Group>,
        fate: Fate,
        bound: Option<u64>,
    ) -> Result<(), String> {
        let is_answered = fate == Fate::Answered;
        self.sent.push(Sent { process, groups: groups.clone(), bound, is_over: is_answered });
        self.processes[process].unanswered = (!is_answered).then(|| groups.clone());
        if !is_answered {
            self.processes[process].doubt(&groups, bound);
        }
        if fate == Fate::LostCall {
            return Ok(());
        }
        let outcomes = match self.call(&Call::Take(groups.clone(), bound))? {
            Reply::Take(outcomes) => outcomes,
            Reply::Late if fate == Fate::LostReply => return Ok(()),
            Reply::Late => return self.send(process, groups, fate, Some(self.now + 1)),
            reply => return Err(format!("{reply:?}")),
        };
        if fate == Fate::LostReply {
            return Ok(());
        }
        for (group, outcome) in groups.iter().zip(outcomes) {
            match outcome {
                Ok(outcome) => self.processes[process].record(group, &outcome, self.now),
                Err(Refusal::Lapsed) => self.forget_name(process),
                Err(Refusal::Stale) => return Err("the newest message is stale".to_owned()),
            }
        }
        Ok(())
    }

    /// Delivers a copy of an earlier call. The sender's process may have forgotten its keys by then.
    fn deliver_again(&mut self, sent: Sent) -> Result<(), String> {
        let reply = self.call(&Call::Take(sent.groups.clone(), sent.bound))?;
        if sent.is_over && matches!(reply, Reply::Take(_)) {
            self.processes[sent.process].doubt(&sent.groups, sent.bound);
        }
        Ok(())
    }

    fn call(&mut self, call: &Call) -> Result<Reply, String> {
        let before = self.oracle.state().clone();
        let result = self.store.call(call, self.now);
        self.history.push(match &result {
            Ok((reply, _)) => format!("{}: {call:?} -> {reply:?}", self.now),
            Err(error) => format!("{}: {call:?} -> {error}", self.now),
        });
        let (reply, after) = result?;
        let expired = self
            .oracle
            .check(call, self.now, &reply, &after)
            .map_err(|error| format!("then, by the definition: {error}\nthe store holds {after:#?}"))?;
        for key in expired {
            self.processes.iter_mut().for_each(|process| process.is_unrestored[key] = true);
        }
        confirm_bound((call, &reply), &before, &after, self.now)?;
        for process in &mut self.processes {
            for key in 0..KEYS {
                let units = process.name.as_ref().map_or(0, |name| after.units(key, name));
                process.is_unrestored[key] &= units < process.held[key] || process.unanswered.is_some();
            }
        }
        Ok(reply)
    }

    /// When all processes have ended or were killed, nothing is left after a few ttls: rule 15.
    fn confirm_nothing_leaks(&mut self) -> Result<(), String> {
        let most = self.processes.iter().map(|process| process.ttl_us).max().unwrap_or(0);
        for process in 0..self.processes.len() {
            if process % 2 == 0 { self.end(process, true)? } else { self.replace(process) }
        }
        // The first heartbeat shortens leases. The first message on each key ends the use of older sums.
        for _ in 0..3 {
            self.open(0)?;
            self.report_all(0)?;
            self.now += most.max(2 * MINUTE_US);
            self.replace(0);
        }
        self.open(0)?;
        for key in 0..KEYS {
            let limit = self.limit(key, 0);
            self.block(key, 0)?;
            for n in [limit.units, 0] {
                let released = self.processes[0].held[key];
                let item = self.processes[0].item(key, limit, 1, released);
                self.send(0, vec![Group { n, items: vec![item] }], Fate::Answered, None)?;
                if self.processes[0].held[key] != n {
                    return Err(format!("units of key {key} have leaked"));
                }
            }
        }
        self.end(0, true)?;
        let State { keys, leases, .. } = self.oracle.state();
        match (keys, leases) {
            ([None, None], None) => Ok(()),
            left => Err(format!("left behind: {left:#?}")),
        }
    }
}
