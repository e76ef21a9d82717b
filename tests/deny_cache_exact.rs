//! A cached denial equals the reply that Redis would give if only this process had changed the key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Ban, Builder, Decision, Gate, Lease, OnFailure, Quota, Rate, Source};

use crate::support::fixture::{HOUR, builder, quotas, soon};
use crate::support::world::{World, passes};

const MICRO: Duration = Duration::from_micros(1);

/// Returns all fields of an answer.
fn answer(decision: &Decision) -> (bool, u64, Duration, Duration, Duration) {
    let times = (decision.retry_after(), decision.reset_after(), decision.delay());
    (decision.is_allowed(), decision.remaining(), times.0, times.1, times.2)
}

/// Admits two units, gets a check of four denied, and admits one unit by `cheaper`. The check of four must
/// then get the same answer as a key without a cached denial.
async fn stays_exact(world: &World, (name, quota): (&str, Quota), cheaper: impl AsyncFn(&Gate, &str)) {
    let gate = world.limiter.gate(name, quota);
    let [denied, fresh] = ["denied", "fresh"].map(|key| format!("{key} {}", fastrand::u64(..)));
    for key in [&denied, &fresh] {
        assert!(gate.check_cost(key, 2).await.unwrap().is_allowed());
    }
    for source in [Source::Redis, Source::DenyCache] {
        let decision = gate.check_cost(&denied, 4).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.source()), (false, source), "{quota}");
    }
    for key in [&denied, &fresh] {
        cheaper(&gate, key).await;
    }
    let expected = gate.check_cost(&fresh, 4).await.unwrap();
    assert_eq!((expected.is_allowed(), expected.remaining()), (false, 2), "{quota}");
    for _ in 0..2 {
        let decision = gate.check_cost(&denied, 4).await.unwrap();
        assert_eq!(answer(&decision), answer(&expected), "{quota}: {decision:?}");
    }
}

#[tokio::test]
async fn a_denial_is_forgotten_once_a_cheaper_check_is_admitted() {
    let world = World::redis();
    let other = world.limiter.gate("other", Quota::fixed_window(1_000, HOUR));
    for named in quotas(5, HOUR) {
        stays_exact(&world, named, async |gate: &Gate, key: &str| {
            assert!(gate.check(key).await.unwrap().is_allowed());
        })
        .await;
        stays_exact(&world, named, async |gate: &Gate, key: &str| {
            assert!(gate.check_many([key]).await[0].as_ref().unwrap().is_allowed());
        })
        .await;
        stays_exact(&world, named, async |gate: &Gate, key: &str| {
            let all = world.limiter.check_all([other.key(key), gate.key(key)]).await.unwrap();
            assert!(all.is_allowed());
        })
        .await;
        stays_exact(&world, named, async |gate: &Gate, key: &str| {
            assert_eq!(gate.take_up_to(key, 1).await.unwrap().granted(), 1);
        })
        .await;
        stays_exact(&world, named, async |gate: &Gate, key: &str| {
            let grant = world.limiter.take_up_to([other.key(key), gate.key(key)], 1).await.unwrap();
            assert_eq!(grant.granted(), 1);
        })
        .await;
        stays_exact(&world, named, async |gate: &Gate, key: &str| {
            gate.reserve(key, 1).await.unwrap().commit(1).await.unwrap();
        })
        .await;
    }
}

/// With an operator's override, or a second gate of the same name, a key has two quotas. All checks are for one unit.
#[tokio::test]
async fn a_denial_by_one_quota_is_forgotten_once_another_quota_of_its_key_admits() {
    let world = World::redis();
    for ((name, small), (_, large)) in quotas(5, HOUR).into_iter().zip(quotas(10, HOUR)) {
        let [small, large] = [small, large].map(|quota| world.limiter.gate(name, quota));
        for key in ["denied", "fresh"] {
            assert_eq!(passes(&small, key, 5).await, 5);
        }
        for source in [Source::Redis, Source::DenyCache] {
            let decision = small.check("denied").await.unwrap();
            assert_eq!((decision.is_allowed(), decision.source()), (false, source), "{name}");
        }
        // Takes of one time are those of one call.
        world.advance(MICRO);
        for key in ["denied", "fresh"] {
            assert_eq!(passes(&large, key, 2).await, 2, "{name}");
        }
        let expected = small.check("fresh").await.unwrap();
        let decision = small.check("denied").await.unwrap();
        assert_eq!(answer(&decision), answer(&expected), "{name}: {decision:?}");
    }
}

#[tokio::test]
async fn an_impatient_denial_is_forgotten_once_a_patient_check_is_admitted() {
    let world = World::redis();
    let queue = world.limiter.gate("queue", Quota::leaky_bucket(5, Rate::per_second(1)));
    let check = |seconds| queue.key("key").max_delay(Duration::from_secs(seconds)).check();
    assert!(check(0).await.unwrap().is_allowed());
    for source in [Source::Redis, Source::DenyCache] {
        assert_eq!(check(0).await.unwrap().source(), source);
    }
    assert!(check(9).await.unwrap().is_allowed());
    let denied = check(0).await.unwrap();
    assert_eq!((denied.remaining(), denied.retry_after()), (3, Duration::from_secs(2)));
}

#[tokio::test]
async fn a_denial_is_forgotten_once_a_lease_takes_units_of_its_key() {
    let world = World::redis();
    let (limit, cost) = (10_000, 9_999);
    let gate = world.limiter.gate("gate", Quota::fixed_window(limit, HOUR)).leased(Lease::new());
    assert!(gate.check_cost("key", 2).await.unwrap().is_allowed());
    assert!(!gate.check_cost("key", cost).await.unwrap().is_allowed());
    soon("units are leased", async || gate.check("key").await.unwrap().source() == Source::Lease).await;
    // Only charges by this process change the units left, because so little time passes. If no time passed, a
    // charge could not be distinguished from an earlier one at the same microsecond.
    soon("the answers agree", async || {
        world.advance(Duration::from_micros(1));
        let decision = gate.check_cost("key", cost).await.unwrap();
        decision.remaining() == gate.peek("key").await.unwrap().remaining()
    })
    .await;
}

