//! Waiting until a check is admitted, reservations that are settled later, and checks of many keys.

use std::time::{Duration, Instant};

use tidegate::{Decision, Gate, Limiter, ManualClock, Quota, Rate};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, PATIENCE, builder, calls, limiter, quotas, soon};
use crate::support::stalls::{LostTime, extended};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A limiter and the clock by which it decides.
enum World {
    Memory(Limiter, ManualClock),
    /// The clock of the server also runs between the shifts.
    Redis(Limiter, Server),
}

impl World {
    fn both() -> [Self; 2] {
        let (clock, server) = (ManualClock::new(), Server::with_shiftable_clock().unwrap());
        [Self::Memory(Limiter::in_memory_with(clock.clone()), clock), Self::Redis(limiter(&server), server)]
    }

    fn limiter(&self) -> &Limiter {
        match self {
            Self::Memory(limiter, _) | Self::Redis(limiter, _) => limiter,
        }
    }

    fn advance(&self, by: Duration) {
        match self {
            Self::Memory(_, clock) => clock.advance(by),
            Self::Redis(_, server) => server.shift_clock(by.as_micros().try_into().unwrap()),
        }
    }

    /// Advances the clock to the next multiple of `window`, where aligned windows start.
    async fn advance_to_start_of(&self, window: Duration) {
        let gate = self.limiter().gate("clock", Quota::fixed_window(1, window));
        let now = gate.peek("").await.unwrap().server_now_us();
        let window_us = u64::try_from(window.as_micros()).unwrap();
        self.advance(Duration::from_micros(window_us - now % window_us));
    }
}

async fn remaining(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

#[tokio::test]
async fn committed_reservation_is_charged_at_its_final_cost() {
    for world in World::both() {
        for (name, quota) in quotas(10, 100 * HOUR) {
            let gate = world.limiter().gate(name, quota);
            for (committed, left) in [(0, 10), (2, 8), (4, 6), (9, 1), (10, 0), (25, 0)] {
                gate.reset("x").await.unwrap();
                let reservation = gate.reserve("x", 4).await.unwrap();
                assert_eq!(reservation.decision().remaining(), 6, "{quota}");
                reservation.commit(committed).await.unwrap();
                assert_eq!(remaining(&gate, "x").await, left, "{quota}, {committed} committed");
            }
            gate.refund("x", 20).await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 5, "{quota}: the debt was kept");

            gate.reset("x").await.unwrap();
            gate.reserve("x", 4).await.unwrap().cancel().await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 10, "{quota}, cancelled");

            drop(gate.reserve("x", 4).await.unwrap());
            assert_eq!(remaining(&gate, "x").await, 6, "{quota}, dropped");

            let denied = gate.reserve("x", 7).await.unwrap();
            assert!(!denied.decision().is_allowed());
            denied.cancel().await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 6, "{quota}: the denied reservation charged nothing");
            gate.reserve("x", 7).await.unwrap().commit(3).await.unwrap();
            assert_eq!(
                remaining(&gate, "x").await,
                3,
                "{quota}: a commit is charged although the reservation was denied"
            );
        }
    }
}

/// Reserves 6 units at a limit of 10 per hour, and cancels while some or none of them still count.
#[tokio::test]
async fn cancel_does_not_refund_units_that_no_longer_count() {
    for world in World::both() {
        for (name, quota) in quotas(10, HOUR) {
            let gate = world.limiter().gate(name, quota);
            world.advance_to_start_of(HOUR).await;
            let late = gate.reserve("x", 6).await.unwrap();
            let later = gate.reserve("y", 6).await.unwrap();

            // In a bucket, two of the six units have drained. A cancel refunds the other four.
            world.advance(HOUR / 5);
            assert!(gate.check_cost("x", 2).await.unwrap().is_allowed());
            late.cancel().await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 8, "{quota}: only the units of the check count");

            // None of the six units counts any more. The units charged since then stay charged.
            world.advance(HOUR * 9 / 5);
            assert!(gate.check_cost("y", 3).await.unwrap().is_allowed());
            later.cancel().await.unwrap();
            assert_eq!(remaining(&gate, "y").await, 7, "{quota}: only the units of the check count");
        }
    }
}

