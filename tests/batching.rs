//! Concurrent checks share calls to Redis, and callers cannot observe it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use harness::Server;
use tidegate::{Decision, Error, Gate, Limiter, ManualClock, Quota};

use crate::support::fixture::{HOUR, PATIENCE, Paused, builder, calls, quotas, soon};

/// Number of callers that send their own check before others enqueue.
const ALONE: usize = 4;

type Asking<'a> = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send + 'a>>;

/// Starts a separate server, so that its calls can be counted. With a manual clock, the connection takes
/// turns with the callers of a current-thread runtime, so that the counts do not depend on the machine.
async fn setting(quota: Quota) -> (Server, Limiter, Gate) {
    let server = Server::process(&[]).unwrap();
    let builder = builder(server.url()).manual_clock(ManualClock::new());
    let limiter = builder.deny_cache(Duration::ZERO).build().unwrap();
    let gate = limiter.gate("gate", quota);
    // Loads the script, so that no later call is sent twice.
    assert!(gate.check("first").await.unwrap().is_allowed());
    (server, limiter, gate)
}

fn asking<'a>(gate: &'a Gate, key: &'a str) -> Asking<'a> {
    Box::pin(gate.check(key))
}

fn poll_once(asking: &mut Asking<'_>) {
    let polled = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending));
}

fn used(server: &Server, gate: &Gate, key: &str) -> u64 {
    let used = server.cli(&["GET", &gate.redis_key(key).unwrap()]).unwrap();
    used.trim_matches('"').parse().unwrap()
}

#[tokio::test]
async fn a_check_alone_is_one_call() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(100, HOUR)).await;
    let before = calls(&server, "evalsha");
    for _ in 0..10 {
        assert!(gate.check("key").await.unwrap().is_allowed());
    }
    assert_eq!(calls(&server, "evalsha") - before, 10);
}

/// Each task checks again as soon as it has its decision. A dispatcher does not wait for them, but yields so
/// that they enqueue first.
#[tokio::test]
async fn those_who_are_answered_together_ask_again_together() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(10_000, HOUR)).await;
    let before = calls(&server, "evalsha");
    let tasks = (0..16).map(|_| {
        let gate = gate.clone();
        tokio::spawn(async move {
            for _ in 0..50 {
                assert!(gate.check("key").await.unwrap().is_allowed());
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let calls = calls(&server, "evalsha") - before;
    assert!(calls < 80, "{calls} calls for 16 times 50 checks");
}

#[tokio::test]
async fn what_is_asked_while_calls_are_under_way_goes_out_together() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(1, HOUR)).await;
    let keys: Vec<String> = (0..512).map(|number| format!("user:{number}")).collect();
    let before = calls(&server, "evalsha");
    let decisions = join_all(keys.iter().map(|key| gate.check(key))).await;
    assert!(decisions.iter().all(|decision| decision.as_ref().is_ok_and(Decision::is_allowed)));
    let sent = calls(&server, "evalsha") - before;
    // A call has at most 128 keys, so that it does not block Redis for long.
    assert!((4..=ALONE as u64 + 6).contains(&sent), "{sent} calls for 512 checks");
}

#[tokio::test]
async fn equal_asks_are_one_take_shared_out_in_the_order_of_asking() {
    let (server, _limiter, gate) =
        setting(Quota::token_bucket(200, tidegate::Rate::new(200, 24 * HOUR))).await;
    let before = calls(&server, "evalsha");
    let decisions = join_all((0..300).map(|_| gate.check("hot"))).await;
    let sent = calls(&server, "evalsha") - before;
    assert!(sent <= ALONE as u64 + 4, "{sent} calls for 300 equal checks");
    for (asked, decision) in decisions.into_iter().enumerate() {
        let decision = decision.unwrap();
        assert_eq!(decision.is_allowed(), asked < 200, "{asked}");
        assert_eq!(decision.remaining(), 199_u64.saturating_sub(asked as u64), "{asked}");
        assert_eq!(decision.retry_after().is_zero(), asked < 199, "{asked}: {decision}");
    }
}

/// First in, first out: each check waits for those before it.
#[tokio::test]
async fn each_of_many_at_a_leaky_bucket_has_a_delay_of_its_own() {
    let quota = Quota::leaky_bucket(300, tidegate::Rate::per_hour(1));
    let (_server, _limiter, gate) = setting(quota).await;
    let decisions = join_all((0..300).map(|_| gate.check("hot"))).await;
    for (asked, decision) in decisions.into_iter().enumerate() {
        let delay = decision.unwrap().delay();
        let turn = HOUR * u32::try_from(asked).unwrap();
        assert!(delay <= turn && turn - delay < Duration::from_secs(60), "{asked}: {delay:?}");
    }
}

#[tokio::test]
async fn who_gives_up_before_his_ask_is_sent_is_not_charged() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(1_000, HOUR)).await;
    let mut asking: Vec<_> = (0..100).map(|_| asking(&gate, "key")).collect();
    // No other task runs in between, so only direct sends have been sent.
    asking.iter_mut().for_each(poll_once);
    let stays = asking.split_off(90);
    let went = asking.split_off(10);
    drop(went);
    for decision in join_all(asking.into_iter().chain(stays)).await {
        assert!(decision.unwrap().is_allowed());
    }
    assert_eq!(used(&server, &gate, "key"), 20);
}

