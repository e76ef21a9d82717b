//! Concurrent checks share calls to Redis, and callers cannot observe it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use tidegate::{Decision, Error, Gate, Limiter, ManualClock, Quota};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, PATIENCE, Paused, builder, calls, quotas, soon};
use crate::support::stalls::{LostTime, process_id};

/// Number of callers that send their own check before others enqueue.
const DIRECT_SENDS: usize = 4;

type Checking<'a> = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send + 'a>>;

/// Starts a separate server, so that its calls can be counted. With a manual clock, the connection takes
/// turns with the callers of a current-thread runtime, so that the counts do not depend on the machine.
async fn setting(quota: Quota) -> (Server, Limiter, Gate) {
    let server = Server::process(&[]).unwrap();
    let builder = builder(server.url()).manual_clock(ManualClock::new()).publish_figures(false);
    let limiter = builder.deny_cache(Duration::ZERO).build().unwrap();
    let gate = limiter.gate("gate", quota);
    // Loads the script, so that no later call is sent twice.
    assert!(gate.check("first").await.unwrap().is_allowed());
    (server, limiter, gate)
}

fn start<'a>(gate: &'a Gate, key: &'a str) -> Checking<'a> {
    Box::pin(gate.check(key))
}

fn poll_once(check: &mut Checking<'_>) {
    let polled = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending));
}

fn used(server: &Server, gate: &Gate, key: &str) -> u64 {
    let used = server.cli(&["GET", &gate.redis_key(key).unwrap()]).unwrap();
    used.trim_matches('"').parse().unwrap()
}

#[tokio::test]
async fn sequential_checks_are_one_call_each() {
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
async fn callers_decided_in_one_batch_share_the_next_batch() {
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
async fn checks_made_while_calls_are_in_flight_share_calls() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(1, HOUR)).await;
    let keys: Vec<String> = (0..512).map(|number| format!("user:{number}")).collect();
    let before = calls(&server, "evalsha");
    let decisions = join_all(keys.iter().map(|key| gate.check(key))).await;
    assert!(decisions.iter().all(|decision| decision.as_ref().is_ok_and(Decision::is_allowed)));
    let sent = calls(&server, "evalsha") - before;
    // A call has at most 128 keys, so that it does not block Redis for long.
    assert!((4..=DIRECT_SENDS as u64 + 6).contains(&sent), "{sent} calls for 512 checks");
}

#[tokio::test]
async fn equal_checks_are_merged_and_decided_in_call_order() {
    let (server, _limiter, gate) =
        setting(Quota::token_bucket(200, tidegate::Rate::new(200, 24 * HOUR))).await;
    let before = calls(&server, "evalsha");
    let decisions = join_all((0..300).map(|_| gate.check("hot"))).await;
    let sent = calls(&server, "evalsha") - before;
    assert!(sent <= DIRECT_SENDS as u64 + 4, "{sent} calls for 300 equal checks");
    for (index, decision) in decisions.into_iter().enumerate() {
        let decision = decision.unwrap();
        assert_eq!(decision.is_allowed(), index < 200, "{index}");
        assert_eq!(decision.remaining(), 199_u64.saturating_sub(index as u64), "{index}");
        assert_eq!(decision.retry_after().is_zero(), index < 199, "{index}: {decision}");
    }
}

/// First in, first out: each check waits for those before it.
#[tokio::test]
async fn merged_leaky_bucket_checks_get_distinct_delays() {
    let quota = Quota::leaky_bucket(300, tidegate::Rate::per_hour(1));
    let (_server, _limiter, gate) = setting(quota).await;
    let decisions = join_all((0..300).map(|_| gate.check("hot"))).await;
    for (index, decision) in decisions.into_iter().enumerate() {
        let delay = decision.unwrap().delay();
        let turn = HOUR * u32::try_from(index).unwrap();
        assert!(delay <= turn && turn - delay < Duration::from_secs(60), "{index}: {delay:?}");
    }
}

