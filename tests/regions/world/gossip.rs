//! The bounds of gossip, at each admission, at each denial, and after quiet.

use std::collections::BTreeMap;

use tidegate::algorithm::Kind;
use tidegate::regions::reference::gossip::Gossip;
use tidegate::regions::reference::{Checks, Mode, Region, Taken};

use super::super::oracle::{Charge, Pooled};
use super::{Checked, KEY, START_US, World, quota_of};

impl World {
    pub(super) fn check_admission(&mut self, region: usize, taken: &Taken) -> Checked {
        let is_blocked = self.blocks.iter().any(|(_, until, by)| *by == region && *until > self.now);
        if is_blocked && !self.has_unblocked && !self.has_reset {
            return Err("admitted although the key is blocked here".into());
        }
        match self.nodes[region].mode {
            Mode::Gossip(gossip) => self.check_gossip(region, &gossip, taken),
            Mode::Escrow(_) => Ok(()),
        }
    }

    fn check_gossip(&mut self, region: usize, gossip: &Gossip, taken: &Taken) -> Checked {
        let quota = gossip.quota;
        let (rate, per) = self.pooled.rate_and_per();
        let (window, length) = (taken.window_us, quota.window().as_micros() as u64);
        let used = self.pooled.used(&quota, self.carry(gossip), window, taken.at_us, self.now);
        let over = used - self.full_most;
        let node = &self.nodes[region];
        let is_named = matches!(self.pooled, Pooled::Windows(_));
        let counter = i128::from(matches!(quota.kind(), Kind::SlidingCounter(_)));
        let mut unseen_in = BTreeMap::<u64, i64>::new();
        for charge in self.unseen(region).filter(|charge| match quota.kind() {
            Kind::FixedWindow(_) if gossip.carry => charge.window_us <= window,
            Kind::FixedWindow(_) => charge.window_us == window,
            Kind::SlidingCounter(_) => charge.window_us <= window && charge.window_us + length >= window,
            Kind::SlidingLog(_) => charge.at_us + length > self.now,
            _ => true,
        }) {
            // Of a level or log, a refund that is not heard of makes this region stricter.
            let units = if is_named { charge.units } else { charge.units.max(0) };
            *unseen_in.entry(charge.window_us).or_default() += units;
        }
        // Units given back in an earlier window need not lower the debt.
        let unseen: i64 =
            unseen_in.iter().map(|(of, units)| if *of == window { *units } else { *units.max(&0) }).sum();
        let refunded = match self.pooled {
            Pooled::Windows(_) => counter as i64 * self.refunds_unseen(region),
            Pooled::Level { .. } => (node.most_refunded - self.refunds_unseen(region)).max(0),
            // A late refund of a log removes units that would have stayed longer.
            Pooled::Log(_) => -self
                .charges
                .iter()
                .filter(|charge| charge.at_us + 2 * length + node.late_us > self.now)
                .map(|charge| charge.units.min(0))
                .sum::<i64>(),
        };
        let stepped = match self.pooled {
            Pooled::Level { .. } => rate * i128::from(node.forward_us),
            // All that is counted here leaves early.
            Pooled::Log(_) if node.forward_us > 0 => i128::from(quota.limit() + gossip.debt),
            _ => 0,
        };
        let bound = i128::from(unseen + refunded) * per
            + i128::from(node.forgiven) * per
            + stepped
            + counter
            + self.rounding();
        self.seen.over = self.seen.over.max((over * 1_000 / self.full_most) as i64);
        if over > bound.max(0) {
            return Err(format!(
                "{} region {region} admits {over} ticks above the limit, more than the bound {bound}: unseen {unseen}, \
                 forgiven {}, refunded {refunded}; used {used}, {taken:?}, reset {}, clock {} {}, late {}",
                self.charges[self.alive_from..]
                    .iter()
                    .filter(|c| c.window_us + 1 == window + 1)
                    .map(|c| format!("{} r{} {} seen {:b}\n", c.at_us - START_US, c.region, c.units, c.seen))
                    .collect::<String>(),
                node.forgiven,
                self.has_reset,
                node.forward_us,
                node.back_us,
                node.late_us
            ));
        }
        self.check_share(region, gossip, taken)?;
        let node = &self.nodes[region];
        let is_plain = self.setup.penalties + self.setup.refunds + self.setup.leases == 0
            && self.setup.cut_off_us.is_none()
            && node.forgiven == 0
            && self.nodes.iter().all(|node| node.forward_us + node.back_us == 0);
        if is_plain && !self.is_lossy && !self.has_reset {
            // (R - 1)·A(s), with s the age of the oldest unseen charge.
            let age = self.unseen(region).map(|charge| self.now - charge.at_us).max().unwrap_or(0);
            let most = match quota.kind() {
                Kind::FixedWindow(_) if gossip.carry => {
                    // The long run: all but the previous and the current window is known here.
                    let is_known = self.unseen(region).all(|charge| charge.window_us + length >= window);
                    if is_known { 2 * self.full_most } else { i128::MAX / 1_000_000 }
                }
                Kind::SlidingCounter(_) => {
                    // A region whose clock is ahead counts less of the previous window.
                    let offsets = || self.nodes.iter().map(|node| node.offset_us);
                    let apart = i128::from(offsets().max().unwrap_or(0) - offsets().min().unwrap_or(0));
                    self.full_most
                        + 1
                        + (self.full_most * apart + i128::from(length) - 1) / i128::from(length)
                }
                _ => self.full_most + rate * i128::from(age),
            };
            let bound = most * (self.count() as i128 - 1);
            if self.count() > 1 && bound > 0 {
                self.seen.of_bound = self.seen.of_bound.max((over.max(0) * 1_000 / bound) as i64);
            }
            if over > bound {
                return Err(format!(
                    "region {region} admits {over} above the limit, more than (R - 1)·A(s) = {bound}"
                ));
            }
        }
        Ok(())
    }

