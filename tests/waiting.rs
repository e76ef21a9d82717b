//! Waiting for a turn, and settling what was taken before its cost was known.

use std::time::{Duration, Instant};

use harness::Server;
use tidegate::{Decision, Gate, Limiter, ManualClock, Quota, Rate};

use crate::support::fixture::{HOUR, PATIENCE, builder, calls, limiter, quotas, soon};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A limiter and the clock that decides for it.
enum World {
    Memory(Limiter, ManualClock),
    /// The server's clock runs on by itself, too.
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

    /// To just after a multiple of `window`, where windows by the clock begin.
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
async fn a_reservation_charges_what_it_turned_out_to_cost() {
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
            assert_eq!(remaining(&gate, "x").await, 6, "{quota}: nothing was held");
            gate.reserve("x", 7).await.unwrap().commit(3).await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 3, "{quota}: done all the same, so charged");
        }
    }
}

/// Of 6 units taken, in two hours of a limit of 10 an hour.
#[tokio::test]
async fn what_no_longer_counts_is_not_given_back() {
    for world in World::both() {
        for (name, quota) in quotas(10, HOUR) {
            let gate = world.limiter().gate(name, quota);
            world.advance_to_start_of(HOUR).await;
            let late = gate.reserve("x", 6).await.unwrap();
            let later = gate.reserve("y", 6).await.unwrap();

            // Two of the six have drained: four are left to be given back.
            world.advance(HOUR / 5);
            assert!(gate.check_cost("x", 2).await.unwrap().is_allowed());
            late.cancel().await.unwrap();
            assert_eq!(remaining(&gate, "x").await, 8, "{quota}: only the check's");

            // All of them are gone; what was charged since stays charged.
            world.advance(HOUR * 9 / 5);
            assert!(gate.check_cost("y", 3).await.unwrap().is_allowed());
            later.cancel().await.unwrap();
            assert_eq!(remaining(&gate, "y").await, 7, "{quota}: only the check's");
        }
    }
}

#[tokio::test]
async fn what_was_taken_in_the_window_before_is_given_back_to_that_window() {
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

/// Lets a wait go on under a clock that a test moves.
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
async fn a_wait_ends_exactly_when_a_unit_passes() {
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
        // A place in the queue is a wait for a place, and then for its turn.
        let wait = if name == "leaky" { SECOND } else { wait };
        assert!(took >= wait && took < wait + us * 100, "{quota}: {took:?} instead of {wait:?}");
    }
}

#[tokio::test]
async fn a_wait_in_vain_is_not_begun() {
    let us = Duration::from_micros(1);
    for world in World::both() {
        for (name, quota) in quotas(2, HOUR) {
            let gate = world.limiter().gate(name, quota);
            assert!(gate.check_cost("x", 2).await.unwrap().is_allowed());
            let wait = gate.peek("x").await.unwrap();
            // Where the queue is full, its turn comes when all before it have drained.
            let wait = if name == "leaky" { wait.reset_after() } else { wait.retry_after() };
            for too_short in [Duration::ZERO, us, wait / 2, wait - SECOND] {
                let start = Instant::now();
                let decision = gate.until_allowed("x", too_short).await.unwrap();
                assert!(!decision.is_allowed(), "{quota}");
                assert!(start.elapsed() < PATIENCE);
            }
        }
        // A queue with room, whose turn comes too late.
        let gate = world.limiter().gate("queue", Quota::leaky_bucket(10, Rate::per_hour(1)));
        assert!(gate.check_cost("x", 3).await.unwrap().is_allowed());
        for too_short in [Duration::ZERO, HOUR, 2 * HOUR, 3 * HOUR - SECOND] {
            let start = Instant::now();
            assert!(!gate.until_allowed("x", too_short).await.unwrap().is_allowed());
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(remaining(&gate, "x").await, 7, "no place was taken");
    }
}

#[tokio::test]
async fn a_wait_is_bounded_however_often_it_is_overtaken() {
    let server = harness::shared();
    let gate = limiter(&server).gate("hot", Quota::token_bucket(1, Rate::per_second(1_000)));
    let start = Instant::now();
    let most = 200 * MS;
    let waits: Vec<_> = (0..300)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let mut admitted = 0_u64;
                while start.elapsed() < 400 * MS {
                    let begun = Instant::now();
                    admitted += u64::from(gate.until_allowed("x", most).await.unwrap().is_allowed());
                    let took = begun.elapsed();
                    assert!(took < most + SECOND, "{took:?} for a wait of at most {most:?}");
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for wait in waits {
        admitted += wait.await.unwrap();
    }
    let permitted = 1 + u64::try_from(start.elapsed().as_millis()).unwrap();
    assert!(admitted > 0 && admitted <= permitted, "{admitted} of {permitted}");
}

#[tokio::test]
async fn a_queue_lets_pass_evenly_spaced_and_in_order() {
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
    assert_eq!(clock.now() - start, 3 * SECOND, "after the three before it");
}

#[tokio::test]
async fn a_place_in_the_queue_is_given_back_when_nobody_waits_for_it() {
    for world in World::both() {
        let gate = world.limiter().gate("queue", Quota::leaky_bucket(10, Rate::per_hour(1)));
        assert!(gate.check_cost("x", 2).await.unwrap().is_allowed());
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.until_allowed("x", 5 * HOUR).await }
        });
        soon("the place is taken", async || remaining(&gate, "x").await == 7).await;
        waiting.abort();
        soon("the place is given back", async || remaining(&gate, "x").await == 8).await;
    }
}

