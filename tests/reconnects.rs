//! Lost connections leak no files, tasks, connections or memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tidegate::{Gate, Lease, Quota, Rate};
use tidegate_testkit::Server;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::support::fixture::{HOUR, builder, soon};
use crate::support::instance::Instance;

const URL: &str = "TIDEGATE_TEST_RECONNECTS";
/// Number of times the test cuts the connection.
const CUTS: u64 = 1_000;
/// Number of cuts after which one-time allocations have happened.
const FIRST: u64 = 100;
/// Allowed memory growth. A leaked connection takes at least 8 kB, so 900 of them take 7 MB.
const NOISE_KB: u64 = 3_000;

/// Runs in its own process, in which no other test opens files or runs tasks.
#[tokio::test]
async fn connection_cut_1000_times_leaks_nothing() {
    let server = Server::process(&[]).unwrap();
    let mut instance = Instance::spawn("reconnects::instance", URL, &[server.url()]);
    let found = instance.says().await;
    eprintln!("{found}");
    let value = |phase: &str, name: &str| found[phase][name].as_u64().unwrap();

    assert!(value("checks", "decided") > CUTS, "no load");
    // Race: a caller hands a call to the connection; at the same instant, the connection ends. The call must
    // fail at once instead of waiting there until its deadline.
    assert_eq!(value("checks", "timed_out"), 0, "checks that timed out");
    for name in ["files", "tasks", "connections"] {
        assert_eq!(value("cut", name), value("before", name), "{name} after and before the cuts");
        assert_eq!(value("dropped", name), value("at_first", name), "{name} without the limiter");
    }
    let (before, after) = (value("before", "memory_kb"), value("cut", "memory_kb"));
    assert!(after < before + NOISE_KB, "{before} kB grew to {after} kB");
}

/// Not a test: the program that the process of the test above runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the other test"]
async fn instance() {
    let Ok(url) = std::env::var(URL) else { return };
    let mut admin = redis::Client::open(&*url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let at_first = holdings(&mut admin).await;

    let limiter = builder(&url).build().unwrap();
    let bucket = limiter.gate("bucket", Quota::token_bucket(1_000_000_000, Rate::per_second(1_000_000)));
    let leased = limiter.gate("leased", Quota::fixed_window(1_000_000_000, HOUR));
    let leased = leased.leased(Lease::new().max_units(8).hold(Duration::from_millis(5)));
    let gates = [bucket, leased];
    let mut counts = Counts::default();
    check_and_cut(&gates, &mut admin, FIRST, &mut counts).await;
    let before = settled(&gates[0], &mut admin).await;
    check_and_cut(&gates, &mut admin, CUTS - FIRST, &mut counts).await;
    let cut = settled(&gates[0], &mut admin).await;
    drop((gates, limiter));
    soon("the limiter has released everything", async || {
        let now = holdings(&mut admin).await;
        ["files", "tasks", "connections"].iter().all(|name| now[name] == at_first[name])
    })
    .await;
    let dropped = holdings(&mut admin).await;
    let found =
        json!({"checks": counts, "at_first": at_first, "before": before, "cut": cut, "dropped": dropped});
    report(&found);
}

#[expect(clippy::print_stdout, reason = "an instance reports on its standard output")]
fn report(value: &Value) {
    println!("\n{value}");
}

/// The numbers of checks by their result.
#[derive(Debug, Default, serde::Serialize)]
struct Counts {
    decided: u64,
    failed: u64,
    /// The failed checks that waited until their deadline.
    timed_out: u64,
}

/// Runs eight tasks that check repeatedly, one of them at a leased gate. Meanwhile cuts the connection `cuts`
/// times, each time after the new connection has carried decisions.
async fn check_and_cut(gates: &[Gate; 2], admin: &mut MultiplexedConnection, cuts: u64, counts: &mut Counts) {
    let (is_over, decided) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let is_leased = task == 0;
        let gate = gates[usize::from(is_leased)].clone();
        let (is_over, decided) = (is_over.clone(), decided.clone());
        tasks.spawn(async move {
            let key = format!("key-{}", task % 4);
            let mut counts = Counts::default();
            while !is_over.load(Ordering::Relaxed) {
                match gate.check(key.as_str()).await {
                    // Checks at the leased gate are not counted: a lease decides without a connection.
                    Ok(decision) => {
                        assert!(decision.is_allowed());
                        decided.fetch_add(u64::from(!is_leased), Ordering::Relaxed);
                    }
                    Err(error) => {
                        assert!(error.is_unavailable(), "{error}");
                        counts.failed += 1;
                        counts.timed_out += u64::from(error.is_timeout());
                    }
                }
                tokio::task::yield_now().await;
            }
            counts
        });
    }
    let mut done = 0;
    while done < cuts {
        let before = decided.load(Ordering::Relaxed);
        soon("checks are decided", async || decided.load(Ordering::Relaxed) > before + 8).await;
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg(&["TYPE", "normal", "SKIPME", "yes"]);
        let killed: u64 = kill.query_async(admin).await.unwrap();
        done += killed;
    }
    is_over.store(true, Ordering::Relaxed);
    for task in tasks.join_all().await {
        counts.failed += task.failed;
        counts.timed_out += task.timed_out;
    }
    counts.decided += decided.load(Ordering::Relaxed);
}

/// Returns the resources held once the limiter is idle and connected.
async fn settled(gate: &Gate, admin: &mut MultiplexedConnection) -> Value {
    let (mut last, mut equal_samples) = (Value::Null, 0);
    // Equal samples over 200 ms show that no resource is still being released.
    soon("the limiter is idle", async || {
        let is_connected = gate.peek("key-1").await.is_ok();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = holdings(admin).await;
        let is_same = ["files", "tasks", "connections"].iter().all(|name| now[name] == last[name]);
        last = now;
        equal_samples = if is_connected && is_same { equal_samples + 1 } else { 0 };
        equal_samples >= 10
    })
    .await;
    last
}

/// Returns the resources of this process, and the number of its connections at the server.
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
