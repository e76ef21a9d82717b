//! The calls of services and operators, and the ledger of their charges.

use tidegate::regions::reference::{Change, Checks, Id, Mode, Verb};

use super::super::oracle::{Charge, Pooled};
use super::defects::Defect;
use super::{Checked, Event, Held, KEY, Node, START_US, Setup, World, quota_of};

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Take {
        n: u64,
        cost: u64,
    },
    /// Gives back a part of an earlier take.
    Refund,
    Penalize {
        units: u64,
    },
    Block {
        us: u64,
    },
    Reset,
    /// A process takes units in advance.
    Lease {
        units: u64,
    },
    /// A process spends a part of a lease.
    Spend,
    /// A lease ends: the rest is given back.
    EndLease,
}

impl World {
    pub(super) fn traffic(&mut self, region: usize) -> Checked {
        if self.now >= START_US + self.setup.ends_us {
            return Ok(());
        }
        let gap = self.setup.gaps_us[region];
        let burst = if self.rng.u32(0..40) == 0 { self.rng.u64(1..30) } else { 1 };
        if self.setup.flip_us == 0 || self.hot == region {
            for _ in 0..burst {
                let op = self.random_op();
                self.op(region, op)?;
            }
        }
        let wait = self.rng.u64(0..=2 * gap);
        self.at(wait, Event::Traffic(region));
        Ok(())
    }

    fn random_op(&mut self) -> Op {
        let Setup { refunds, penalties, blocks, resets, leases, max_cost, max_n, .. } = self.setup;
        let mut of = self.rng.u32(0..1_000);
        for (share, op) in [
            (refunds, Op::Refund),
            (penalties, Op::Penalize { units: self.rng.u64(1..=max_cost) }),
            (blocks, Op::Block { us: [0, 1_000, 50_000, 300_000][self.rng.usize(0..4)] }),
            (resets, Op::Reset),
            (leases, Op::Lease { units: self.rng.u64(1..=3 * max_cost) }),
            (3 * leases, Op::Spend),
            (leases, Op::EndLease),
        ] {
            if of < share {
                return op;
            }
            of -= share;
        }
        // Around the share, or small.
        let cost = if self.rng.bool() { self.rng.u64(1..=max_cost) } else { 1 + max_cost / 10 };
        Op::Take { n: self.rng.u64(1..=max_n), cost }
    }

    pub(super) fn op(&mut self, region: usize, op: Op) -> Checked {
        self.plant_in_key(region);
        let (mode, local) = (self.nodes[region].mode, self.local(region));
        let quota = quota_of(&mode);
        self.become_idle();
        let outbox_before = self.nodes[region].region.replication.outbox.clone();
        let done = match op {
            Op::Take { n, cost } => self.take(region, n, cost, false),
            Op::Penalize { units } => {
                self.nodes[region].region.penalize(&mode, KEY, units, local);
                let window = self.window_of(region);
                self.charge(region, units as i64, window);
                self.pooled.charge(&quota, units as i64, window, self.now);
                self.note_charges(region, &outbox_before);
                Ok(())
            }
            Op::Refund => {
                let own = (0..self.takes.len()).filter(|index| self.takes[*index].region == region);
                if let Some(index) = self.rng.choice(own.collect::<Vec<_>>()) {
                    let held = self.takes.swap_remove(index);
                    let back = self.rng.u64(1..=held.units);
                    self.refund(held, back);
                }
                Ok(())
            }
            Op::Lease { units } => self.lease(region, units),
            Op::Spend => self.spend(region),
            Op::EndLease => {
                if let Some(index) = self.random_lease(region) {
                    let held = self.leases.swap_remove(index);
                    self.refund(held, held.units);
                }
                Ok(())
            }
            Op::Block { us } => {
                if us == 0 {
                    // While it is in flight, it also lifts blocks that other regions have made since.
                    self.has_unblocked = true;
                } else {
                    // An earlier block that lasts longer is replaced here, and stays elsewhere.
                    self.blocks.retain(|(_, _, by)| *by != region);
                    self.blocks.push((self.now, self.now + us, region));
                }
                let last = self.nodes[region].region.replication.last;
                self.nodes[region].region.block(&mode, KEY, us, local);
                if us == 0 {
                    self.note_sent_now(region, last);
                    self.wake(region);
                }
                Ok(())
            }
            Op::Reset => {
                self.has_reset = true;
                self.blocks.clear();
                // Refunds in flight from before subtract from charges after.
                for region in 0..self.count() {
                    self.nodes[region].forgiven += self.refunds_unseen(region) as u64;
                }
                let last = self.nodes[region].region.replication.last;
                self.nodes[region].region.reset(&mode, KEY, local);
                self.note_sent_now(region, last);
                self.pooled.clear();
                self.alive_from = self.charges.len();
                self.wake(region);
                self.lose(self.full_most * self.scale() * 2)
            }
        };
        self.count_forgiven(region);
        self.expire_early(region);
        self.wants_flush(region);
        done
    }

