//! Random sequences of operations, deliveries and faults.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::regions::reference::gossip::Gossip;
use tidegate::regions::reference::{Batch, Region, TakeGroup, TakeItem};
use tidegate::regions::script::Write;
use tidegate::{Quota, Rate};

use super::pair::{Checked, Dump, KEYS, Pair, SHARES};

const START_US: u64 = 1_767_225_600_000_000;
const STEPS: usize = 80;

#[derive(Clone, Copy, Debug)]
pub enum Family {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingLog,
    SlidingCounter,
}

/// A batch on its way to a region.
struct Read {
    to: usize,
    from: u16,
    batch: Batch,
}

pub struct Sequence {
    pub pairs: Vec<Pair>,
    /// How many of the pairs take part.
    count: usize,
    rng: fastrand::Rng,
    /// Two versions of one gate.
    gates: [Gossip; 2],
    window_us: u64,
    reads: Vec<Read>,
    /// Charges that may be given back: region, key, units, stamp.
    charged: Vec<(usize, &'static str, u64, u64)>,
    /// Of each region the time of its cut, in sequences with cuts.
    cuts: Option<Vec<Option<u64>>>,
    snapshot: Option<(usize, Dump, Region)>,
    done: Vec<String>,
}

impl Sequence {
    pub fn new(family: Family, seed: u64, mut pairs: Vec<Pair>) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let count = rng.usize(2..=3);
        let window_us = *rng.choice(&[1_000, 60_000, 1_000_500, 3_000_000]).unwrap();
        let offset = Duration::from_micros(rng.u64(0..window_us));
        let [first, second] = [(); 2].map(|()| {
            let limit = if rng.u8(0..3) > 0 { rng.u64(1..=12) } else { rng.u64(13..=60) };
            let gate = Gossip::new(quota(family, limit, window_us, offset), count as u64).unwrap();
            let debt = if rng.bool() { gate.debt } else { rng.u64(0..=3 * limit) };
            Gossip { debt, carry: gate.carry && rng.u8(0..4) > 0, ..gate }
        });
        let start = START_US + rng.u64(0..window_us);
        for (number, pair) in pairs.iter_mut().enumerate() {
            pair.regions = count as u64;
            pair.region.fresh_us = *rng.choice(&[window_us / 2, 10_000_000]).unwrap();
            pair.set_clock(start + rng.u64(0..=window_us));
            pair.wipe(seed * 16 + number as u64 + 1);
        }
        Self {
            pairs,
            count,
            rng,
            gates: [first, second],
            window_us,
            reads: Vec::new(),
            charged: Vec::new(),
            cuts: seed.is_multiple_of(4).then(|| vec![None; count]),
            snapshot: None,
            done: Vec::new(),
        }
    }

    /// Returns the last steps.
    pub fn steps(&self) -> String {
        let last = self.done.len().saturating_sub(25);
        let mut text = format!("{:?}", self.gates);
        self.done[last..].iter().for_each(|step| write!(text, "\n{step}").unwrap());
        text
    }

    pub fn run(&mut self) -> Checked {
        for region in 0..self.count {
            self.flush(region)?;
        }
        for _ in 0..STEPS {
            let region = self.rng.usize(0..self.count);
            self.step(region)?;
            self.pairs[region].compare(&self.gates[0])?;
        }
        Ok(())
    }

    fn note(&mut self, region: usize, step: String) {
        self.done.push(format!("{} region {region}: {step}", self.pairs[region].now));
    }

