//! Tests the lease bounds against a random adversary: several instances lease, hoard, and spend at the worst
//! moment, with a manual clock.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidegate::{Gate, Quota, Rate};

use super::lease;
use crate::support::behaviours;
use crate::support::fixture::soon;
use crate::support::plan;
use crate::support::world::World;

const INSTANCES: usize = 3;
const WINDOW_MS: u64 = 10_000;
const LIMIT: u64 = 60;
/// B and ℓ of the bound.
const MAX_UNITS: u64 = 10;
const HOLD_MS: u64 = 1_000;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Number of admissions by the time since the start in ms.
type Admitted = BTreeMap<u64, u64>;

/// Each instance is a gate with its own leases, as in separate processes.
async fn attack(world: &World, name: &str, quota: Quota, seed: u64) -> Admitted {
    let mut random = StdRng::seed_from_u64(seed);
    let lease = lease().max_units(MAX_UNITS).hold(ms(HOLD_MS));
    let instances: [Gate; INSTANCES] = std::array::from_fn(|_| world.limiter.gate(name, quota).leased(lease));
    let (mut now, mut admitted) = (0, Admitted::new());
    while now < 4 * WINDOW_MS {
        for gate in &instances {
            // The instance hoards, spends its leases, or takes all remaining units.
            let checks = match random.random_range(0..8) {
                0..3 => 0,
                3..6 => random.random_range(0..10),
                // Only at the start of a window: an instance cannot hoard units of an exhausted limit.
                _ if now % WINDOW_MS < WINDOW_MS / 20 => 2 * LIMIT,
                _ => 4,
            };
            let uses_store = random.random_bool(0.6);
            for _ in 0..checks {
                let decision = match gate.try_check("x") {
                    Some(decision) => decision,
                    None if uses_store => gate.check("x").await.unwrap(),
                    None => break,
                };
                if !decision.is_allowed() {
                    break;
                }
                *admitted.entry(now).or_default() += 1;
                tokio::task::yield_now().await;
            }
            let stats = gate.lease_stats();
            // Expired units may still be on their way back to the store.
            assert_eq!(stats.taken, stats.spent + stats.held + stats.returned + stats.stranded, "{stats:?}");
        }
        let rest = WINDOW_MS - now % WINDOW_MS;
        now += match random.random_range(0..7) {
            0 => 1,
            1 => random.random_range(0..20),
            2 => HOLD_MS - 1,
            3 => HOLD_MS,
            // The end of a window, and the last moments before it.
            4 => rest,
            5 => rest.saturating_sub(random.random_range(1..20)).max(1),
            _ => random.random_range(0..2_000),
        };
        world.set(ms(now));
        for _ in 0..random.random_range(0..20) {
            tokio::task::yield_now().await;
        }
    }
    admitted
}

/// Returns the maximum number of admissions in an interval of `length` ms that begins with an admission.
fn max_within(admitted: &Admitted, length: u64) -> u64 {
    let within = |start: u64| admitted.range(start..start + length).map(|(_, units)| units).sum();
    admitted.keys().map(|start| within(*start)).max().unwrap_or(0)
}

