//! Redis closes all connections ten times in a quarter of a second. Prints how many calls fail, and why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tidegate::{Error, Gate, OnFailure, Quota};
use tidegate_testkit::Server;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::door::{Door, port};
use crate::support::fixture::{HOUR, builder_as_is};
use crate::support::hear::{end_before_a_reply, lead_to};

const KILLS: u32 = 10;
const INTERVAL: Duration = Duration::from_millis(25);
const CALLERS: usize = 8;
/// The pause of each caller between two calls.
const PACE: Duration = Duration::from_millis(1);
const ROUNDS: usize = 20;

/// The numbers of calls by their results.
#[derive(Default)]
struct Seen {
    answered: u64,
    /// By the text of the error.
    failed: BTreeMap<String, u64>,
}

impl Seen {
    fn add(&mut self, result: Result<(), Error>) {
        match result {
            Ok(()) => self.answered += 1,
            Err(error) => *self.failed.entry(error.cause().to_string()).or_default() += 1,
        }
    }

    fn merge(&mut self, other: Self) {
        self.answered += other.answered;
        for (error, count) in other.failed {
            *self.failed.entry(error).or_default() += count;
        }
    }
}

async fn call(gate: &Gate, is_refund: bool) -> Result<(), Error> {
    if is_refund { gate.refund("key", 1).await } else { gate.check("key").await.map(drop) }
}

async fn call_until(gate: Gate, is_refund: bool, is_over: Arc<AtomicBool>) -> Seen {
    let mut seen = Seen::default();
    while !is_over.load(Ordering::Relaxed) {
        seen.add(call(&gate, is_refund).await);
        tokio::time::sleep(PACE).await;
    }
    seen
}

async fn close_all(admin: &mut MultiplexedConnection) -> u64 {
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg(&["TYPE", "normal", "SKIPME", "yes"]);
    kill.query_async(admin).await.unwrap()
}

/// Returns the results, and the number of connections that were closed.
async fn round(is_refund: bool, has_breaker: bool) -> (Seen, u64) {
    let server = Server::process(&[]).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let mut admin = client.get_multiplexed_async_connection().await.unwrap();
    let settings = builder_as_is(server.url()).on_failure(OnFailure::Error).breaker(has_breaker);
    let limiter = settings.deadline(Duration::from_millis(100)).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000_000, HOUR));
    let _ = gate.check("key").await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut calling = JoinSet::new();
    for _ in 0..CALLERS {
        calling.spawn(call_until(gate.clone(), is_refund, is_over.clone()));
    }
    let start = Instant::now();
    let mut closed = 0;
    for kill in 0..KILLS {
        tokio::time::sleep((kill * INTERVAL).saturating_sub(start.elapsed())).await;
        closed += close_all(&mut admin).await;
    }
    tokio::time::sleep(INTERVAL).await;
    is_over.store(true, Ordering::Relaxed);
    let mut all = Seen::default();
    calling.join_all().await.into_iter().for_each(|seen| all.merge(seen));
    (all, closed)
}

/// Closes the connection of eight callers, and the next ones before their first reply. Returns the results of the calls
/// until Redis has answered for a while.
async fn closed_before_a_reply(connections: usize, has_breaker: bool) -> Seen {
    let server = Server::process(&[]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = builder_as_is(&format!("redis://{}", listener.local_addr().unwrap()));
    let settings =
        settings.on_failure(OnFailure::Error).breaker(has_breaker).deadline(Duration::from_secs(2));
    let settings = settings.follow_overrides(false).instances(1).publish_figures(false);
    let gate = settings.build().unwrap().gate("gate", Quota::fixed_window(1_000_000, HOUR));
    let door = Door::to(port(server.url())).await;
    let (checked, ()) = tokio::join!(gate.check("key"), lead_to(&listener, door.port));
    assert!(checked.unwrap().is_allowed());
    let (is_over, mut calling) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for _ in 0..CALLERS {
        calling.spawn(call_until(gate.clone(), false, is_over.clone()));
    }
    tokio::time::sleep(INTERVAL).await;
    door.cut();
    for _ in 0..connections {
        end_before_a_reply(&listener).await;
    }
    lead_to(&listener, port(server.url())).await;
    tokio::time::sleep(4 * INTERVAL).await;
    is_over.store(true, Ordering::Relaxed);
    let mut all = Seen::default();
    calling.join_all().await.into_iter().for_each(|seen| all.merge(seen));
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn long_form_connections_are_closed_before_their_first_reply() {
    for connections in 0..=3 {
        for has_breaker in [true, false] {
            let mut all = Seen::default();
            for _ in 0..ROUNDS {
                all.merge(closed_before_a_reply(connections, has_breaker).await);
            }
            let failed: u64 = all.failed.values().sum();
            eprintln!(
                "{connections} in a row, breaker {has_breaker}: {failed} of {} failed",
                failed + all.answered
            );
            all.failed.iter().for_each(|(error, count)| eprintln!("  {count} failed: {error}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn long_form_redis_closes_all_connections_ten_times_in_a_quarter_of_a_second() {
    for (is_refund, has_breaker) in [(false, true), (false, false), (true, false)] {
        let (mut all, mut closed) = (Seen::default(), 0);
        for _ in 0..ROUNDS {
            let (seen, killed) = round(is_refund, has_breaker).await;
            all.merge(seen);
            closed += killed;
        }
        let name = if is_refund { "refunds" } else { "checks" };
        eprintln!("{name}, breaker {has_breaker}: {closed} closed, {} answered", all.answered);
        all.failed.iter().for_each(|(error, count)| eprintln!("  {count} failed: {error}"));
    }
}
