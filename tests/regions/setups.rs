//! Random setups.

use std::time::Duration;

use tidegate::algorithm::Kind;
use tidegate::regions::reference::Mode;
use tidegate::regions::reference::escrow::Escrow;
use tidegate::regions::reference::gossip::Gossip;
use tidegate::{Quota, Rate};

use super::world::{Fault, Setup};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    GossipLevel,
    GossipWindow,
    GossipCarry,
    GossipLog,
    GossipCounter,
    GossipShare,
    EscrowLevel,
    EscrowWindow,
    /// Refunds, penalties, blocks and resets, in each mode.
    Operations,
    /// Leases, which a process spends later, in each mode.
    Leases,
    /// Emptied servers, and failovers that lose the end, in each mode.
    Losses,
}

const MODES: [Family; 7] = [
    Family::GossipLevel,
    Family::GossipWindow,
    Family::GossipCarry,
    Family::GossipLog,
    Family::GossipCounter,
    Family::EscrowLevel,
    Family::EscrowWindow,
];

impl Family {
    /// Returns a setup, and how long the network is quiet at the end, in µs.
    pub fn setup(self, seed: u64) -> (Setup, u64) {
        // Not the generator of the run.
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let kind = match self {
            Self::Operations | Self::Leases | Self::Losses => MODES[rng.usize(0..MODES.len())],
            Self::GossipShare => MODES[rng.usize(0..4)],
            _ => self,
        };
        let count = rng.usize(2..=5);
        let regions = count as u64;
        let limit = rng.u64(regions.max(5)..=100);
        let span_us = 1_000 * rng.u64(200..=3_000);
        let is_escrow = matches!(kind, Self::EscrowLevel | Self::EscrowWindow);
        let quota = quota(kind, limit, Duration::from_micros(span_us), &mut rng);
        let bucket_us = [800_000, 2_500_000][rng.usize(0..2)];
        let mut gossip = Gossip::new(quota, regions).ok();
        if let Some(gossip) = &mut gossip {
            gossip.carry = kind == Self::GossipCarry;
            if rng.u32(0..4) == 0 {
                gossip.debt = rng.u64(1..=2 * limit);
            }
        }
        let weights: Vec<u64> = match rng.u32(0..4) {
            // Unequal parts, whose sum is at most 1.
            0 if is_escrow && limit >= 2 * regions => {
                (0..count).map(|index| if index == 0 { 2 } else { 2 * (regions - 1) }).collect()
            }
            _ => vec![regions; count],
        };
        let modes = (0..count).map(|index| match gossip {
            Some(gossip) if !is_escrow => Mode::Gossip(gossip),
            _ => {
                let escrow = Escrow::new(quota, regions).unwrap();
                Mode::Escrow(Escrow { weight: weights[index], bucket_us, ..escrow })
            }
        });
        let modes: Vec<Mode> = modes.collect();
        let is_named =
            matches!(kind, Self::GossipWindow | Self::GossipCarry | Self::GossipCounter | Self::EscrowWindow);
        let apart = if is_named { 200_000 } else { 3_600_000_000 };
        let delay_us = [500, 40_000, 110_000][rng.usize(0..3)].min(span_us / 2);
        let jitter_us = [0, 1_000, 50_000][rng.usize(0..3)];
        let ends_us = rng.u64(1..=3) * 1_000_000;
        let gap_us = 1_000 * [2, 10, 40, 150][rng.usize(0..4)];
        let one_region = rng.u32(0..5) == 0;
        let gaps_us =
            (0..count).map(|index| if one_region && index > 0 { 0 } else { gap_us.max(span_us / 60) });
        let mut faults = Vec::new();
        for _ in 0..rng.usize(0..=2) {
            let (from, to) = pair(count, &mut rng);
            let (at, us) = (rng.u64(0..ends_us), rng.u64(10_000..4_000_000));
            faults.push((at, Fault::Cut { from, to, us }));
            if rng.bool() {
                faults.push((at, Fault::Cut { from: to, to: from, us }));
            }
        }
        if rng.u32(0..6) == 0 {
            let region = rng.usize(0..count);
            let at = rng.u64(0..ends_us);
            faults.push((at, Fault::Stop { region }));
            faults.push((at + rng.u64(1_000..2_000_000), Fault::Restart { region }));
        }
        let has_steps = self == kind && rng.u32(0..4) == 0;
        if has_steps {
            // A larger step back moves the counts to an earlier window.
            let most = if is_escrow && !is_named { bucket_us / 4 } else { span_us } as i64;
            let region = rng.usize(0..count);
            let us = if is_named && rng.bool() { rng.i64(0..2 * most) } else { rng.i64(-most..most / 2) };
            faults.push((rng.u64(0..ends_us), Fault::Step { region, us }));
        }
        let mut drains_us = span_us;
        if self == kind && !has_steps && rng.u32(0..8) == 0 {
            let region = rng.usize(0..count);
            let quota = quota.try_with_limit(rng.u64(limit..=2 * limit)).unwrap();
            // The rate of a level, too.
            let rate = Rate::new(rng.u64(1..=2 * limit), Duration::from_micros(span_us));
            let quota = match quota.kind() {
                Kind::TokenBucket(_) => Quota::token_bucket(quota.limit(), rate),
                Kind::LeakyBucket(_) => Quota::leaky_bucket(quota.limit(), rate),
                _ => quota,
            };
            drains_us = drains_us.max(quota.window().as_micros() as u64);
            faults.push((rng.u64(0..ends_us), Fault::Override { region, quota }));
        }
        if self == Self::Losses {
            let region = rng.usize(0..count);
            let at = rng.u64(500_000..ends_us);
            if rng.bool() {
                faults.push((at, Fault::Wipe { region }));
            } else {
                faults.push((at - rng.u64(0..300_000), Fault::Snapshot { region }));
                faults.push((at, Fault::Failover { region }));
            }
        }
        if self == Self::GossipShare {
            faults.retain(|(_, fault)| matches!(fault, Fault::Cut { .. }));
            for _ in 0..rng.usize(1..=3) {
                let (from, to) = pair(count, &mut rng);
                faults.push((rng.u64(0..ends_us), Fault::Cut { from, to, us: rng.u64(500_000..4_000_000) }));
            }
        }
        let with = |of: u32| if self == Self::Operations { of } else { 0 };
        let operations = [
            with(rng.u32(0..200)),
            with(rng.u32(0..2) * 20),
            with(rng.u32(0..2) * 20),
            with(rng.u32(0..2) * 10),
        ];
        let beat_us = [100_000, 500_000][rng.usize(0..2)];
        let setup = Setup {
            delay_us,
            jitter_us,
            lost: [0, 0, 20, 100][rng.usize(0..4)],
            flush_us: [1_000, 50_000][rng.usize(0..2)],
            beat_us,
            readers: rng.usize(1..=2),
            paused: [0, 0, 30, 200][rng.usize(0..4)],
            pause_us: if is_escrow { rng.u64(0..=4 * bucket_us) } else { rng.u64(0..2_000_000) },
            retention_us: if rng.u32(0..4) == 0 { 150_000 } else { 3_600_000_000 },
            most_items: [1, 2, 128][rng.usize(0..3)],
            cut_off_us: (self == Self::GossipShare).then_some(700_000 + 2 * (delay_us + jitter_us) + beat_us),
            fresh_us: bucket_us * 6 / 10,
            offsets_us: (0..count).map(|_| rng.i64(0..=apart) - apart / 2).collect(),
            gaps_us: gaps_us.collect(),
            flip_us: [0, 0, 0, 700_000][rng.usize(0..4)],
            max_cost: match rng.u32(0..4) {
                0 => 1,
                1 => (limit / regions + 2).min(limit),
                2 => (limit / 10).max(1),
                _ => (limit / regions).max(1),
            },
            max_n: [1, 3, 20][rng.usize(0..3)],
            refunds: operations[0],
            penalties: operations[1],
            blocks: operations[2],
            resets: operations[3],
            leases: if self == Self::Leases { 100 } else { 0 },
            ends_us,
            faults,
            defect: None,
            modes,
        };
        // In quiet, the slowest level drains completely.
        let quiet_us = 6_000_000
            + 2 * span_us
            + drains_us
            + if is_escrow { 4 * bucket_us + 2 * setup.pause_us } else { setup.pause_us };
        (setup, quiet_us)
    }
}

fn pair(count: usize, rng: &mut fastrand::Rng) -> (usize, usize) {
    let from = rng.usize(0..count);
    (from, (from + rng.usize(1..count)) % count)
}

fn quota(kind: Family, limit: u64, span: Duration, rng: &mut fastrand::Rng) -> Quota {
    match kind {
        Family::GossipLevel | Family::EscrowLevel if rng.bool() => {
            Quota::leaky_bucket(limit, Rate::new(limit, span))
        }
        Family::GossipLevel | Family::EscrowLevel => Quota::token_bucket(limit, Rate::new(limit, span)),
        Family::GossipLog => Quota::sliding_log(limit, span),
        Family::GossipCounter => Quota::sliding_counter(limit, span),
        _ => Quota::fixed_window(limit, span).aligned_to_clock(),
    }
}