behaviours! {
    async fn a_token_bucket_admits_at_most_its_capacity_its_rate_and_the_hoarded_units(world) {
        let quota = Quota::token_bucket(LIMIT, Rate::new(LIMIT, ms(WINDOW_MS)));
        for seed in seeds() {
            world.set(Duration::ZERO);
            let admitted = attack(world, &format!("token{seed}"), quota, seed).await;
            let times: Vec<u64> = admitted.keys().copied().collect();
            for (at, start) in times.iter().enumerate() {
                for end in &times[at..] {
                    let units: u64 = admitted.range(start..=end).map(|(_, units)| units).sum();
                    // cap + r·T + min(I·B, r·ℓ), in thousandths.
                    let rate = LIMIT * 1_000 / WINDOW_MS;
                    let hoarded = (INSTANCES as u64 * MAX_UNITS * 1_000).min(rate * HOLD_MS);
                    let bound = LIMIT * 1_000 + rate * (end - start) + hoarded;
                    assert!(units * 1_000 <= bound, "seed {seed}: {units} from {start} to {end} ms");
                }
            }
            assert!(!times.is_empty());
        }
    }

    async fn a_window_admits_at_most_its_limit(world) {
        let quota = Quota::fixed_window(LIMIT, ms(WINDOW_MS)).aligned_to_clock();
        for seed in seeds() {
            world.set(Duration::ZERO);
            let admitted = attack(world, &format!("fixed{seed}"), quota, seed).await;
            for window in 0..5 {
                let range = window * WINDOW_MS..(window + 1) * WINDOW_MS;
                let units: u64 = admitted.range(range).map(|(_, units)| units).sum();
                assert!(units <= LIMIT, "seed {seed}: {units} in window {window}");
            }
        }
    }

    async fn a_counter_admits_at_most_its_defined_estimate(world) {
        let quota = Quota::sliding_counter(LIMIT, ms(WINDOW_MS));
        for seed in seeds() {
            world.set(Duration::ZERO);
            let admitted = attack(world, &format!("counter{seed}"), quota, seed).await;
            let in_window = |window: u64, until: u64| -> u64 {
                let end = (window * WINDOW_MS + until).min((window + 1) * WINDOW_MS);
                admitted.range(window * WINDOW_MS..end).map(|(_, units)| units).sum()
            };
            for &now in admitted.keys() {
                let (window, since) = (now / WINDOW_MS, now % WINDOW_MS);
                let previous = window.checked_sub(1).map_or(0, |window| in_window(window, WINDOW_MS));
                let estimate = in_window(window, since + 1) + previous * (WINDOW_MS - since) / WINDOW_MS;
                assert!(estimate <= LIMIT, "seed {seed}: {estimate} at {now} ms");
            }
        }
    }

    async fn a_log_admits_at_most_its_limit_and_the_hoarded_units(world) {
        let quota = Quota::sliding_log(LIMIT, ms(WINDOW_MS));
        for seed in seeds() {
            world.set(Duration::ZERO);
            let admitted = attack(world, &format!("log{seed}"), quota, seed).await;
            let hoarded = LIMIT.min(INSTANCES as u64 * MAX_UNITS);
            let max = max_within(&admitted, WINDOW_MS);
            assert!(max <= LIMIT + hoarded, "seed {seed}: {max}");
            // Over the window minus the hold time, there is no excess.
            let max = max_within(&admitted, WINDOW_MS - HOLD_MS);
            assert!(max <= LIMIT, "seed {seed}: {max} in {} ms", WINDOW_MS - HOLD_MS);
        }
    }

    /// The bound is reached, so it cannot be tightened.
    async fn a_hoarder_exceeds_a_token_bucket_by_at_most_its_held_units(world) {
        // Ten units per ms: r·ℓ is 10000, and I·B is smaller.
        let quota = Quota::token_bucket(1_000, Rate::new(10_000, ms(1_000)));
        let gate = world.limiter.gate("reached", quota).leased(lease().max_units(40).hold(ms(1_000)));
        super::grow(&gate, "x", 24).await;
        let held = gate.lease_stats().held;
        // The bucket drains completely while the hoarder keeps its units.
        world.advance(ms(999));
        let mut admitted = 0;
        while gate.try_check("x").is_some() {
            admitted += 1;
        }
        let unleased = world.limiter.gate("reached", quota);
        while unleased.check("x").await.unwrap().is_allowed() {
            admitted += 1;
        }
        // A refill may have taken units that are not spent yet.
        soon("admissions exceed the capacity", async || admitted + gate.lease_stats().held > 1_000).await;
        assert!(held >= 24);
        assert!(admitted <= 1_000 + 40, "{admitted}");
        soon("refills are done", async || {
            world.advance(ms(1_000));
            gate.lease_stats().keys == 0
        })
        .await;
    }
}

fn seeds() -> std::ops::Range<u64> {
    0..u64::from(plan::sequences() / 250).max(2)
}