#[tokio::test]
async fn units_of_the_previous_window_are_refunded_to_that_window() {
    for world in World::both() {
        let gate = world.limiter().gate("counter", Quota::sliding_counter(10, HOUR));
        world.advance_to_start_of(HOUR).await;
        let earlier = gate.reserve("x", 8).await.unwrap();
        world.advance(HOUR * 5 / 4);
        assert!(gate.check_cost("x", 1).await.unwrap().is_allowed());
        assert!((3..=4).contains(&remaining(&gate, "x").await), "1 and three quarters of 8 are used");
        earlier.commit(4).await.unwrap();
        assert!((6..=7).contains(&remaining(&gate, "x").await), "1 and three quarters of 4 are used");
    }
}

/// Awaits `wait` and advances the clock by `step` each time the future is pending. Returns its output and the
/// time that passed.
async fn advance_until<T>(
    clock: &ManualClock,
    step: Duration,
    wait: impl Future<Output = T>,
) -> (T, Duration) {
    let start = clock.now();
    tokio::pin!(wait);
    loop {
        tokio::select! {
            biased;
            done = &mut wait => return (done, clock.now() - start),
            () = tokio::task::yield_now() => clock.advance(step),
        }
    }
}

#[tokio::test]
async fn wait_ends_exactly_when_a_unit_becomes_available() {
    let (clock, us) = (ManualClock::new(), Duration::from_micros(1));
    let limiter = Limiter::in_memory_with(clock.clone());
    for (name, quota) in quotas(2, SECOND) {
        let gate = limiter.gate(name, quota);
        clock.set(Duration::from_secs(1_577_836_800));
        gate.penalize("x", 2).await.unwrap();
        let wait = gate.peek("x").await.unwrap().retry_after();
        assert!(wait > Duration::ZERO, "{quota}");
        let (decision, took) = advance_until(&clock, us * 100, gate.until_allowed("x", HOUR)).await;
        assert!(decision.unwrap().is_allowed(), "{quota}");
        // In a leaky bucket, a check waits for a free slot and then for its turn.
        let wait = if quota.has_queue() { SECOND } else { wait };
        assert!(took >= wait && took < wait + us * 100, "{quota}: {took:?} instead of {wait:?}");
    }
}

#[tokio::test]
async fn wait_that_cannot_succeed_is_denied_at_once() {
    let us = Duration::from_micros(1);
    for world in World::both() {
        // No aligned window must begin meanwhile. The clock of the server runs, so the longest wait that is too
        // short leaves time for a busy machine.
        world.advance_to_start_of(HOUR).await;
        for (name, quota) in quotas(2, HOUR) {
            let gate = world.limiter().gate(name, quota);
            assert!(gate.check_cost("x", 2).await.unwrap().is_allowed());
            let wait = gate.peek("x").await.unwrap();
            // If the queue of a leaky bucket is full, the turn comes when all checks before it have drained.
            let wait = if quota.has_queue() { wait.reset_after() } else { wait.retry_after() };
            for too_short in [Duration::ZERO, us, wait / 2, wait - PATIENCE] {
                let start = Instant::now();
                let decision = gate.until_allowed("x", too_short).await.unwrap();
                assert!(!decision.is_allowed(), "{quota}");
                assert!(start.elapsed() < PATIENCE);
            }
        }
        // The queue has room, but the turn would come too late.
        let gate = world.limiter().gate("queue", Quota::leaky_bucket(10, Rate::per_hour(1)));
        assert!(gate.check_cost("x", 3).await.unwrap().is_allowed());
        for too_short in [Duration::ZERO, HOUR, 2 * HOUR, 3 * HOUR - PATIENCE] {
            let start = Instant::now();
            assert!(!gate.until_allowed("x", too_short).await.unwrap().is_allowed());
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(remaining(&gate, "x").await, 7, "no slot was taken");
    }
}

#[tokio::test]
async fn wait_is_bounded_although_other_callers_overtake_it() {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("hot", Quota::token_bucket(1, Rate::per_second(1_000)));
    let (lost, start) = (LostTime::start(&["self".to_owned()]), Instant::now());
    let max_wait = 200 * MS;
    let waits: Vec<_> = (0..300)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let (mut admitted, mut longest) = (0_u64, Duration::ZERO);
                while start.elapsed() < 400 * MS {
                    let begun = Instant::now();
                    admitted += u64::from(gate.until_allowed("x", max_wait).await.unwrap().is_allowed());
                    longest = longest.max(begun.elapsed());
                }
                (admitted, longest)
            })
        })
        .collect();
    let (mut admitted, mut longest) = (0, Duration::ZERO);
    for wait in waits {
        let (more, took) = wait.await.unwrap();
        admitted += more;
        longest = longest.max(took);
    }
    let bound = extended(max_wait + SECOND, lost.end());
    assert!(longest < bound, "{longest:?} for a wait of at most {max_wait:?}, more than {bound:?}");
    let permitted = 1 + u64::try_from(start.elapsed().as_millis()).unwrap();
    assert!(admitted > 0 && admitted <= permitted, "{admitted} of {permitted}");
}