/// Makes random calls from one process, many of them when a denial ends, or when its key would be unused. Each
/// answer, cached or not, is that of the in-memory store at the same instant.
#[tokio::test]
async fn every_answer_to_one_process_matches_the_reference_cached_or_not() {
    // A call that ran into its deadline would be decided by this process alone, and the states would differ.
    let patient = |builder: Builder| builder.deadline(HOUR).on_failure(OnFailure::Error);
    let (world, reference) = (World::redis_with(patient), World::memory());
    let mut random = fastrand::Rng::with_seed(14);
    let window = Duration::from_secs(2);
    let options = [
        ("fixed.day", Quota::calendar_window(7, "day@UTC".parse().unwrap())),
        ("log.counting", Quota::sliding_log(7, window).count_denied()),
    ];
    let ban = Ban::after(3, Duration::from_secs(60)).lasting(Duration::from_millis(2_500));
    for (name, quota) in quotas(7, window).into_iter().chain(options) {
        for (name, ban) in [(name.to_owned(), None), (format!("{name}.ban"), Some(ban))] {
            let gates = [&world, &reference].map(|world| match ban {
                Some(ban) => world.limiter.gate(&name, quota).ban(ban),
                None => world.limiter.gate(&name, quota),
            });
            let (mut now, mut ends, mut cached) = (Duration::ZERO, [Duration::ZERO; 2], 0);
            for step in 0..1_500 {
                let end = ends[random.usize(0..2)].saturating_sub(MICRO * random.u32(0..2));
                now = match random.u32(0..8) {
                    0 => now.max(end),
                    1..=3 => now + MICRO * random.u32(0..200_000),
                    _ => now,
                };
                world.set(now);
                reference.set(now);
                let key = ["a", "b"][random.usize(0..2)];
                let (verb, units) = (random.u32(0..22), random.u64(1..=7));
                let mut answers = Vec::new();
                for gate in &gates {
                    match verb {
                        0 => gate.penalize(key, units).await.unwrap(),
                        1 => gate.refund(key, units).await.unwrap(),
                        // A gate with a ban has no reservations.
                        2 if ban.is_none() => {
                            gate.reserve(key, units).await.unwrap().cancel().await.unwrap();
                        }
                        2 | 3 => drop(gate.peek(key).await.unwrap()),
                        4 => gate.reset(key).await.unwrap(),
                        5 => gate.block(key, Duration::from_millis(600 * units)).await.unwrap(),
                        _ => {
                            let patience = Duration::from_millis(300 * (units % 4));
                            let cost = units.div_ceil(1 + u64::from(verb % 3));
                            let check = gate.key(key).cost(cost);
                            let check = if verb % 2 == 0 { check.max_delay(patience) } else { check };
                            // A check, or several of which as many as possible are admitted.
                            let (granted, decision) = match verb {
                                6..=9 => {
                                    let grant = check.take_up_to(1 + units % 5).await.unwrap();
                                    (grant.granted(), grant.into_decision())
                                }
                                _ => (0, check.check().await.unwrap()),
                            };
                            ends = [now + decision.retry_after(), now + decision.reset_after()];
                            let is_cached = decision.source() == Source::DenyCache;
                            cached += u32::from(is_cached);
                            let mut answer = answer(&decision);
                            if is_cached && cost > 1 && !quota.kind().algorithm().predicts() {
                                // The units left are those at the denial. Some may have become free since.
                                let left = gates[1].peek(key).await.unwrap().remaining();
                                assert!(answer.1 <= left, "{name}, step {step}: {decision:?}");
                                answer.1 = left;
                            }
                            answers.push((granted, answer));
                        }
                    }
                }
                let is_equal = answers.iter().all(|answer| *answer == answers[0]);
                assert!(is_equal, "{name}, {quota}, step {step}: {answers:?}");
            }
            let is_counting = quota.kind().algorithm().counts_denied();
            assert_eq!(cached > 50, !is_counting, "{name}: {cached} answers were cached");
        }
    }
}

/// During a window, the count of a fixed window only grows. A cached answer must therefore count every unit
/// that was admitted to this process before the check began.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cached_answer_counts_all_units_admitted_before_its_check_began() {
    const LIMIT: u64 = 200;
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).deny_cache(HOUR).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(LIMIT, 24 * HOUR));
    let cached = Arc::new(AtomicU64::new(0));
    for key in 0..10 {
        let admitted = Arc::new(AtomicU64::new(0));
        let tasks = (0..8).map(|task| {
            let (gate, admitted, cached) = (gate.clone(), admitted.clone(), cached.clone());
            let mut random = fastrand::Rng::with_seed(100 * key + task);
            tokio::spawn(async move {
                for _ in 0..150 {
                    let cost = if random.bool() { 1 } else { random.u64(2..=LIMIT) };
                    let known = admitted.load(Ordering::SeqCst);
                    let decision = gate.check_cost(key.to_string(), cost).await.unwrap();
                    if decision.is_allowed() {
                        admitted.fetch_add(cost, Ordering::SeqCst);
                    }
                    if decision.source() == Source::DenyCache {
                        cached.fetch_add(1, Ordering::Relaxed);
                        assert!(LIMIT - decision.remaining() >= known, "{known} admitted: {decision:?}");
                    }
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    }
    assert!(cached.load(Ordering::Relaxed) > 100, "{cached:?} answers were cached");
}