#[tokio::test]
async fn check_cancelled_before_dispatch_is_not_charged() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(1_000, HOUR)).await;
    let mut checks: Vec<_> = (0..100).map(|_| start(&gate, "key")).collect();
    // No other task runs in between, so only direct sends have been sent.
    checks.iter_mut().for_each(poll_once);
    let last = checks.split_off(90);
    let cancelled = checks.split_off(10);
    drop(cancelled);
    for decision in join_all(checks.into_iter().chain(last)).await {
        assert!(decision.unwrap().is_allowed());
    }
    assert_eq!(used(&server, &gate, "key"), 20);
}

#[tokio::test]
async fn units_of_checks_cancelled_in_flight_go_to_the_remaining_callers() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(DIRECT_SENDS as u64 + 10, HOUR)).await;
    let paused = Paused::new(&server);
    let mut checks: Vec<_> = (0..DIRECT_SENDS + 20).map(|_| start(&gate, "key")).collect();
    checks.iter_mut().for_each(poll_once);
    // Some callers sent their own check. The others are sent in one call.
    soon("all checks have been sent", async || {
        server.cli(&["INFO", "clients"]).unwrap().contains("blocked_clients:1")
    })
    .await;
    let mut queued = checks.split_off(DIRECT_SENDS);
    drop(queued.drain(..5));
    drop(paused);
    for decision in join_all(checks).await {
        assert!(decision.unwrap().is_allowed());
    }
    let decisions = join_all(queued).await;
    let allowed: Vec<bool> =
        decisions.iter().map(|decision| decision.as_ref().unwrap().is_allowed()).collect();
    assert_eq!(allowed, [[true; 10].as_slice(), &[false; 5]].concat());
    assert_eq!(used(&server, &gate, "key"), DIRECT_SENDS as u64 + 10);
}

#[tokio::test]
async fn unpolled_caller_does_not_delay_others() {
    let (_server, _limiter, gate) = setting(Quota::fixed_window(1_000, HOUR)).await;
    let mut idle: Vec<_> = (0..10).map(|_| start(&gate, "key")).collect();
    idle.iter_mut().for_each(poll_once);
    for decision in join_all((0..100).map(|_| gate.check("key"))).await {
        assert!(decision.unwrap().is_allowed());
    }
    for decision in join_all(idle).await {
        assert!(decision.unwrap().is_allowed());
    }
}