#[tokio::test]
async fn what_was_admitted_goes_to_those_who_are_still_there() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(ALONE as u64 + 10, HOUR)).await;
    let paused = Paused::new(&server);
    let mut asking: Vec<_> = (0..ALONE + 20).map(|_| asking(&gate, "key")).collect();
    asking.iter_mut().for_each(poll_once);
    // Some callers sent their own check. The others are sent in one call.
    soon("all has been sent", async || {
        server.cli(&["INFO", "clients"]).unwrap().contains("blocked_clients:1")
    })
    .await;
    let mut rest = asking.split_off(ALONE);
    drop(rest.drain(..5));
    drop(paused);
    for decision in join_all(asking).await {
        assert!(decision.unwrap().is_allowed());
    }
    let decisions = join_all(rest).await;
    let allowed: Vec<bool> =
        decisions.iter().map(|decision| decision.as_ref().unwrap().is_allowed()).collect();
    assert_eq!(allowed, [[true; 10].as_slice(), &[false; 5]].concat());
    assert_eq!(used(&server, &gate, "key"), ALONE as u64 + 10);
}

#[tokio::test]
async fn who_is_not_polled_holds_nobody_up() {
    let (_server, _limiter, gate) = setting(Quota::fixed_window(1_000, HOUR)).await;
    let mut idle: Vec<_> = (0..10).map(|_| asking(&gate, "key")).collect();
    idle.iter_mut().for_each(poll_once);
    for decision in join_all((0..100).map(|_| gate.check("key"))).await {
        assert!(decision.unwrap().is_allowed());
    }
    for decision in join_all(idle).await {
        assert!(decision.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn one_bad_key_in_a_batch_fails_alone() {
    for (name, quota) in quotas(5, HOUR) {
        let (server, limiter, _) = setting(quota).await;
        let gate = limiter.gate(name, quota);
        server.cli(&["SET", &gate.redis_key("user:33").unwrap(), "text"]).unwrap();
        let keys: Vec<String> = (0..100).map(|number| format!("user:{}", number % 50)).collect();
        for (key, decision) in keys.iter().zip(join_all(keys.iter().map(|key| gate.check(key))).await) {
            match decision {
                Ok(decision) => assert!(decision.is_allowed() && key != "user:33", "{name} {key}"),
                Err(error) => {
                    assert!(error.is_corrupt_state() && key == "user:33", "{name} {key}: {error}");
                    assert_eq!(error.key(), Some(key.as_bytes()));
                }
            }
        }
    }
}

#[tokio::test]
async fn asks_to_many_gates_and_groups_of_them_share_a_batch() {
    let (server, limiter, _) = setting(Quota::fixed_window(1, HOUR)).await;
    let gates = quotas(40, HOUR).map(|(name, quota)| limiter.gate(name, quota));
    let alone = join_all((0..240).map(|at| gates[at % 6].check("key")));
    let groups = join_all((0..60).map(|_| limiter.check_all([gates[0].ask("both"), gates[4].ask("both")])));
    let before = calls(&server, "evalsha");
    let (alone, groups) = futures_util::join!(alone, groups);
    let sent = calls(&server, "evalsha") - before;
    assert!(sent <= ALONE as u64 + 18, "{sent} calls for 300 checks");
    assert!(alone.iter().all(|decision| decision.as_ref().unwrap().is_allowed()));
    // 40 of 60 groups pass both gates. Each decision reports the units left at its gate.
    for (asked, all) in groups.iter().enumerate() {
        let all = all.as_ref().unwrap();
        assert_eq!(all.is_allowed(), asked < 40, "{asked}");
        for decision in all.decisions() {
            assert_eq!(decision.remaining(), 39_u64.saturating_sub(asked as u64), "{asked}: {decision:?}");
            assert_eq!(decision.is_allowed(), asked < 40, "{asked}: {decision:?}");
        }
    }
}

#[tokio::test]
async fn an_ask_with_a_deadline_of_its_own_is_answered_by_then() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(1_000, HOUR)).await;
    let _paused = Paused::new(&server);
    let mut waiting: Vec<_> = (0..10).map(|_| asking(&gate, "key")).collect();
    waiting.iter_mut().for_each(poll_once);
    let start = Instant::now();
    let error = gate.ask("key").deadline(Duration::from_millis(20)).check().await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!((Duration::from_millis(20)..PATIENCE / 2).contains(&start.elapsed()));
    // The deadline is longer than the limiter's: the check is sent in a separate call and not cut short.
    let long = gate.ask("key").deadline(3 * PATIENCE);
    let mut long: Asking<'_> = Box::pin(long.check());
    poll_once(&mut long);
    drop(_paused);
    assert!(long.await.unwrap().is_allowed());
}

#[test]
fn callers_of_a_runtime_that_ends_are_told_and_others_go_on() {
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deny_cache(Duration::ZERO).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(10_000, HOUR));
    for _ in 0..20 {
        let runtime =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        let (ends, stays) = (runtime(), runtime());
        // The connection may belong to a runtime of the round before, which still ends.
        ends.block_on(soon("Redis answers", async || limiter.ready().await.is_ok()));
        for _ in 0..50 {
            let gate = gate.clone();
            ends.spawn(async move { while gate.check("key").await.is_ok() {} });
        }
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let gate = gate.clone();
                stays.spawn(async move {
                    for _ in 0..20 {
                        if let Err(error) = gate.check("key").await {
                            assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
                        }
                    }
                })
            })
            .collect();
        ends.shutdown_background();
        stays.block_on(join_all(tasks)).into_iter().for_each(|ended| ended.unwrap());
        let decision = stays.block_on(async {
            // The connection may have belonged to the runtime that ended.
            let first = gate.check("key").await;
            if first.is_ok() { first } else { gate.check("key").await }
        });
        let _ = decision.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_is_told_when_his_time_is_up() {
    const DEADLINE: Duration = Duration::from_millis(100);
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deadline(DEADLINE).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, HOUR));
    limiter.ready().await.unwrap();
    let paused = Paused::new(&server);
    let mut asked = Vec::new();
    for number in 0..300 {
        let gate = gate.clone();
        // Includes equal checks, and more than one batch.
        let key = format!("user:{}", number % 200);
        asked.push(tokio::spawn(async move {
            let start = Instant::now();
            let error = gate.check(key).await.unwrap_err();
            (error, start.elapsed())
        }));
        if number % 30 == 0 {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    for task in asked {
        let (error, took) = task.await.unwrap();
        assert!(error.is_timeout(), "{error}");
        assert!((DEADLINE..PATIENCE).contains(&took), "{took:?}");
    }
    drop(paused);
    soon("Redis decides again", async || gate.check("later").await.is_ok()).await;
}

#[test]
fn a_runtime_that_stands_still_holds_up_none_but_its_own() {
    let server = Server::process(&[]).unwrap();
    let stands = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for runs in [
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
    ] {
        let limiter = builder(server.url()).deadline(Duration::from_millis(200)).build().unwrap();
        let gate = limiter.gate("gate", Quota::fixed_window(100_000, HOUR));
        // The connection belongs to the runtime that is polled.
        runs.block_on(limiter.ready()).unwrap();
        let left = stands.block_on(async {
            let asked: Vec<_> = (0..50)
                .map(|_| {
                    let gate = gate.clone();
                    tokio::spawn(async move { gate.check("key").await })
                })
                .collect();
            // The dispatchers of this runtime have started, and are not polled from here on.
            tokio::task::yield_now().await;
            asked
        });
        for _ in 0..3 {
            let start = Instant::now();
            let decisions = runs.block_on(join_all((0..100).map(|_| gate.check("key"))));
            assert!(start.elapsed() < PATIENCE);
            // Checks that the blocked runtime had dequeued are lost and time out.
            assert!(
                decisions.iter().all(|it| it.as_ref().map_or_else(Error::is_timeout, |it| it.is_allowed()))
            );
        }
        // A lone caller behind a dispatcher that is not late yet times out. Later callers do not.
        let is_decided = async || gate.check("key").await.is_ok_and(|it| it.is_allowed());
        runs.block_on(soon("decided while the other runtime is blocked", is_decided));
        stands.block_on(join_all(left)).into_iter().for_each(|it| drop(it.unwrap()));
    }
}

/// More threads than shards, all busy, so that there are enough dispatchers.
#[test]
fn a_thread_that_stands_still_takes_along_what_it_has_and_no_more_of_its_line() {
    const TASKS: usize = 16;
    let server = Server::process(&[]).unwrap();
    let current_thread = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // The connection belongs to a runtime that is polled.
    let runs = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let limiter = builder(server.url()).deadline(Duration::from_millis(400)).breaker(false).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1 << 40, HOUR));
    runs.block_on(limiter.ready()).unwrap();

    let start = Instant::now();
    let ask = async |gate: Gate| {
        let (mut decided, mut late) = (0, 0);
        while start.elapsed() < Duration::from_secs(3) {
            match gate.check("key").await {
                Ok(decision) => decided += usize::from(decision.is_allowed()),
                Err(error) => late += usize::from(error.is_timeout()),
            }
        }
        (decided, late)
    };
    let others: Vec<(usize, usize)> = thread::scope(|scope| {
        scope.spawn(|| {
            current_thread().block_on(async {
                let asking = join_all((0..TASKS).map(|_| ask(gate.clone())));
                let stands = async {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    thread::sleep(Duration::from_secs(2));
                };
                join(asking, stands).await;
            });
        });
        let ask_all = || current_thread().block_on(join_all((0..TASKS).map(|_| ask(gate.clone()))));
        let others: Vec<_> = (0..8).map(|_| scope.spawn(ask_all)).collect();
        others.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let late: usize = others.iter().map(|(_, late)| late).sum();
    assert!(late <= 3 * TASKS, "{late} were late");
    assert!(others.iter().all(|(decided, _)| *decided > 100), "{others:?}");
}

/// The queue is bounded: waiting callers hold no memory besides their own futures.
#[tokio::test]
async fn beyond_the_most_that_wait_callers_wait_for_room() {
    // A thread that drives a runtime has one shard, which holds 16,384 callers.
    const ASKED: usize = 20_000;
    let (server, _limiter, gate) = setting(Quota::fixed_window(ASKED as u64 - 10, HOUR)).await;
    let paused = Paused::new(&server);
    let mut asked: Vec<_> = (0..ASKED).map(|_| asking(&gate, "key")).collect();
    asked.iter_mut().for_each(poll_once);
    drop(paused);
    let decisions = join_all(asked).await;
    let allowed = decisions.iter().filter(|decision| decision.as_ref().unwrap().is_allowed()).count();
    assert_eq!(allowed, ASKED - 10);
}

/// A check of cost 0 in a group with a paid one is not affected by the checks before it in the batch.
#[tokio::test]
async fn who_peeks_beside_a_check_is_told_the_same_in_a_batch() {
    let (_server, limiter, _) = setting(Quota::fixed_window(1, HOUR)).await;
    let [pays, looks] = [("pays", 100), ("looks", 1)]
        .map(|(name, limit)| limiter.gate(name, Quota::fixed_window(limit, HOUR)));
    let asked = (0..40).map(|_| limiter.check_all([pays.ask("key"), looks.ask("key").cost(0)]));
    for all in join_all(asked).await {
        let all = all.unwrap();
        assert!(all.is_allowed() && all.decisions().iter().all(Decision::is_allowed), "{all:?}");
    }
}

#[tokio::test]
async fn a_deadline_may_be_as_long_as_durations_can_be() {
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deadline(Duration::MAX).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, HOUR));
    for decision in join_all((0..100).map(|_| gate.check("key"))).await {
        assert!(decision.unwrap().is_allowed());
    }
}