    fn random_lease(&mut self, region: usize) -> Option<usize> {
        let own = (0..self.leases.len()).filter(|index| self.leases[*index].region == region);
        self.rng.choice(own.collect::<Vec<_>>())
    }

    fn lease(&mut self, region: usize, units: u64) -> Checked {
        let takes = self.takes.len();
        self.take(region, 1, units, true)?;
        if self.takes.len() > takes {
            self.leases.extend(self.takes.pop());
            let own = self.leases.iter().filter(|lease| lease.region == region);
            let leased = own.map(|lease| lease.units).sum();
            self.most_leased[region] = self.most_leased[region].max(leased);
        }
        Ok(())
    }

    /// Spends a part of a lease. All that is spent exceeds the limit by no more than all that is charged, and all that
    /// leases held.
    fn spend(&mut self, region: usize) -> Checked {
        let Some(index) = self.random_lease(region) else { return Ok(()) };
        let units = self.rng.u64(1..=self.leases[index].units);
        self.leases[index].units -= units;
        if self.leases[index].units == 0 {
            self.leases.swap_remove(index);
        }
        self.note_spent(region, units)
    }

    fn note_spent(&mut self, region: usize, units: u64) -> Checked {
        let (mode, local) = (self.nodes[region].mode, self.local(region));
        let quota = quota_of(&mode);
        let peek = Checks { n: 0, cost: 1, max_delay: None };
        let taken = self.nodes[region].region.take(&mode, KEY, peek, None, local);
        let (window, at) = (taken.window_us, taken.at_us);
        self.spent.charge(&quota, units as i64, window, self.now);
        let carry = if let Mode::Gossip(gossip) = mode { self.carry(&gossip) } else { None };
        let spent = self.spent.used(&quota, carry, window, at, self.now);
        let charged = self.pooled.used(&quota, carry, window, at, self.now);
        let leased = i128::from(self.most_leased.iter().sum::<u64>()) * self.pooled.rate_and_per().1;
        // The counter of each pooled state rounds down.
        if spent > charged.max(0) + leased + 1 {
            return Err(format!("{spent} ticks are spent, {charged} are charged, and leases held {leased}"));
        }
        Ok(())
    }

    fn take(&mut self, region: usize, n: u64, cost: u64, is_lease: bool) -> Checked {
        let (mode, local, cut) = (self.nodes[region].mode, self.local(region), self.cut(region));
        let quota = quota_of(&mode);
        let cost = match mode {
            Mode::Escrow(escrow) if !self.defect(Defect::CostsAboveShare) => cost.min(escrow.largest_cost()),
            _ => cost.min(quota.limit()),
        };
        let checks = Checks { n, cost, max_delay: None };
        let read = self.plant_in_share(region, cut);
        let outbox = self.nodes[region].region.replication.outbox.clone();
        let taken = self.nodes[region].region.take(&mode, KEY, checks, read, local);
        let units = taken.k * cost;
        self.count_forgiven(region);
        if taken.k > 0 {
            self.seen.admitted += units;
            self.charge(region, units as i64, taken.window_us);
            self.charges.last_mut().unwrap().is_shared = cut.is_some();
            self.pooled.charge(&quota, units as i64, taken.window_us, self.now);
            if let Mode::Gossip(_) = mode {
                self.note_charges(region, &outbox);
            }
            let stamp = quota.kind().algorithm().stamp(taken.before.raw, taken.at_us);
            self.takes.push(Held { region, units, stamp, charged_us: self.now, window_us: taken.window_us });
            self.check_admission(region, &taken)?;
            if self.setup.leases > 0 && !is_lease {
                self.note_spent(region, units)?;
            }
        }
        if taken.k < n {
            self.seen.denied += 1;
            self.check_denial(region, &taken, cut)?;
        }
        Ok(())
    }

    fn refund(&mut self, held: Held, back: u64) {
        let Held { region, stamp, charged_us, window_us: window, .. } = held;
        let (mode, local) = (self.nodes[region].mode, self.local(region));
        let quota = quota_of(&mode);
        let node = &mut self.nodes[region];
        let sum = |node: &Node| {
            node.region
                .replication
                .outbox
                .iter()
                .filter(|(field, _)| field.verb == Verb::Charge)
                .map(|(_, units)| units)
                .sum::<i64>()
        };
        let (before, outbox, credit) = (
            sum(node),
            node.region.replication.outbox.clone(),
            node.region.escrow.get(KEY).map(|key| key.credit),
        );
        node.region.refund(&mode, KEY, back, Some(stamp), local);
        let replicated = before - sum(node);
        let has_returned = replicated > 0 || node.region.escrow.get(KEY).map(|key| key.credit) != credit;
        let is_named = matches!(self.pooled, Pooled::Windows(_));
        let mut gone = replicated;
        if !is_named || has_returned {
            let back = if is_named && replicated > 0 { replicated } else { back as i64 };
            let left = self.pooled.refund(&quota, back, window, charged_us, self.now);
            gone = if is_named { left } else { replicated };
            if is_named && self.has_reset {
                // Units of before a reset, in a region that has not heard of it.
                self.allowed += i128::from(back - left) * self.scale();
            }
            if self.has_reset && !is_named {
                self.nodes.iter_mut().for_each(|node| node.forgiven += replicated as u64);
            }
        }
        if replicated > 0 {
            // After a reset, units may be given back that the pooled state no longer has, and that a region subtracts
            // from later ones.
            self.nodes.iter_mut().for_each(|node| node.forgiven += (replicated - gone) as u64);
            self.charge(region, -gone, window);
            self.note_charges(region, &outbox);
        }
        self.note_refunds();
    }

