//! A connection that is lost leaves nothing behind, however often it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::Server;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tidegate::{Gate, Lease, Quota, Rate};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::support::fixture::{HOUR, builder, soon};
use crate::support::instance::Instance;

const URL: &str = "TIDEGATE_TEST_RECONNECTS";
/// How often the connection is cut.
const CUTS: u64 = 1_000;
/// After so many, what is allocated once has been.
const FIRST: u64 = 100;
/// A connection that is kept would take 8 kB at least, 7 MB in all.
const NOISE_KB: u64 = 3_000;
/// In a process of its own, in which nobody else opens files or runs tasks.
#[tokio::test]
async fn a_connection_cut_1000_times_leaves_nothing_behind() {
    let server = Server::process(&[]).unwrap();
    let mut instance = Instance::spawn("reconnects::instance", URL, &[server.url()]);
    let found = instance.says().await;
    eprintln!("{found}");
    let at = |when: &str, what: &str| found[when][what].as_u64().unwrap();

    assert!(at("asks", "answered") > CUTS, "no load");
    // A call can be handed to the connection in the instant in which that ends, and lies there then.
    assert_eq!(at("asks", "late"), 0, "asks that nobody answers");
    for what in ["files", "tasks", "connections"] {
        assert_eq!(at("cut", what), at("before", what), "{what} after the cuts, and before");
        assert_eq!(at("dropped", what), at("at_first", what), "{what} without the limiter");
    }
    let (before, after) = (at("before", "memory_kb"), at("cut", "memory_kb"));
    assert!(after < before + NOISE_KB, "{before} kB grew to {after} kB");
}

/// Not a test of its own: what the process of the test above runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the other"]
async fn instance() {
    let Ok(url) = std::env::var(URL) else { return };
    let mut admin = redis::Client::open(&*url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let at_first = holdings(&mut admin).await;

    let limiter = builder(&url).deadline(Duration::from_secs(1)).build().unwrap();
    let bucket = limiter.gate("bucket", Quota::token_bucket(1_000_000_000, Rate::per_second(1_000_000)));
    let leased = limiter.gate("leased", Quota::fixed_window(1_000_000_000, HOUR));
    let leased = leased.leased(Lease::new().max_units(8).hold(Duration::from_millis(5)));
    let gates = [bucket, leased];
    let mut asks = Asks::default();
    ask_and_cut(&gates, &mut admin, FIRST, &mut asks).await;
    let before = settled(&gates[0], &mut admin).await;
    ask_and_cut(&gates, &mut admin, CUTS - FIRST, &mut asks).await;
    let cut = settled(&gates[0], &mut admin).await;
    drop((gates, limiter));
    soon("all of it ends", async || {
        let now = holdings(&mut admin).await;
        ["files", "tasks", "connections"].iter().all(|what| now[what] == at_first[what])
    })
    .await;
    let dropped = holdings(&mut admin).await;
    let found = json!({"asks": asks, "at_first": at_first, "before": before, "cut": cut, "dropped": dropped});
    say(&found);
}

#[expect(clippy::print_stdout, reason = "how an instance answers")]
fn say(line: &Value) {
    println!("\n{line}");
}

/// What became of asks.
#[derive(Debug, Default, serde::Serialize)]
struct Asks {
    answered: u64,
    failed: u64,
    /// Those of the failed that waited until their deadline.
    late: u64,
}

/// Asks without end, eight at a time and one of them leased, while the connection
/// is cut so often, each time after it has been of use again.
async fn ask_and_cut(gates: &[Gate; 2], admin: &mut MultiplexedConnection, cuts: u64, asks: &mut Asks) {
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let is_leased = task == 0;
        let gate = gates[usize::from(is_leased)].clone();
        let (is_over, answered) = (is_over.clone(), answered.clone());
        tasks.spawn(async move {
            let key = format!("key-{}", task % 4);
            let mut asks = Asks::default();
            while !is_over.load(Ordering::Relaxed) {
                match gate.check(key.as_str()).await {
                    // A lease answers without a connection, too.
                    Ok(decision) => {
                        assert!(decision.is_allowed());
                        answered.fetch_add(u64::from(!is_leased), Ordering::Relaxed);
                    }
                    Err(error) => {
                        assert!(error.is_unavailable(), "{error}");
                        asks.failed += 1;
                        asks.late += u64::from(error.is_timeout());
                    }
                }
                tokio::task::yield_now().await;
            }
            asks
        });
    }
    let mut done = 0;
    while done < cuts {
        let seen = answered.load(Ordering::Relaxed);
        soon("asks are answered", async || answered.load(Ordering::Relaxed) > seen + 8).await;
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg(&["TYPE", "normal", "SKIPME", "yes"]);
        let killed: u64 = kill.query_async(admin).await.unwrap();
        done += killed;
    }
    is_over.store(true, Ordering::Relaxed);
    for task in tasks.join_all().await {
        asks.failed += task.failed;
        asks.late += task.late;
    }
    asks.answered += answered.load(Ordering::Relaxed);
}

/// What is held when the limiter is idle, with its connection made.
async fn settled(gate: &Gate, admin: &mut MultiplexedConnection) -> Value {
    let start = Instant::now();
    let mut last = Value::Null;
    // The same twice, some time apart: nothing is on its way out any more.
    soon("it is idle", async || {
        let is_well = gate.peek("key-1").await.is_ok();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = holdings(admin).await;
        let is_same = ["files", "tasks", "connections"].iter().all(|what| now[what] == last[what]);
        last = now;
        is_well && is_same && start.elapsed() > Duration::from_millis(100)
    })
    .await;
    last
}

/// What this process has, and the server of it.
async fn holdings(admin: &mut MultiplexedConnection) -> Value {
    let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(admin).await.unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    json!({
        "files": std::fs::read_dir("/proc/self/fd").unwrap().count(),
        "tasks": Handle::current().metrics().num_alive_tasks(),
        "connections": clients.lines().count(),
        "memory_kb": memory.unwrap().parse::<u64>().unwrap(),
    })
}
