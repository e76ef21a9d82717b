//! Faults of the network, of clocks and of servers, and operators.

use tidegate::Quota;
use tidegate::algorithm::State;
use tidegate::regions::reference::{Mode, Region};

use super::super::oracle::Pooled;
use super::traffic::Op;
use super::{Checked, Event, KEY, World};

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Messages from one region to another are lost for a time.
    Cut {
        from: usize,
        to: usize,
        us: u64,
    },
    /// A clock is stepped.
    Step {
        region: usize,
        us: i64,
    },
    /// A region's Redis is emptied.
    Wipe {
        region: usize,
    },
    /// The replica of a region stops following; a failover makes it the server.
    Snapshot {
        region: usize,
    },
    Failover {
        region: usize,
    },
    /// An operator's override.
    Override {
        region: usize,
        quota: Quota,
    },
    /// The operations of an operator or of a service.
    Op {
        region: usize,
        op: Op,
    },
    /// The next batch that this region reads is applied this much later.
    PauseNext {
        region: usize,
        us: u64,
    },
    /// The replicators of a region stop, and start again.
    Stop {
        region: usize,
    },
    Restart {
        region: usize,
    },
}

impl World {
    pub(super) fn fault(&mut self, fault: Fault) -> Checked {
        match fault {
            Fault::Cut { from, to, us } => self.cut_until[from][to] = self.now + us,
            Fault::Step { region, us } => {
                let node = &mut self.nodes[region];
                node.offset_us += us;
                if us > 0 {
                    node.forward_us += us as u64;
                    // A forward step of a region drains its part of a level.
                    let (rate, _) = self.pooled.rate_and_per();
                    self.allowed += rate * i128::from(us) * self.scale() / self.weight(region);
                } else {
                    node.back_us += us.unsigned_abs();
                }
            }
            Fault::Wipe { region } => {
                let epoch = self.rng.u64(1..);
                let node = &mut self.nodes[region];
                let mut empty = Region::new(region as u16, node.region.weight, epoch);
                empty.fresh_us = node.region.fresh_us;
                node.region = empty;
                node.pending.clear();
                self.charges.iter_mut().for_each(|charge| charge.seen &= !(1 << region));
                self.wake(region);
                // One share, as far as it was used.
                let (full, weight) = (self.full_most * self.scale(), self.weight(region));
                self.lose(full / weight)?;
            }
            Fault::Snapshot { region } => {
                let seen = self.charges.iter().map(|charge| charge.seen & (1 << region) != 0).collect();
                self.snapshots[region] = Some((self.nodes[region].clone(), seen));
            }
            Fault::Failover { region } => {
                let Some((snapshot, seen)) = self.snapshots[region].take() else { return Ok(()) };
                let node = &mut self.nodes[region];
                node.region = snapshot.region;
                node.pending = snapshot.pending;
                for (index, charge) in self.charges.iter_mut().enumerate() {
                    if !seen.get(index).copied().unwrap_or(false) {
                        charge.seen &= !(1 << region);
                    }
                }
                self.wake(region);
                self.wants_flush(region);
                self.lose(self.full_most * self.scale() * 4)?;
            }
            Fault::Override { region, quota } => {
                let idle = (0..self.count()).filter_map(|region| {
                    let stored = &self.nodes[region].region;
                    let record = stored.gossip.get(KEY).map(|key| &key.record);
                    match record.or(stored.escrow.get(KEY).map(|key| &key.record))?.state {
                        State::Level { at_us, .. } => Some(self.local(region).saturating_sub(at_us)),
                        _ => None,
                    }
                });
                let since_us = idle.max().unwrap_or(0);
                self.pooled.override_rate(&quota, since_us, self.now);
                self.is_overridden = true;
                match &mut self.nodes[region].mode {
                    Mode::Gossip(gossip) => gossip.quota = quota,
                    Mode::Escrow(escrow) => escrow.quota = quota,
                }
                self.is_lossy = true;
                let (_, per) = self.pooled.rate_and_per();
                self.full_most = self.full_most.max(i128::from(quota.limit()) * per);
            }
            Fault::Op { region, op } => return self.op(region, op),
            Fault::PauseNext { region, us } => self.nodes[region].pause_next_us = us,
            Fault::Stop { region } => self.nodes[region].is_stopped = true,
            Fault::Restart { region } => {
                self.nodes[region].is_stopped = false;
                for from in (0..self.count()).filter(|from| *from != region) {
                    for reader in 0..self.setup.readers {
                        let attempt = self.nodes[region].attempts[from][reader];
                        self.at(0, Event::Start { to: region, from, reader, attempt });
                    }
                }
            }
        }
        Ok(())
    }

    /// A region lost state. The units that escrow may admit above the limit for it, at most `bound`, are allowed from now on.
    pub(super) fn lose(&mut self, bound: i128) -> Checked {
        self.is_lossy = true;
        if let (Mode::Escrow(_), Pooled::Level { .. }) = (self.setup.modes[0], &self.pooled) {
            // Grants in flight of or to this region may have lost their cover.
            for region in 0..self.count() {
                let Mode::Escrow(escrow) = self.nodes[region].mode else { continue };
                self.allowed += self.in_flight(region, &escrow, 0) * self.scale() / self.weight(region);
            }
        }
        let lost = (-self.slack() - self.allowed).max(0);
        self.seen.lost = self.seen.lost.max((lost * 1_000 / (self.full_most * self.scale())) as i64);
        if matches!(self.setup.modes[0], Mode::Escrow(_)) && lost > bound {
            return Err(format!("a loss allows {lost} more, above {bound}"));
        }
        self.allowed += lost;
        Ok(())
    }
}