#[tokio::test]
async fn a_wait_that_needs_no_waiting_keeps_its_place() {
    for world in World::both() {
        let gate = world.limiter().gate("queue", Quota::leaky_bucket(10, Rate::per_hour(1)));
        let first = gate.until_allowed("x", HOUR).await.unwrap();
        assert_eq!((first.is_allowed(), first.delay()), (true, Duration::ZERO));
        assert_eq!(remaining(&gate, "x").await, 9);
    }
}

#[tokio::test]
async fn a_wait_at_redis_ends_by_its_clock() {
    let server = harness::shared();
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
async fn many_keys_are_decided_in_their_order_each_by_itself() {
    for world in World::both() {
        let gate = world.limiter().gate("many", Quota::fixed_window(2, HOUR));
        let keys = ["a", "b", "a", "a", "b", "c", "b"];
        let decisions = gate.check_many(keys).await.into_iter().map(Result::unwrap);
        let said: Vec<(bool, u64)> = decisions.map(|it| (it.is_allowed(), it.remaining())).collect();
        assert_eq!(said, [(true, 1), (true, 1), (true, 0), (false, 0), (true, 0), (true, 1), (false, 0)]);

        // More than one call carries, each key asked for three times in a row.
        let keys = (0..900).map(|index| format!("key {}", index / 3));
        for (index, decision) in gate.check_many(keys).await.into_iter().enumerate() {
            assert_eq!(decision.unwrap().is_allowed(), index % 3 < 2, "ask {index}");
        }
        assert!(gate.check_many([""; 0]).await.is_empty());
    }
}

#[tokio::test]
async fn one_bad_key_among_many_fails_alone() {
    let server = harness::shared();
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
async fn a_limiter_is_ready_when_redis_is_and_not_after_it_was_shut_down() {
    let server = harness::shared();
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
async fn of_a_pool_one_connection_is_taken_once() {
    let server = Server::process(&[]).unwrap();
    let pool = deadpool_redis::Config::from_url(server.url()).builder().unwrap();
    let pool = pool.max_size(1).runtime(deadpool_redis::Runtime::Tokio1).build().unwrap();
    let builder = Limiter::builder().pool(pool.clone()).deadline(PATIENCE).batching(false);
    // Neither heartbeats nor readings of the overrides are counted below.
    let limiter = builder.instances(1).follow_orders(false).build().unwrap();
    let gate = limiter.gate("login", Quota::fixed_window(10_000, HOUR));
    let _ = gate.check("x").await.unwrap();

    let clients = || server.cli(&["CLIENT", "LIST"]).unwrap().lines().count();
    // Without PING, which a call sends that waits for long.
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

    // The pool, of one, makes another for its other users.
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