#[tokio::test]
async fn leaky_bucket_admits_checks_evenly_spaced_and_in_order() {
    let clock = ManualClock::new();
    let gate =
        Limiter::in_memory_with(clock.clone()).gate("queue", Quota::leaky_bucket(3, Rate::per_second(1)));
    let mut turns = Vec::new();
    let start = clock.now();
    for _ in 0..3 {
        let decision = gate.check("x").await.unwrap();
        turns.push(decision.delay().as_secs());
    }
    assert_eq!(turns, [0, 1, 2]);
    let full = gate.check("x").await.unwrap();
    assert_eq!((full.is_allowed(), full.retry_after()), (false, SECOND));
    let (decision, _) = advance_until(&clock, MS, gate.until_allowed("x", HOUR)).await;
    assert!(decision.unwrap().is_allowed());
    assert_eq!(clock.now() - start, 3 * SECOND, "the turn comes after the three checks before it");
}

#[tokio::test]
async fn cancelled_wait_returns_its_slot_in_the_queue() {
    for world in World::both() {
        let gate = world.limiter().gate("queue", Quota::leaky_bucket(10, Rate::per_hour(1)));
        assert!(gate.check_cost("x", 2).await.unwrap().is_allowed());
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.until_allowed("x", 5 * HOUR).await }
        });
        soon("the slot is taken", async || remaining(&gate, "x").await == 7).await;
        // Redis has taken it, and the reply may be on its way: a check whose future is dropped then stays charged.
        tokio::time::sleep(50 * MS).await;
        waiting.abort();
        soon("the slot is returned", async || remaining(&gate, "x").await == 8).await;
    }
}

#[tokio::test]
async fn wait_that_is_admitted_at_once_keeps_its_slot() {
    for world in World::both() {
        let gate = world.limiter().gate("queue", Quota::leaky_bucket(10, Rate::per_hour(1)));
        let first = gate.until_allowed("x", HOUR).await.unwrap();
        assert_eq!((first.is_allowed(), first.delay()), (true, Duration::ZERO));
        assert_eq!(remaining(&gate, "x").await, 9);
    }
}

#[tokio::test]
async fn wait_at_redis_ends_by_the_clock_of_redis() {
    let server = tidegate_testkit::shared();
    for (name, quota) in quotas(10, 200 * MS) {
        let gate = limiter(&server).gate(name, quota);
        gate.penalize("x", 10).await.unwrap();
        let before = gate.peek("x").await.unwrap();
        let decision = gate.until_allowed("x", PATIENCE).await.unwrap();
        assert!(decision.is_allowed(), "{quota}");
        let waited = Duration::from_micros(decision.server_now_us() - before.server_now_us());
        assert!(waited >= before.retry_after(), "{quota}: {waited:?} of {:?}", before.retry_after());
    }
}

#[tokio::test]
async fn check_many_decides_each_key_separately_and_in_order() {
    for world in World::both() {
        let gate = world.limiter().gate("many", Quota::fixed_window(2, HOUR));
        let keys = ["a", "b", "a", "a", "b", "c", "b"];
        let decisions = gate.check_many(keys).await.into_iter().map(Result::unwrap);
        let results: Vec<(bool, u64)> =
            decisions.map(|decision| (decision.is_allowed(), decision.remaining())).collect();
        let expected = [(true, 1), (true, 1), (true, 0), (false, 0), (true, 0), (true, 1), (false, 0)];
        assert_eq!(results, expected);

        // More checks than fit in one call, with three consecutive checks of each key.
        let keys = (0..900).map(|index| format!("key {}", index / 3));
        for (index, decision) in gate.check_many(keys).await.into_iter().enumerate() {
            assert_eq!(decision.unwrap().is_allowed(), index % 3 < 2, "check {index}");
        }
        assert!(gate.check_many([""; 0]).await.is_empty());
    }
}

