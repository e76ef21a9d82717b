//! Decisions are correct again within two seconds after a disturbance, on every kind of runtime that callers
//! use. The background work of a limiter must not depend on those runtimes.

use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::{Builder, Control, Decision, Gate, Lease, Limiter, OnFailure, Quota, Rate, Source, Switch};
use tidegate_testkit::Server;
use tokio::runtime::{self, Runtime};

use crate::support::fixture::{HOUR, builder_as_is, namespace};
use crate::support::stalls::{LostTime, extended, process_id};

/// The time after the end of a disturbance from which all decisions must be correct.
const RECOVERY: Duration = Duration::from_secs(2);
/// The time between two calls, in which a current-thread runtime is not polled.
const PAUSE: Duration = Duration::from_millis(10);
/// The deadline of the callers' checks: short enough to detect a blocked connection twice within the recovery
/// time, long enough for a busy machine.
const DEADLINE: Duration = Duration::from_millis(400);
/// Long enough that a test misses it only if it hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// A stall of this length may use up the deadline of a check.
const LONG_STALL: Duration = Duration::from_millis(100);

/// The runtime on which callers run their checks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// One current-thread runtime, polled only inside `block_on`.
    BlockOn,
    /// A current-thread runtime for each call.
    PerCall,
    /// A multi-thread runtime for each call.
    PerCallMultiThread,
    /// One multi-thread runtime.
    MultiThread,
    /// The first calls run on a runtime whose only worker is then blocked, later ones on another.
    Blocked,
    /// The first calls run on a runtime that is then dropped, later ones on another.
    Dropped,
}

const KINDS: [Kind; 6] =
    [Kind::BlockOn, Kind::PerCall, Kind::PerCallMultiThread, Kind::MultiThread, Kind::Blocked, Kind::Dropped];

/// Runs a scenario on every kind of runtime in parallel, because it mostly waits.
fn on_every_kind(scenario: impl Fn(Kind) + Sync) {
    thread::scope(|scope| {
        let scenario = &scenario;
        for kind in KINDS {
            scope.spawn(move || scenario(kind));
        }
    });
}

struct Callers {
    kind: Kind,
    runtime: Option<Runtime>,
    blocked: Option<(Runtime, mpsc::Sender<()>)>,
}

impl Callers {
    fn new(kind: Kind) -> Self {
        let runtime = match kind {
            Kind::PerCall | Kind::PerCallMultiThread => None,
            Kind::BlockOn => Some(current_thread()),
            Kind::MultiThread | Kind::Blocked | Kind::Dropped => Some(multi_thread()),
        };
        Self { kind, runtime, blocked: None }
    }

    /// Blocks or drops the tasks that were spawned so far, if this kind of runtime does so.
    fn disturb(&mut self) {
        match self.kind {
            Kind::Blocked => {
                let runtime = self.runtime.replace(multi_thread()).unwrap();
                let (release, released) = mpsc::channel::<()>();
                let (block, is_blocked) = mpsc::channel();
                runtime.spawn(async move {
                    block.send(()).unwrap();
                    let _ = released.recv();
                });
                is_blocked.recv().unwrap();
                self.blocked = Some((runtime, release));
            }
            Kind::Dropped => drop(self.runtime.replace(multi_thread())),
            _ => {}
        }
    }

    fn call<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        match self.kind {
            Kind::PerCall => current_thread().block_on(future),
            Kind::PerCallMultiThread => multi_thread().block_on(future),
            _ => self.runtime.as_ref().unwrap().block_on(future),
        }
    }

    /// Asserts that Redis, or another source, decides 20 checks. Repeats that if the system stalled meanwhile.
    fn assert_all_from(&self, source: Source, gate: &Gate, server: &Server) {
        let processes = ["self".to_owned(), process_id(server)];
        let start = Instant::now();
        loop {
            let lost = LostTime::start(&processes);
            let mut wrong = None;
            for nth in 0..20 {
                thread::sleep(PAUSE);
                let decided = self.call(gate.check("other"));
                if !decided.as_ref().is_ok_and(|decision| decision.source() == source) {
                    wrong = Some((nth, decided));
                    break;
                }
            }
            let stalled = lost.end();
            let Some((nth, decided)) = wrong else { return };
            let may_repeat = stalled >= LONG_STALL && start.elapsed() < PATIENCE;
            assert!(may_repeat, "{:?}: check {nth}, stalled for {stalled:?}: {decided:?}", self.kind);
        }
    }

    fn check(&self, gate: &Gate, key: &str) -> Decision {
        thread::sleep(PAUSE);
        self.call(gate.check(key)).unwrap()
    }

    /// Repeats a check until the condition holds.
    fn until(&self, condition: &str, gate: &Gate, is_so: impl Fn(&Decision) -> bool) {
        let start = Instant::now();
        loop {
            thread::sleep(PAUSE);
            let decided = self.call(gate.check("other"));
            if decided.as_ref().is_ok_and(&is_so) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{:?}: not in time: {condition}: {decided:?}", self.kind);
        }
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        if let Some((runtime, release)) = self.blocked.take() {
            drop(release);
            runtime.shutdown_background();
        }
    }
}