#[tokio::test]
async fn corrupt_key_in_a_batch_fails_alone() {
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
async fn checks_of_several_gates_and_groups_share_a_batch() {
    let (server, limiter, _) = setting(Quota::fixed_window(1, HOUR)).await;
    let gates = quotas(40, HOUR).map(|(name, quota)| limiter.gate(name, quota));
    let single = join_all((0..240).map(|index| gates[index % 6].check("key")));
    let groups = join_all((0..60).map(|_| limiter.check_all([gates[0].key("both"), gates[4].key("both")])));
    let before = calls(&server, "evalsha");
    let (single, groups) = futures_util::join!(single, groups);
    let sent = calls(&server, "evalsha") - before;
    assert!(sent <= DIRECT_SENDS as u64 + 18, "{sent} calls for 300 checks");
    assert!(single.iter().all(|decision| decision.as_ref().unwrap().is_allowed()));
    // 40 of 60 groups pass both gates. Each decision reports the units left at its gate.
    for (index, all) in groups.iter().enumerate() {
        let all = all.as_ref().unwrap();
        assert_eq!(all.is_allowed(), index < 40, "{index}");
        for decision in all.each_alone() {
            assert_eq!(decision.remaining(), 39_u64.saturating_sub(index as u64), "{index}: {decision:?}");
            assert_eq!(decision.is_allowed(), index < 40, "{index}: {decision:?}");
        }
    }
}

#[tokio::test]
async fn check_with_its_own_deadline_ends_by_that_deadline() {
    let (server, _limiter, gate) = setting(Quota::fixed_window(1_000, HOUR)).await;
    let _paused = Paused::new(&server);
    let mut waiting: Vec<_> = (0..10).map(|_| start(&gate, "key")).collect();
    waiting.iter_mut().for_each(poll_once);
    let start = Instant::now();
    let error = gate.key("key").deadline(Duration::from_millis(20)).check().await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!((Duration::from_millis(20)..PATIENCE / 2).contains(&start.elapsed()));
    // The deadline is longer than the limiter's: the check is sent in a separate call and not cut short.
    let long = gate.key("key").deadline(3 * PATIENCE);
    let mut long: Checking<'_> = Box::pin(long.check());
    poll_once(&mut long);
    drop(_paused);
    assert!(long.await.unwrap().is_allowed());
}

#[test]
fn runtime_that_ends_does_not_hang_callers_of_other_runtimes() {
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deny_cache(Duration::ZERO).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(10_000, HOUR));
    for _ in 0..20 {
        let runtime =
            || tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
        let (ends, stays) = (runtime(), runtime());
        // The connection may belong to a runtime of the previous round, which is still shutting down.
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
async fn waiting_checks_time_out_at_their_deadline() {
    const DEADLINE: Duration = Duration::from_millis(100);
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deadline(DEADLINE).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, HOUR));
    // Repeated, since a busy machine may exceed the short deadlines of these limiters.
    soon("Redis answers", async || limiter.ready().await.is_ok()).await;
    let paused = Paused::new(&server);
    let mut tasks = Vec::new();
    for number in 0..300 {
        let gate = gate.clone();
        // Includes equal checks, and more than one batch.
        let key = format!("user:{}", number % 200);
        tasks.push(tokio::spawn(async move {
            let start = Instant::now();
            let error = gate.check(key).await.unwrap_err();
            (error, start.elapsed())
        }));
        if number % 30 == 0 {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    for task in tasks {
        let (error, took) = task.await.unwrap();
        assert!(error.is_timeout(), "{error}");
        assert!((DEADLINE..PATIENCE).contains(&took), "{took:?}");
    }
    drop(paused);
    soon("Redis decides again", async || gate.check("later").await.is_ok()).await;
}

#[test]
fn blocked_runtime_delays_only_its_own_callers() {
    let server = Server::process(&[]).unwrap();
    let blocked = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for polled in [
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
    ] {
        let limiter = builder(server.url()).deadline(Duration::from_millis(200)).build().unwrap();
        let gate = limiter.gate("gate", Quota::fixed_window(100_000, HOUR));
        // The connection belongs to the runtime that is polled.
        polled.block_on(soon("Redis answers", async || limiter.ready().await.is_ok()));
        let lost = blocked.block_on(async {
            let checks: Vec<_> = (0..50)
                .map(|_| {
                    let gate = gate.clone();
                    tokio::spawn(async move { gate.check("key").await })
                })
                .collect();
            // The dispatchers of this runtime have started, and are not polled from here on.
            tokio::task::yield_now().await;
            checks
        });
        for _ in 0..3 {
            let start = Instant::now();
            let decisions = polled.block_on(join_all((0..100).map(|_| gate.check("key"))));
            assert!(start.elapsed() < PATIENCE);
            // Checks that the blocked runtime had dequeued are lost and time out.
            assert!(
                decisions.iter().all(|decision| {
                    decision.as_ref().map_or_else(Error::is_timeout, Decision::is_allowed)
                })
            );
        }
        // A lone caller behind a dispatcher that is not late yet times out. Later callers do not.
        let is_decided = async || gate.check("key").await.is_ok_and(|decision| decision.is_allowed());
        polled.block_on(soon("decided while the other runtime is blocked", is_decided));
        blocked.block_on(join_all(lost)).into_iter().for_each(|ended| drop(ended.unwrap()));
    }
}

/// More threads than shards, all busy, so that there are enough dispatchers.
#[test]
fn blocked_thread_times_out_only_the_checks_it_has_dequeued() {
    const TASKS: usize = 16;
    const DEADLINE: Duration = Duration::from_millis(400);
    let server = Server::process(&[]).unwrap();
    // The connection belongs to a runtime that is polled.
    let polled = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let limiter = builder(server.url()).deadline(DEADLINE).breaker(false).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1 << 40, HOUR));
    polled.block_on(soon("Redis answers", async || limiter.ready().await.is_ok()));

    let is_good = |others: &[(usize, usize)]| {
        let late: usize = others.iter().map(|(_, late)| late).sum();
        late <= 3 * TASKS && others.iter().all(|(decided, _)| *decided > 100)
    };
    let processes = ["self".to_owned(), process_id(&server)];
    for run in 1.. {
        let lost = LostTime::start(&processes);
        let others = run_beside_a_blocked_thread(&gate, TASKS);
        let stalled = lost.end();
        if is_good(&others) {
            break;
        }
        // Stalls may have used up the deadlines of many checks.
        let may_repeat = stalled >= DEADLINE / 2 && run < 4;
        assert!(
            may_repeat,
            "run {run}, stalled for {stalled:?}: decisions and timeouts of each task: {others:?}"
        );
    }
}