#[tokio::test]
async fn corrupt_key_in_check_many_fails_alone() {
    let server = tidegate_testkit::shared();
    let gate = limiter(&server).gate("many", Quota::sliding_log(1, HOUR));
    let keys: Vec<String> = (0..300).map(|index| format!("key {index}")).collect();
    for bad in [0, 127, 128, 299] {
        server.cli(&["SET", &gate.redis_key(&keys[bad]).unwrap(), "text"]).unwrap();
    }
    for (index, decision) in gate.check_many(&keys).await.into_iter().enumerate() {
        match (index, decision) {
            (0 | 127 | 128 | 299, Err(error)) => {
                assert!(error.is_corrupt_state());
                assert_eq!(error.key(), Some(keys[index].as_bytes()));
            }
            (_, Ok(decision)) => assert!(decision.is_allowed()),
            (_, Err(error)) => panic!("{index}: {error}"),
        }
    }
}

#[tokio::test]
async fn limiter_is_ready_until_it_is_shut_down() {
    let server = tidegate_testkit::shared();
    for limiter in [limiter(&server), Limiter::in_memory()] {
        let gate = limiter.gate("login", Quota::fixed_window(5, HOUR));
        let clone = limiter.clone();
        limiter.ready().await.unwrap();
        assert!(gate.check("x").await.unwrap().is_allowed());
        clone.shutdown().await;
        clone.shutdown().await;
        for error in [
            limiter.ready().await.unwrap_err(),
            gate.check("x").await.unwrap_err(),
            gate.refund("x", 1).await.unwrap_err(),
        ] {
            assert!(error.is_shut_down() && !error.is_unavailable(), "{error}");
            assert!(error.to_string().ends_with("this limiter was shut down: open another one"), "{error}");
        }
    }
}

#[tokio::test]
async fn limiter_takes_one_connection_of_a_pool_once() {
    let server = Server::process(&[]).unwrap();
    let pool = deadpool_redis::Config::from_url(server.url()).builder().unwrap();
    let pool = pool.max_size(1).runtime(deadpool_redis::Runtime::Tokio1).build().unwrap();
    let builder = Limiter::builder().pool(pool.clone()).deadline(PATIENCE).batching(false);
    // Without heartbeats and reads of the overrides, which would be counted below.
    let limiter = builder.instances(1).follow_overrides(false).publish_figures(false).build().unwrap();
    let gate = limiter.gate("login", Quota::fixed_window(10_000, HOUR));
    let _ = gate.check("x").await.unwrap();

    let clients = || server.cli(&["CLIENT", "LIST"]).unwrap().lines().count();
    // Does not count PING, which the limiter sends when a call waits for long.
    let commands = ["evalsha", "unwatch", "client|setinfo"];
    let before = (clients(), commands.map(|command| calls(&server, command)));
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    assert!(gate.check("x").await.unwrap().is_allowed());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let after = (clients(), commands.map(|command| calls(&server, command)));
    let [evalsha, unwatch, setinfo] = before.1;
    assert_eq!(after, (before.0, [evalsha + 1_000, unwatch, setinfo]), "one EVALSHA per check");

    // The limiter has taken the only connection of the pool, so the pool opens another for its other users.
    let mut other = pool.get().await.unwrap();
    let pong: String = redis::cmd("PING").query_async(&mut other).await.unwrap();
    assert_eq!(pong, "PONG");
    let by_default = Limiter::from_pool(pool.clone());
    drop(other);
    soon("Redis answers", async || by_default.ready().await.is_ok()).await;
}

#[tokio::test]
async fn callers_of_a_new_limiter_share_one_connection() {
    let server = Server::process(&[]).unwrap();
    let gate = builder(server.url()).build().unwrap().gate("login", Quota::fixed_window(10_000, HOUR));
    let before = server.cli(&["CLIENT", "LIST"]).unwrap().lines().count();
    let checks: Vec<_> = (0..100)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.check("x").await.as_ref().is_ok_and(Decision::is_allowed) })
        })
        .collect();
    for check in checks {
        assert!(check.await.unwrap());
    }
    assert_eq!(server.cli(&["CLIENT", "LIST"]).unwrap().lines().count(), before + 1);
}