fn current_thread() -> Runtime {
    runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Two limiters on one namespace: one for the callers, one on a healthy runtime of its own.
struct Scene {
    server: Server,
    callers: Callers,
    limiter: Limiter,
    healthy: Runtime,
    witness: Limiter,
}

impl Scene {
    fn new(kind: Kind) -> Self {
        Self::with(kind, |builder| builder)
    }

    fn with(kind: Kind, settings: impl Fn(Builder) -> Builder) -> Self {
        let server = Server::process(&[]).unwrap();
        let namespace = namespace();
        let limiter = |deadline| {
            let builder = builder_as_is(server.url()).namespace(&namespace);
            settings(builder.deadline(deadline).deny_cache(Duration::ZERO)).build().unwrap()
        };
        let (limiter, witness) = (limiter(DEADLINE), limiter(PATIENCE));
        let healthy = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { limiter, witness, server, callers: Callers::new(kind), healthy }
    }

    fn gate(&self) -> Gate {
        self.limiter.gate("gate", quota())
    }

    /// Waits until Redis decides, then disturbs the runtime.
    fn begin(&mut self, gate: &Gate) {
        self.callers.until("Redis decides", gate, |decision| decision.source() == Source::Redis);
        self.callers.disturb();
    }

    fn outage(&mut self, gate: &Gate) {
        self.server.kill();
        self.callers.until("Redis is away", gate, |decision| decision.source() == Source::Local);
        // Enough checks to open the circuit breaker.
        for _ in 0..10 {
            let _ = self.callers.check(gate, "other");
        }
    }

    /// Asserts that all decisions made later than [`RECOVERY`] from now have this source.
    fn assert_all_soon_from(&self, source: Source, gate: &Gate) {
        let start = Instant::now();
        while start.elapsed() < RECOVERY {
            let _ = self.callers.check(gate, "other");
        }
        self.callers.assert_all_from(source, gate, &self.server);
    }

    fn control(&self) -> Control {
        self.witness.control()
    }

    fn remaining(&self, key: &str) -> u64 {
        let gate = self.witness.gate("gate", quota());
        self.healthy.block_on(gate.peek(key)).unwrap().remaining()
    }

    /// Waits until the condition holds. It runs on the healthy runtime. Stalls of the system do not count.
    fn soon(&self, condition: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
        let lost = LostTime::start(&["self".to_owned(), process_id(&self.server)]);
        let start = Instant::now();
        let holds = loop {
            if is_so() {
                break true;
            }
            if start.elapsed() >= within.max(PATIENCE) {
                break false;
            }
            thread::sleep(PAUSE);
        };
        let (took, within) = (start.elapsed(), extended(within, lost.end()));
        assert!(
            holds && took < within,
            "{:?}: not within {within:?}: {condition}; holds after {took:?}: {holds}",
            self.callers.kind
        );
    }
}

const LIMIT: u64 = 1_000_000;

fn quota() -> Quota {
    Quota::fixed_window(LIMIT, HOUR)
}

#[test]
fn checks_return_to_redis_after_an_outage() {
    on_every_kind(|kind| {
        let mut scene = Scene::new(kind);
        let gate = scene.gate();
        scene.begin(&gate);
        scene.outage(&gate);
        scene.server.restart().unwrap();
        scene.assert_all_soon_from(Source::Redis, &gate);
    });
}

#[test]
fn switch_and_its_end_are_observed() {
    on_every_kind(|kind| {
        let mut scene = Scene::new(kind);
        let gate = scene.gate();
        scene.begin(&gate);
        scene.healthy.block_on(scene.control().switch("gate", Switch::Closed, None)).unwrap();
        scene.assert_all_soon_from(Source::Switch, &gate);
        scene.healthy.block_on(scene.control().end_switch("gate")).unwrap();
        scene.assert_all_soon_from(Source::Redis, &gate);
    });
}

#[test]
fn units_of_the_fallback_are_charged_without_another_call() {
    on_every_kind(|kind| {
        let mut scene = Scene::new(kind);
        let gate = scene.gate();
        scene.begin(&gate);
        scene.outage(&gate);
        for _ in 0..7 {
            assert_eq!(scene.callers.check(&gate, "key").source(), Source::Local);
        }
        scene.server.restart().unwrap();
        scene.soon("the units are charged", RECOVERY + Duration::from_secs(1), || {
            scene.remaining("key") == LIMIT - 7
        });
        assert_eq!(scene.remaining("key"), LIMIT - 7);
    });
}

#[test]
fn heartbeats_go_on_without_another_call() {
    on_every_kind(|kind| {
        let mut scene = Scene::new(kind);
        let gate = scene.gate();
        scene.begin(&gate);
        // The witness has not been used, so it has no heartbeat of its own.
        let last_heartbeat = || {
            let keys = scene.server.cli(&["KEYS", "*:instances"]).unwrap();
            let key = keys.trim().trim_start_matches("1) ").trim_matches('"').to_owned();
            scene.server.cli(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]).unwrap()
        };
        for _ in 0..2 {
            let before = last_heartbeat();
            scene.soon("a heartbeat", Duration::from_secs(7), || last_heartbeat() != before);
        }
    });
}