    /// Adds a charge to the ledger.
    fn charge(&mut self, region: usize, units: i64, window_us: u64) {
        self.charges.push(Charge {
            at_us: self.now,
            region,
            units,
            window_us,
            seen: 1 << region,
            is_shared: false,
        });
    }

    /// Notes in which field of the outbox the newest charge waits. If in none, no peer needs to hear of it.
    fn note_charges(&mut self, region: usize, before: &[Change]) {
        let id = self.charges.len() - 1;
        let node = &mut self.nodes[region];
        let changed = node.region.replication.outbox.iter().find(|change| !before.contains(change));
        match changed.map(|(field, _)| field.clone()) {
            Some(field) => match node.pending.iter_mut().find(|(of, _)| *of == field) {
                Some((_, ids)) => ids.push(id),
                None => node.pending.push((field, vec![id])),
            },
            None => self.charges[id].seen = u8::MAX,
        }
    }

    /// Notes which charges left with a reset or the lifting of a block.
    fn note_sent_now(&mut self, region: usize, last: Id) {
        let left = self.nodes[region].region.replication.outbox.clone();
        self.note_sent(region, last, |field| !left.iter().any(|(other, _)| other == field));
    }

    /// Notes the most units that were given back and not yet heard of in a region.
    fn note_refunds(&mut self) {
        if matches!(self.pooled, Pooled::Windows(_)) {
            return;
        }
        for region in 0..self.count() {
            let unheard = self.refunds_unseen(region);
            let node = &mut self.nodes[region];
            node.most_refunded = node.most_refunded.max(unheard);
        }
    }

    pub(super) fn count_forgiven(&mut self, region: usize) {
        let node = &mut self.nodes[region];
        let counts = std::mem::take(&mut node.region.counts);
        let forgiven = counts.forgiven + counts.dropped + counts.far;
        node.forgiven += forgiven;
        self.seen.forgiven += forgiven;
    }

    pub(super) fn window_of(&self, region: usize) -> u64 {
        let region = &self.nodes[region].region;
        region
            .gossip
            .get(KEY)
            .map(|key| key.windows.start_us)
            .or(region.escrow.get(KEY).map(|key| key.windows.start_us))
            .unwrap_or(0)
    }

    pub(super) fn unseen(&self, region: usize) -> impl Iterator<Item = &Charge> {
        self.charges[self.alive_from..].iter().filter(move |charge| charge.seen & (1 << region) == 0)
    }

    pub(super) fn refunds_unseen(&self, region: usize) -> i64 {
        // A refund that is late can also reach a level or log that was empty meanwhile.
        let named = matches!(self.pooled, Pooled::Windows(_));
        let charges = &self.charges[if named { self.alive_from } else { 0 }..];
        let unseen = charges.iter().filter(|charge| charge.seen & (1 << region) == 0);
        -unseen.map(|charge| charge.units.min(0)).sum::<i64>()
    }

    /// With nothing used, the past no longer matters.
    fn become_idle(&mut self) {
        let quota = quota_of(&self.setup.modes[0]);
        self.pooled.drain(&quota, self.now);
        let is_idle = match &self.pooled {
            Pooled::Level { ticks, .. } => *ticks == 0,
            Pooled::Log(entries) => entries.is_empty(),
            Pooled::Windows(_) => false,
        };
        // Charges in flight at a reset may still arrive.
        if is_idle && !self.has_reset {
            self.alive_from = self.charges.len();
            for region in 0..self.count() {
                let has_refunds = self.setup.refunds + self.setup.leases > 0;
                let refunded = if has_refunds { self.refunds_unseen(region) } else { 0 };
                let node = &mut self.nodes[region];
                (node.forgiven, node.most_refunded) = (0, refunded);
            }
        }
    }

    /// Returns the local time of the cut, if a peer is cut off.
    fn cut(&self, region: usize) -> Option<u64> {
        let after_us = self.setup.cut_off_us?;
        let peers: Vec<u16> =
            (0..self.count()).filter(|peer| *peer != region).map(|peer| peer as u16).collect();
        self.nodes[region].region.replication.cut_off(&peers, after_us, self.local(region))
    }
}