/// Runs tasks on nine threads, one of which is blocked meanwhile. Returns the numbers of decisions and of
/// timeouts for each task of the other threads.
fn run_beside_a_blocked_thread(gate: &Gate, tasks: usize) -> Vec<(usize, usize)> {
    let current_thread = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let start = Instant::now();
    let check = async |gate: Gate| {
        let (mut decided, mut late) = (0, 0);
        while start.elapsed() < Duration::from_secs(3) {
            match gate.check("key").await {
                Ok(decision) => decided += usize::from(decision.is_allowed()),
                Err(error) => late += usize::from(error.is_timeout()),
            }
        }
        (decided, late)
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            current_thread().block_on(async {
                let checks = join_all((0..tasks).map(|_| check(gate.clone())));
                let blocks = async {
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    thread::sleep(Duration::from_secs(2));
                };
                join(checks, blocks).await;
            });
        });
        let check_all = || current_thread().block_on(join_all((0..tasks).map(|_| check(gate.clone()))));
        let others: Vec<_> = (0..8).map(|_| scope.spawn(check_all)).collect();
        others.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// The queue is bounded: waiting callers hold no memory besides their own futures.
#[tokio::test]
async fn callers_beyond_the_queue_capacity_wait_for_room() {
    // A thread that drives a runtime has one shard, which holds 16,384 callers.
    const CALLERS: usize = 20_000;
    let (server, _limiter, gate) = setting(Quota::fixed_window(CALLERS as u64 - 10, HOUR)).await;
    let paused = Paused::new(&server);
    let mut checks: Vec<_> = (0..CALLERS).map(|_| start(&gate, "key")).collect();
    checks.iter_mut().for_each(poll_once);
    drop(paused);
    let decisions = join_all(checks).await;
    let allowed = decisions.iter().filter(|decision| decision.as_ref().unwrap().is_allowed()).count();
    assert_eq!(allowed, CALLERS - 10);
}

/// A check of cost 0 in a group with a paid one is not affected by the checks before it in the batch.
#[tokio::test]
async fn peek_grouped_with_a_check_gets_the_same_decision_in_a_batch() {
    let (_server, limiter, _) = setting(Quota::fixed_window(1, HOUR)).await;
    let [paid, free] = [("paid", 100), ("free", 1)]
        .map(|(name, limit)| limiter.gate(name, Quota::fixed_window(limit, HOUR)));
    let checks = (0..40).map(|_| limiter.check_all([paid.key("key"), free.key("key").cost(0)]));
    for all in join_all(checks).await {
        let all = all.unwrap();
        assert!(all.is_allowed() && all.each_alone().iter().all(Decision::is_allowed), "{all:?}");
    }
}

#[tokio::test]
async fn deadline_may_be_duration_max() {
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deadline(Duration::MAX).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000, HOUR));
    for decision in join_all((0..100).map(|_| gate.check("key"))).await {
        assert!(decision.unwrap().is_allowed());
    }
}