#[test]
fn leases_are_refilled_and_returned() {
    on_every_kind(|kind| {
        let mut scene = Scene::new(kind);
        let hold = Duration::from_millis(300);
        let gate = scene.gate().leased(Lease::new().max_units(50).hold(hold));
        let is_leased = |decision: &Decision| decision.source() == Source::Lease;
        scene.callers.until("a lease", &gate, is_leased);
        scene.callers.disturb();
        let start = Instant::now();
        while start.elapsed() < RECOVERY {
            let _ = scene.callers.call(gate.check("other"));
            thread::sleep(PAUSE);
        }
        // More checks than one lease covers, so the lease is refilled meanwhile.
        let leased = (0..100).filter(|_| is_leased(&scene.callers.check(&gate, "other"))).count();
        assert!(leased > 60, "{kind:?}: {leased} of 100 from a lease");
        // A lease is returned by one call without a retry, which may miss its deadline on a busy machine.
        scene.soon("each unit is spent, returned or stranded", RECOVERY, || {
            let stats = gate.lease_stats();
            stats.held == 0 && stats.taken == stats.spent + stats.returned + stats.stranded
        });
    });
}

#[test]
fn checks_return_to_a_redis_that_was_silent() {
    on_every_kind(|kind| {
        let mut scene = Scene::with(kind, |builder| builder.on_failure(OnFailure::Error));
        let gate = scene.gate();
        scene.begin(&gate);
        let paused = scene.server.pause().unwrap();
        // The circuit breaker opens after five failures.
        for _ in 0..8 {
            thread::sleep(PAUSE);
            assert!(scene.callers.call(gate.check("other")).unwrap_err().is_unavailable());
        }
        drop(paused);
        let start = Instant::now();
        while start.elapsed() < RECOVERY {
            thread::sleep(PAUSE);
            let _ = scene.callers.call(gate.check("other"));
        }
        scene.callers.assert_all_from(Source::Redis, &gate, &scene.server);
    });
}

#[test]
fn connection_attempt_on_an_unpolled_runtime_is_replaced() {
    let server = Server::process(&[]).unwrap();
    let builder = builder_as_is(server.url()).deadline(DEADLINE);
    let limiter = builder.on_failure(OnFailure::Error).breaker(false).build().unwrap();
    let gate = limiter.gate("gate", quota());
    let idle = current_thread();
    // Polled once: the connection attempt is spawned on this runtime, which is not polled again.
    idle.block_on(async {
        let mut check = std::pin::pin!(gate.check("key"));
        assert!(futures_util::poll!(check.as_mut()).is_pending());
    });
    let other = multi_thread();
    let start = Instant::now();
    while other.block_on(gate.check("key")).is_err() {
        assert!(start.elapsed() < RECOVERY, "no other attempt is made");
    }
    let lost = LostTime::start(&["self".to_owned(), process_id(&server)]);
    let is_by_redis = |_: &usize| {
        let decided = other.block_on(gate.check("key"));
        decided.is_ok_and(|decision| decision.source() == Source::Redis)
    };
    let by_redis = (0..60).filter(is_by_redis).count();
    let stalled = lost.end();
    // Stalls may use up the deadlines of some checks.
    let min = if stalled >= LONG_STALL { 55 } else { 60 };
    assert!(by_redis >= min, "{by_redis} of 60 checks, stalled for {stalled:?}");
}

/// Returns whether a thread without a runtime admits a check at once. Fails if the check panics.
fn admits_without_a_runtime(limiter: Limiter) -> thread::Result<bool> {
    let check = move || {
        let gate = limiter.gate("gate", Quota::token_bucket(1, Rate::per_minute(1)));
        let checked = pin!(gate.check("x")).poll(&mut Context::from_waker(Waker::noop()));
        matches!(checked, Poll::Ready(Ok(decision)) if decision.is_allowed())
    };
    thread::spawn(check).join()
}

#[test]
fn without_a_runtime_memory_decides_and_redis_panics() {
    assert!(admits_without_a_runtime(Limiter::in_memory()).unwrap());
    let server = tidegate_testkit::shared();
    assert!(admits_without_a_runtime(builder_as_is(server.url()).build().unwrap()).is_err());
}