    fn step(&mut self, region: usize) -> Checked {
        let gate = self.gates[usize::from(self.rng.u8(0..8) == 0)];
        let key = KEYS[usize::from(self.rng.u8(0..4) == 0)];
        match self.rng.u32(0..200) {
            0..=59 => self.take(region),
            60..=89 => {
                self.step_clock(region);
                Ok(())
            }
            90..=111 => self.flush(region),
            112..=137 => self.read(region),
            138..=163 => self.apply(region),
            164..=171 => {
                let limits = if self.rng.u8(0..4) == 0 { 3 } else { 1 };
                let units = self.rng.u64(0..=limits * gate.quota.limit());
                self.write(region, &gate, key, Write::Penalize(units))
            }
            172..=184 => self.refund(region, &gate),
            185..=190 => {
                let us = self.rng.u64(1..=self.window_us * 2);
                self.write(region, &gate, key, Write::Block(us))
            }
            191..=192 => self.write(region, &gate, key, Write::Block(0)),
            193..=195 => self.write(region, &gate, key, Write::Reset),
            196 => {
                self.note(region, "is emptied".to_owned());
                let epoch = self.rng.u64(..);
                self.pairs[region].wipe(epoch);
                self.flush(region)
            }
            _ => {
                self.fail_over(region);
                Ok(())
            }
        }
    }

    fn take(&mut self, region: usize) -> Checked {
        let gates = self.gates;
        let groups: Vec<TakeGroup<'_>> = (0..self.rng.usize(1..=3)).map(|_| self.group(&gates)).collect();
        let cut_us = self.cut(region);
        self.note(region, format!("cut {cut_us:?}, {groups:?}"));
        for (group, taken) in groups.iter().zip(self.pairs[region].take(&groups, cut_us)?) {
            for (item, taken) in group.items.iter().zip(taken).filter(|(_, taken)| taken.k > 0) {
                let stamp = item.gate.quota.kind().algorithm().stamp(taken.before.raw, taken.at_us);
                let key = KEYS.into_iter().find(|key| *key == item.key).unwrap();
                self.charged.push((region, key, taken.k * item.cost, stamp));
            }
        }
        Ok(())
    }

    /// Returns the time of the cut for the next take. The first of two cuts ends when it moves later.
    fn cut(&mut self, region: usize) -> Option<u64> {
        let (now, window) = (self.pairs[region].now, self.window_us);
        let cut_us = self.cuts.as_mut()?.get_mut(region)?;
        *cut_us = match self.rng.u8(0..10) {
            0 => None,
            1 => Some(now),
            2 | 3 => Some(now - self.rng.u64(0..=3 * window)),
            4 => cut_us.map(|cut_us| cut_us + self.rng.u64(0..=window)),
            _ => *cut_us,
        };
        *cut_us
    }

