//! Callers that wait for room in a full queue.

use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::{Decision, Error, Gate, Limiter, Quota};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, PATIENCE, Paused, builder};

/// Callers that one shard holds.
const CAPACITY: usize = 16_384;
/// Callers that send their own check before others enqueue.
const DIRECT_SENDS: usize = 4;
/// Checks that the two dispatchers of a shard take before the server is paused.
const IN_FLIGHT: usize = 2 * 128;

/// If a call is older than a tenth of the deadline, callers start another dispatcher. This deadline prevents
/// that while a test fills the queue.
const LONG: Duration = Duration::from_secs(60);

type Checking<'a> = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send + 'a>>;

fn poll_once(checking: &mut Checking<'_>) -> bool {
    checking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Starts one check and lets it enqueue.
fn start(gate: &Gate, key: String, deadline: Option<Duration>) -> Checking<'_> {
    let mut checking: Checking<'_> = Box::pin(async move {
        let check = gate.key(&key);
        match deadline {
            Some(deadline) => check.deadline(deadline).check().await,
            None => check.check().await,
        }
    });
    assert!(!poll_once(&mut checking));
    checking
}

/// Brings all direct sends and both dispatchers in flight to a paused server.
async fn occupy(gate: &Gate) -> Vec<Checking<'_>> {
    let first = (0..DIRECT_SENDS + IN_FLIGHT).map(|number| start(gate, format!("first:{number}"), None));
    let first = first.collect();
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    first
}

/// Awaits the checks one after the other. `join_all` would poll thousands of woken futures repeatedly,
/// because tokio resumes 128 of them per turn.
async fn assert_allowed(checks: impl IntoIterator<Item = Checking<'_>>) {
    for check in checks {
        assert!(check.await.unwrap().is_allowed());
    }
}

async fn setting() -> (Server, Limiter, Gate) {
    let server = Server::process(&[]).unwrap();
    let limiter = builder(server.url()).deadline(LONG).deny_cache(Duration::ZERO).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1 << 40, HOUR));
    assert!(gate.check("first").await.unwrap().is_allowed());
    (server, limiter, gate)
}

#[tokio::test]
async fn callers_that_wait_for_room_are_served_after_the_queued_callers_timed_out() {
    const SHORT: Duration = Duration::from_secs(3);
    let (server, _limiter, gate) = setting().await;
    let paused = Paused::new(&server);
    let first = occupy(&gate).await;
    let queued: Vec<_> = (0..CAPACITY).map(|_| start(&gate, "hot".to_owned(), Some(SHORT))).collect();
    let waiters: Vec<_> = (0..50).map(|_| start(&gate, "waits".to_owned(), Some(2 * PATIENCE))).collect();
    for queued in queued {
        assert_eq!(queued.await.unwrap_err().kind(), "timeout");
    }
    let newcomers: Vec<_> = (0..50).map(|_| start(&gate, "new".to_owned(), None)).collect();
    drop(paused);
    assert_allowed(first.into_iter().chain(newcomers).chain(waiters)).await;
}

/// A waiter that is woken and then cancelled passes its room on to the next.
#[tokio::test]
async fn callers_that_wait_for_room_are_served_behind_cancelled_ones() {
    let (server, _limiter, gate) = setting().await;
    let paused = Paused::new(&server);
    let first = occupy(&gate).await;
    let queued: Vec<_> = (0..CAPACITY).map(|number| start(&gate, format!("q:{number}"), None)).collect();
    let mut cancelled: Vec<_> = (0..50).map(|_| start(&gate, "cancelled".to_owned(), None)).collect();
    let waiters: Vec<_> = (0..50).map(|_| start(&gate, "waits".to_owned(), None)).collect();
    drop(cancelled.split_off(25));
    drop(paused);
    // The first checks are decided, so dispatchers have taken others out of the queue.
    assert_allowed(first).await;
    drop(cancelled);
    assert_allowed(waiters.into_iter().chain(queued)).await;
}

/// Only a new caller starts another dispatcher, and a full queue accepts no new caller.
#[test]
fn full_queue_behind_a_blocked_runtime_is_emptied() {
    const DEADLINE: Duration = Duration::from_secs(20);
    let server = Server::process(&[]).unwrap();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (polled, blocked) = (runtime(), runtime());
    let limiter = builder(server.url()).deadline(DEADLINE).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1 << 40, HOUR));
    // The connection belongs to the runtime that is polled.
    polled.block_on(limiter.ready()).unwrap();
    let paused = Paused::new(&server);
    let (release, released) = mpsc::channel::<()>();
    let (report, reached) = mpsc::channel();
    let blocked_gate = gate.clone();
    blocked.spawn(async move {
        let first = occupy(&blocked_gate).await;
        report.send("in flight").unwrap();
        let _ = released.recv();
        drop(first);
    });
    assert_eq!(reached.recv().unwrap(), "in flight");
    polled.block_on(async {
        let queued: Vec<_> = (0..CAPACITY).map(|number| start(&gate, format!("q:{number}"), None)).collect();
        drop(paused);
        assert_allowed(queued).await;
        assert!(gate.check("new").await.unwrap().is_allowed());
    });
    drop(release);
}