    /// While all regions are cut off, they admit no more than one limit.
    fn check_share(&mut self, region: usize, gossip: &Gossip, taken: &Taken) -> Checked {
        let Some(cut_off_us) = self.setup.cut_off_us else { return Ok(()) };
        let quota = gossip.quota;
        let length = quota.window().as_micros() as u64;
        let counts = |charge: &&Charge| match self.pooled {
            Pooled::Level { .. } => true,
            Pooled::Windows(_) => charge.window_us == taken.window_us,
            Pooled::Log(_) => charge.at_us + length > self.now,
        };
        let counted = || self.charges[self.alive_from..].iter().filter(counts);
        let others = self.count() as i128 - 1;
        let (rate, per) = self.pooled.rate_and_per();
        let units = i128::from(counted().map(|charge| charge.units).sum::<i64>());
        let are_shared = counted().all(|charge| charge.is_shared);
        let used = match self.pooled {
            Pooled::Level { ticks, .. } => ticks,
            _ => units * per,
        };
        // A flush may leave fields of two other windows, and the next one a field that is new.
        let detected_us = i128::from(cut_off_us + 4 * self.setup.flush_us);
        let forgiven = self.nodes.iter().map(|node| i128::from(node.forgiven)).sum::<i128>();
        let bound = match self.pooled {
            _ if are_shared => 0,
            // A region may never hear of trimmed units.
            _ if self.is_lossy => return Ok(()),
            Pooled::Level { .. } => {
                others * (self.full_most + rate * detected_us) + self.full_most + forgiven * per
            }
            _ => others * self.full_most,
        };
        if used - self.full_most > bound {
            return Err(format!(
                "with the share policy, region {region} admits {} above the limit, more than {bound}: all shared {are_shared}",
                used - self.full_most
            ));
        }
        Ok(())
    }

    pub(super) fn check_denial(&mut self, region: usize, taken: &Taken, cut: Option<u64>) -> Checked {
        let mode = self.nodes[region].mode;
        let Checks { cost, .. } = taken.checks;
        let local = self.local(region);
        let answer = taken.answer(taken.k);
        let quota = quota_of(&mode);
        let node = &self.nodes[region];
        let next = match mode {
            Mode::Gossip(_) => node.region.gossip.get(KEY).map_or(0, |key| key.windows.counts[2]),
            Mode::Escrow(_) => node.region.escrow.get(KEY).map_or(0, |key| key.windows.counts[2]),
        };
        // Without news, the check is admitted at the time that the denial told.
        let again = Checks { n: 1, ..taken.checks };
        let at = taken.at_us + answer.retry_after_us;
        let is_exact = match mode {
            Mode::Gossip(gossip) if gossip.carry => {
                cut.is_none() && (next == 0 || taken.before.blocked_until_us <= local)
            }
            _ => next == 0,
        };
        let over_share = cut.is_some() && cost * self.count() as u64 > quota.limit();
        if is_exact && !over_share {
            let (gossip, escrow) = (node.region.gossip.clone(), node.region.escrow.clone());
            let mut probe = Region { weight: node.region.weight, gossip, escrow, ..Region::default() };
            if probe.take(&mode, KEY, again, cut, at).k == 0 {
                return Err(format!(
                    "region {region} denies {cost} units still after {} us: {taken:?}",
                    answer.retry_after_us
                ));
            }
        }
        let is_blocked = taken.before.blocked_until_us > local;
        let Mode::Gossip(gossip) = mode else { return Ok(()) };
        if is_blocked || cut.is_some() || self.is_lossy || self.has_reset {
            return Ok(());
        }
        let (rate, per) = self.pooled.rate_and_per();
        let used = self.pooled.used(&quota, self.carry(&gossip), taken.window_us, taken.at_us, self.now);
        let late = node.late_us + node.back_us;
        let refunds: i64 = match self.pooled {
            Pooled::Windows(_) => self.refunds_unseen(region),
            // Each may have been rounded down to whole units.
            _ if self.setup.refunds + self.setup.leases == 0 => 0,
            _ => self.charges[self.alive_from..].iter().map(|charge| 1 - charge.units.min(0)).sum::<i64>(),
        };
        let least = i128::from(cost as i64 + refunds) * per;
        let has_room = match &self.pooled {
            Pooled::Level { .. } => used + least + rate * i128::from(late) <= self.full_most,
            Pooled::Windows(_) => used + least <= self.full_most,
            Pooled::Log(_) => {
                let since = self.now - quota.window().as_micros() as u64 - late;
                let charged = self
                    .charges
                    .iter()
                    .rev()
                    .take_while(|charge| charge.at_us > since)
                    .map(|charge| charge.units.max(0))
                    .sum::<i64>();
                i128::from(charged) + least <= self.full_most
            }
        };
        // After steps, a region may count units that another charged in a later window, or its own in an earlier one.
        let are_apart = self.nodes.iter().any(|node| node.forward_us + node.back_us > 0);
        if has_room && !(are_apart && matches!(self.pooled, Pooled::Windows(_))) {
            return Err(format!(
                "region {region} denies {cost} units although the pooled state has room: used {used}, late {late}, {taken:?}"
            ));
        }
        Ok(())
    }