    /// Returns checks of one key or of both, each by its own quota.
    fn group<'g>(&mut self, gates: &'g [Gossip; 2]) -> TakeGroup<'g> {
        let mut keys: Vec<_> = KEYS.into_iter().zip(SHARES).collect();
        self.rng.shuffle(&mut keys);
        keys.truncate(if self.rng.u8(0..3) == 0 { 2 } else { 1 });
        let item = |(key, share)| {
            let gate = &gates[usize::from(self.rng.u8(0..8) == 0)];
            let least = u64::from(self.rng.u8(0..8) > 0);
            let cost = self.rng.u64(least..=gate.quota.limit().min(6));
            let max_delay = self.rng.bool().then(|| self.rng.u64(0..=self.window_us));
            TakeItem { gate, key, share, cost, max_delay }
        };
        let items = keys.into_iter().map(item).collect();
        TakeGroup { n: self.rng.u64(0..=3), items }
    }

    fn write(&mut self, region: usize, gate: &Gossip, key: &str, write: Write) -> Checked {
        self.note(region, format!("{key} {write:?} by {gate:?}"));
        self.pairs[region].write(gate, key, write)
    }

    /// Gives back a charge, mostly in its region, sometimes without its stamp, and sometimes more than it was.
    fn refund(&mut self, region: usize, gate: &Gossip) -> Checked {
        let Some(&(by, key, units, stamp)) = self.rng.choice(&self.charged) else { return Ok(()) };
        let region = if self.rng.u8(0..8) > 0 { by } else { region };
        let stamp = (self.rng.u8(0..4) > 0).then_some(stamp);
        let units = units + u64::from(self.rng.u8(0..8) == 0);
        self.write(region, gate, key, Write::Refund(units, stamp))?;
        self.pairs[region].compare(&self.gates[0])
    }

    fn flush(&mut self, region: usize) -> Checked {
        let most = if self.rng.u8(0..3) == 0 { self.rng.usize(1..=2) } else { 128 };
        let retention_us = if self.rng.u8(0..4) == 0 { self.window_us } else { 100_000_000 };
        let max_entries = if self.rng.u8(0..6) == 0 { self.rng.usize(1..=3) } else { 1_000 };
        self.note(region, format!("flushes {most}, keeps {retention_us} us, {max_entries} entries"));
        self.pairs[region].flush(most, retention_us, max_entries)
    }

    fn read(&mut self, to: usize) -> Checked {
        let from = (to + self.rng.usize(1..self.count)) % self.count;
        let expected = self.pairs[to].region.replication.cursors.get(&(from as u16)).copied();
        let most = if self.rng.bool() { self.rng.usize(0..=2) } else { 100 };
        let read_us = self.pairs[to].now;
        let batch = self.pairs[from].read(expected, most, read_us)?;
        self.note(to, format!("reads {} entries of {from}", batch.entries.len()));
        self.reads.push(Read { to, from: from as u16, batch });
        Ok(())
    }

    /// Applies any of the batches that were read, so in any order. Some come again.
    fn apply(&mut self, to: usize) -> Checked {
        let of_region: Vec<usize> =
            (0..self.reads.len()).filter(|index| self.reads[*index].to == to).collect();
        let Some(&index) = self.rng.choice(&of_region) else { return Ok(()) };
        let (from, batch) = (self.reads[index].from, self.reads[index].batch.clone());
        if self.rng.u8(0..4) > 0 {
            self.reads.swap_remove(index);
        }
        self.note(to, format!("applies of {from}: {batch:?}"));
        self.pairs[to].apply(from, &batch)
    }

    fn step_clock(&mut self, region: usize) {
        let (now, window) = (self.pairs[region].now, self.window_us);
        // Clocks that drift apart by several windows leave little to do for late charges.
        let latest = self.pairs[..self.count].iter().map(|pair| pair.now).max().unwrap();
        let now = match self.rng.u8(0..25) {
            20.. => latest - self.rng.u64(0..=window / 2),
            0 | 11 => now + self.rng.u64(0..=5 * window),
            1 => now - self.rng.u64(0..=window / 2),
            // Into the window before, whose counts are still those of the key.
            9 | 10 if self.rng.bool() => now - now % window - self.rng.u64(1..=window / 2),
            2 if self.rng.bool() => now - self.rng.u64(0..=3 * window),
            3 | 4 => now + 1,
            5..=8 => now + self.rng.u64(0..=1_000),
            _ => now + self.rng.u64(0..=window / 2),
        };
        self.note(region, format!("is at {now}"));
        self.pairs[region].set_clock(now);
    }

    /// Loses all since an earlier time, or notes such a time.
    fn fail_over(&mut self, region: usize) {
        match self.snapshot.take() {
            Some((of, dump, model)) => {
                self.note(of, "fails over".to_owned());
                self.pairs[of].restore(&dump, model);
            }
            None => {
                let pair = &mut self.pairs[region];
                self.snapshot = Some((region, pair.dump(), pair.region.clone()));
            }
        }
    }
}

fn quota(family: Family, limit: u64, window_us: u64, offset: Duration) -> Quota {
    let window = Duration::from_micros(window_us);
    match family {
        Family::TokenBucket => Quota::token_bucket(limit, Rate::new(limit, window)),
        Family::LeakyBucket => Quota::leaky_bucket(limit, Rate::new(limit, window)),
        Family::FixedWindow => Quota::fixed_window(limit, window).aligned_to_clock_at(offset),
        Family::SlidingLog => Quota::sliding_log(limit, window),
        Family::SlidingCounter => Quota::sliding_counter(limit, window),
    }
}
