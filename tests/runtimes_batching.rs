//! Batching if the runtime of a dispatcher is not polled, is blocked or ends.
//!
//! The connection lives on a runtime that is polled all the time. Redis decides each check of a polled
//! runtime within its deadline.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tidegate::{Ban, Decision, Error, Gate, Limiter, Quota, Source};
use tidegate_testkit::Server;
use tokio::runtime::{Builder, Runtime};

use crate::support::fixture::{HOUR, Paused, builder};
use crate::support::stalls::{LostTime, extended, process_id};

/// Dispatchers that are not polled are replaced within half of it, and within one second. The remaining time is
/// for a busy machine.
const DEADLINE: Duration = Duration::from_secs(4);
/// The time in which each check is decided, but for stalls.
const MAX_TIME: Duration = Duration::from_secs(2);
const CALLERS: usize = 60;
const THREADS: usize = 12;
/// Callers that send their own check before others enqueue.
const DIRECT_SENDS: usize = 4;

type Checking<'a> = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send + 'a>>;

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

struct Setting {
    server: Server,
    /// Drives the connection.
    polled: Runtime,
    limiter: Limiter,
    gate: Gate,
    checks: Checks,
    lost: LostTime,
}

/// Makes checks that Redis must decide, and records the longest.
#[derive(Clone)]
struct Checks {
    gate: Gate,
    longest_us: Arc<AtomicU64>,
}

impl Checks {
    async fn check(&self, key: &str) {
        let start = Instant::now();
        assert_right(self.gate.check(key).await);
        self.record(start);
    }

    fn record(&self, start: Instant) {
        self.longest_us.fetch_max(u64::try_from(start.elapsed().as_micros()).unwrap(), Ordering::SeqCst);
    }
}

impl Setting {
    #[track_caller]
    fn assert_in_time(self) {
        let longest = Duration::from_micros(self.checks.longest_us.load(Ordering::SeqCst));
        let stalled = self.lost.end();
        assert!(longest < extended(MAX_TIME, stalled), "a check took {longest:?}, stalled for {stalled:?}");
    }
}

fn setting() -> Setting {
    let server = Server::process(&[]).unwrap();
    let polled = multi_thread();
    let limiter = builder(server.url()).deadline(DEADLINE).deny_cache(Duration::ZERO).build().unwrap();
    polled.block_on(limiter.ready()).unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1 << 40, HOUR));
    let checks = Checks { gate: gate.clone(), longest_us: Arc::default() };
    let lost = LostTime::start(&["self".to_owned(), process_id(&server)]);
    Setting { server, polled, limiter, gate, checks, lost }
}

#[track_caller]
fn assert_right(decided: Result<Decision, Error>) {
    let decision = decided.unwrap();
    assert!(decision.is_allowed() && decision.source() == Source::Redis, "{decision}");
}

/// Starts one check and lets it enqueue.
fn start(gate: &Gate, key: String) -> Checking<'_> {
    let mut checking: Checking<'_> = Box::pin(async move { gate.check(&key).await });
    assert!(checking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    checking
}

fn start_many<'a>(gate: &'a Gate, name: &str, count: usize) -> Vec<Checking<'a>> {
    (0..count).map(|number| start(gate, format!("{name}:{number}"))).collect()
}

/// Several threads each run checks on a series of new runtimes.
fn check_on_new_runtimes(runtime: fn() -> Runtime) {
    let setting = setting();
    let checks = &setting.checks;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || (0..40).for_each(|_| check_together(&runtime(), checks)));
        }
    });
    setting.assert_in_time();
}

fn check_together(runtime: &Runtime, checks: &Checks) {
    let keys: Vec<String> = (0..CALLERS / THREADS).map(|number| format!("user:{number}")).collect();
    runtime.block_on(join_all(keys.iter().map(|key| checks.check(key))));
}

#[test]
fn checks_are_decided_where_runtimes_are_only_polled_inside_block_on() {
    let setting = setting();
    let checks = &setting.checks;
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                let runtime = current_thread();
                for round in 0..40 {
                    check_together(&runtime, checks);
                    // The runtime is not polled meanwhile. The pause differs between threads.
                    thread::sleep(Duration::from_millis(((number + round) % 8) as u64 * 5));
                }
            });
        }
    });
    setting.assert_in_time();
}

#[test]
fn checks_are_decided_where_each_call_has_its_own_current_thread_runtime() {
    check_on_new_runtimes(current_thread);
}

#[test]
fn checks_are_decided_where_each_call_has_its_own_multi_thread_runtime() {
    check_on_new_runtimes(multi_thread);
}