    /// Returns the limit by which windows repay: the largest in effect.
    pub(super) fn carry(&self, gossip: &Gossip) -> Option<i64> {
        gossip.carry.then_some(self.full_most as i64)
    }

    /// After quiet without loss, all regions know the same.
    pub fn check_quiet(&mut self) -> Checked {
        let is_gossip = matches!(self.setup.modes[0], Mode::Gossip(_));
        if is_gossip && (self.is_lossy || self.has_reset) {
            return Ok(());
        }
        for region in 0..self.count() {
            if matches!(self.nodes[region].mode, Mode::Gossip(_)) && self.unseen(region).next().is_some() {
                let unseen: Vec<_> = self.unseen(region).take(3).collect();
                let from = unseen[0].region;
                let peer = &self.nodes[from];
                return Err(format!(
                    "region {region} has not heard of {unseen:?}: cursor {:?}, end {:?}, pending {:?}",
                    self.nodes[region].region.replication.cursors.get(&(from as u16)),
                    peer.region.replication.last,
                    peer.pending
                ));
            }
        }
        let peek = Checks { n: 0, cost: 1, max_delay: None };
        for region in 0..self.count() {
            let (mode, local) = (self.nodes[region].mode, self.local(region));
            let quota = quota_of(&mode);
            let (rate, _) = self.pooled.rate_and_per();
            match mode {
                Mode::Gossip(gossip) => {
                    let taken = self.nodes[region].region.take(&mode, KEY, peek, None, local);
                    let window = taken.window_us;
                    let used = self.pooled.used(&quota, self.carry(&gossip), window, taken.at_us, self.now);
                    let here = match quota.kind() {
                        Kind::SlidingCounter(_) => {
                            i128::from(quota.limit()) - i128::from(taken.answer(0).remaining)
                        }
                        _ => i128::from(taken.before.raw[0]),
                    };
                    let node = &self.nodes[region];
                    let stepped = node.forward_us + node.back_us > 0;
                    let most = match &self.pooled {
                        Pooled::Level { .. } => used + rate * i128::from(node.late_us),
                        Pooled::Log(_) => i128::MAX,
                        Pooled::Windows(_) => used,
                    };
                    let used = if matches!(quota.kind(), Kind::SlidingCounter(_)) {
                        used.min(i128::from(quota.limit()))
                    } else {
                        used
                    };
                    let is_equal = here >= used && here <= most;
                    if !is_equal
                        && self.seen.forgiven == 0
                        && self.setup.refunds + self.setup.leases == 0
                        && !stepped
                    {
                        return Err(format!(
                            "after quiet, region {region} has {here} used, and the pooled state {used}"
                        ));
                    }
                }
                Mode::Escrow(escrow) => {
                    let key = self.key_now(region, &escrow);
                    let is_level = matches!(self.pooled, Pooled::Level { .. });
                    if is_level && (key.held() > 0 || escrow.level(&key) > 0) {
                        return Err(format!(
                            "after quiet, region {region} still holds {} of {}",
                            key.held(),
                            escrow.level(&key)
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