/// Other runtimes end while their callers wait.
#[test]
fn checks_are_decided_where_other_runtimes_end_under_load() {
    let setting = setting();
    let Setting { gate, polled, checks, .. } = &setting;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let ends = multi_thread();
                for _ in 0..CALLERS {
                    let gate = gate.clone();
                    ends.spawn(async move { while gate.check("key").await.is_ok() {} });
                }
                ends.shutdown_background();
            }
        });
        let callers = (0..CALLERS).map(|number| {
            let checks = checks.clone();
            polled.spawn(async move {
                for _ in 0..100 {
                    checks.check(&format!("user:{number}")).await;
                }
            })
        });
        let ended = polled.block_on(join_all(callers));
        is_over.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(Result::unwrap);
    });
    setting.assert_in_time();
}

/// The fate of a runtime whose dispatcher has checks of another runtime in flight.
enum Then {
    IsBlocked,
    Ends,
}

/// A dispatcher on one runtime takes the checks of another into its batch. More checks wait in the queue.
fn checks_of_a_living_runtime_are_decided_if_the_other(then: &Then) {
    let setting = setting();
    let decided = decided_if_the_other(then, &setting, &setting.gate);
    decided.into_iter().for_each(assert_right);
    setting.assert_in_time();
}

/// Returns the decisions on the checks of the living runtime.
fn decided_if_the_other(then: &Then, setting: &Setting, gate: &Gate) -> Vec<Result<Decision, Error>> {
    /// Too few for a second dispatcher.
    const FEW: usize = 10;
    let Setting { server, polled, checks, .. } = setting;
    let other = multi_thread();
    let paused = Paused::new(server);
    let (report, reached) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let others_gate = gate.clone();
    other.spawn(async move {
        let own = start_many(&others_gate, "own", DIRECT_SENDS + FEW);
        // This task occupies the only worker, so the dispatcher that it started has not run yet.
        report.send("enqueued").unwrap();
        released.recv().unwrap();
        tokio::task::yield_now().await;
        report.send("in flight").unwrap();
        let _ = released.recv();
        drop(own);
    });
    assert_eq!(reached.recv().unwrap(), "enqueued");
    let dequeued = polled.block_on(async { start_many(gate, "dequeued", FEW) });
    release.send(()).unwrap();
    assert_eq!(reached.recv().unwrap(), "in flight");
    let behind = polled.block_on(async { start_many(gate, "behind", FEW) });
    let release = match then {
        Then::IsBlocked => Some(release),
        Then::Ends => {
            drop(release);
            other.shutdown_timeout(DEADLINE);
            None
        }
    };
    drop(paused);
    let resumed = Instant::now();
    let decided = polled.block_on(join_all(dequeued.into_iter().chain(behind)));
    checks.record(resumed);
    drop(release);
    decided
}

#[test]
fn checks_in_flight_and_behind_are_decided_if_the_runtime_of_their_dispatcher_is_blocked() {
    checks_of_a_living_runtime_are_decided_if_the_other(&Then::IsBlocked);
}

#[test]
fn checks_in_flight_and_behind_are_decided_if_the_runtime_of_their_dispatcher_ends() {
    checks_of_a_living_runtime_are_decided_if_the_other(&Then::Ends);
}

/// The second run of an admitted check is denied by the charge of the first.
#[test]
fn checks_that_another_runtime_sends_again_count_no_denials() {
    let setting = setting();
    let ban = Ban::after(1, HOUR).lasting(2 * HOUR);
    let gate = setting.limiter.gate("banned", Quota::fixed_window(1, HOUR)).ban(ban);
    for decision in decided_if_the_other(&Then::Ends, &setting, &gate) {
        let decision = decision.unwrap();
        assert!(decision.retry_after() <= HOUR, "{decision}");
    }
}

/// 60 callers run on two multi-thread runtimes, one of which is blocked repeatedly.
#[test]
fn checks_are_decided_where_another_multi_thread_runtime_is_blocked_under_load() {
    let setting = setting();
    let Setting { gate, polled, checks, .. } = &setting;
    for _ in 0..5 {
        let blocked = multi_thread();
        for number in 0..CALLERS / 2 {
            let gate = gate.clone();
            blocked.spawn(async move { while gate.check(format!("own:{number}")).await.is_ok() {} });
        }
        let callers: Vec<_> = (0..CALLERS / 2)
            .map(|number| {
                let checks = checks.clone();
                polled.spawn(async move {
                    for _ in 0..200 {
                        checks.check(&format!("user:{number}")).await;
                    }
                })
            })
            .collect();
        let (release, released) = mpsc::channel::<()>();
        blocked.spawn(async move { released.recv() });
        polled.block_on(join_all(callers)).into_iter().for_each(Result::unwrap);
        drop(release);
        blocked.shutdown_background();
    }
    setting.assert_in_time();
}
