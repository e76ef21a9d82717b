//! Permits of several processes, of which some are killed or stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tidegate::{Gate, Limiter, Permit, Quota};
use tidegate_testkit::Server;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{acquire_until_denied, remaining};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{PATIENCE, namespace, soon};
use crate::support::instance::Instance;

/// The variable that gives an instance its URL, namespace and role.
const JOB: &str = "TIDEGATE_TEST_PERMITS";
const TEST: &str = "acquires::fleet::instance";
const LIMIT: u64 = 5;
/// Longer than a pause of a busy machine.
const TTL: Duration = Duration::from_secs(3);
/// The Redis set of the permits in use.
const WITNESS: &str = "witness";
/// The Redis counter of the permits acquired.
const ACQUIRED: &str = "acquired";

fn connect(url: &str, namespace: &str) -> Gate {
    let builder = Limiter::builder().url(url).namespace(namespace).deadline(PATIENCE).permit_ttl(TTL);
    builder.build().unwrap().gate("gate", Quota::in_flight(LIMIT))
}

fn spawn(server: &Server, namespace: &str, role: &str) -> Instance {
    Instance::spawn(TEST, JOB, &[server.url(), namespace, role])
}

#[tokio::test]
async fn units_of_a_killed_process_are_free_after_the_time_to_live() {
    let server = Server::process(&[]).unwrap();
    let (namespace, gate) = with_gate(&server);
    let mut holder = spawn(&server, &namespace, "hold");
    assert_eq!(holder.says().await, json!({"held": LIMIT}));
    assert_eq!(remaining(&gate, "x").await, 0);
    let killed = Instant::now();
    holder.process.kill().await.unwrap();
    let permit = gate.acquire("x").cost(LIMIT).max_wait(2 * PATIENCE).await.unwrap().permit();
    assert!(permit.is_some(), "not free after {:?}", killed.elapsed());
}

#[tokio::test]
async fn stopped_process_frees_no_unit_of_others_when_it_continues() {
    let server = Server::process(&[]).unwrap();
    let (namespace, gate) = with_gate(&server);
    let mut stopped = spawn(&server, &namespace, "hold");
    assert_eq!(stopped.says().await, json!({"held": LIMIT}));
    stopped.signal("-STOP");
    let waited = gate.acquire("x").cost(LIMIT).max_wait(2 * PATIENCE).await.unwrap();
    let permit = waited.permit().expect("the units of a stopped process lapse");
    stopped.signal("-CONT");
    stopped.start().await;
    assert_eq!(stopped.says().await, json!({"released": LIMIT}));
    for _ in 0..20 {
        assert_eq!(remaining(&gate, "x").await, 0);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(permit.is_held());
    permit.release().await.unwrap();
    assert_eq!(remaining(&gate, "x").await, LIMIT);
}

#[tokio::test]
async fn live_processes_never_hold_more_units_than_the_limit() {
    storm(2, false).await;
}

#[tokio::test]
#[ignore = "50 runs of 9 s each"]
async fn live_processes_never_hold_more_units_than_the_limit_in_50_runs() {
    for run in 0..50 {
        eprintln!("run {run}");
        storm(4, true).await;
    }
}

/// Runs 8 processes, of which some are killed meanwhile, and one is stopped for longer than its lease. Each of
/// these events comes after others have acquired permits, however long that takes.
async fn storm(killed: usize, is_one_stopped: bool) {
    let server = Server::process(&[]).unwrap();
    let (namespace, gate) = with_gate(&server);
    let mut fleet: Vec<Instance> = (0..8).map(|_| spawn(&server, &namespace, "storm")).collect();
    for instance in &mut fleet {
        assert_eq!(instance.says().await, json!({"ready": true}));
    }
    for instance in &mut fleet {
        instance.start().await;
    }
    let mut victims = fleet.split_off(fleet.len() - killed);
    let stopped = fleet.first().filter(|_| is_one_stopped);
    let mut witnesses = [witness(server.url()).await, witness(server.url()).await];
    let [of_killed, of_stopped] = &mut witnesses;
    let kill = async {
        for victim in &mut victims {
            more_are_acquired(of_killed).await;
            let process = victim.process.id().unwrap();
            victim.process.kill().await.unwrap();
            // Its work has ended with it.
            forget(of_killed, process).await;
        }
    };
    let stop = async {
        let Some(stopped) = stopped else { return };
        more_are_acquired(of_stopped).await;
        stopped.signal("-STOP");
        // Others are given its units while it is not live.
        forget(of_stopped, stopped.process.id().unwrap()).await;
        tokio::time::sleep(TTL + Duration::from_secs(1)).await;
        stopped.signal("-CONT");
    };
    tokio::join!(kill, stop);
    more_are_acquired(of_killed).await;
    for instance in &mut fleet {
        instance.start().await;
    }
    for instance in &mut fleet {
        let report = instance.says().await;
        assert!(report["most"].as_u64().unwrap() <= LIMIT, "{report}");
    }
    soon("all units are free", async || remaining(&gate, "x").await == LIMIT).await;
    let permits: Vec<Permit> = acquire_until_denied(&gate, "x").await;
    assert_eq!(permits.len() as u64, LIMIT);
}

/// Waits until the fleet has acquired 50 more permits.
async fn more_are_acquired(witness: &mut MultiplexedConnection) {
    let acquired = async |witness: &mut MultiplexedConnection| {
        let acquired: Option<u64> = redis::cmd("GET").arg(ACQUIRED).query_async(witness).await.unwrap();
        acquired.unwrap_or(0)
    };
    let before = acquired(witness).await;
    soon("the fleet acquires permits", async || acquired(witness).await >= before + 50).await;
}

/// Removes the permits of a process from those in use.
async fn forget(witness: &mut MultiplexedConnection, process: u32) {
    let script = "for _, who in ipairs(redis.call('SMEMBERS', KEYS[1])) do
        if who:sub(1, #ARGV[1]) == ARGV[1] then redis.call('SREM', KEYS[1], who) end end";
    let mut call = redis::cmd("EVAL");
    call.arg(script).arg(1).arg(WITNESS).arg(format!("{process}:"));
    call.query_async::<()>(witness).await.unwrap();
}

fn with_gate(server: &Server) -> (String, Gate) {
    let namespace = namespace();
    let gate = connect(server.url(), &namespace);
    (namespace, gate)
}

async fn witness(url: &str) -> MultiplexedConnection {
    // Waits for any reply, also on a busy machine.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "one process of the fleets above"]
async fn instance() {
    let Ok(job) = std::env::var(JOB) else { return };
    let [url, namespace, role] = job.split(' ').collect::<Vec<_>>()[..] else { panic!("{job}") };
    let gate = connect(url, namespace);
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    if role == "hold" {
        let permits = acquire_until_denied(&gate, "x").await;
        report(&json!({"held": permits.len()}));
        input.next_line().await.unwrap();
        let released = permits.len();
        for permit in permits {
            permit.release().await.unwrap();
        }
        report(&json!({"released": released}));
        input.next_line().await.unwrap();
        return;
    }
    report(&json!({"ready": true}));
    input.next_line().await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> =
        (0..6).map(|task| tokio::spawn(work(gate.clone(), url.to_owned(), task, is_over.clone()))).collect();
    input.next_line().await.unwrap();
    is_over.store(true, Ordering::Relaxed);
    let mut most = 0;
    for task in tasks {
        most = most.max(task.await.unwrap());
    }
    report(&json!({"most": most}));
    input.next_line().await.unwrap();
}

/// Acquires and releases until the end. Returns the largest number of permits that were in use at one time.
async fn work(gate: Gate, url: String, task: usize, is_over: Arc<AtomicBool>) -> u64 {
    let mut witness = witness(&url).await;
    let name = format!("{}:{task}", std::process::id());
    let mut most = 0;
    while !is_over.load(Ordering::Relaxed) {
        let Some(permit) = gate.acquire_timeout("x", PATIENCE).await.unwrap().permit() else { continue };
        if !permit.is_held() {
            // The process was stopped meanwhile, and others may have the unit.
            continue;
        }
        let mut enter = redis::pipe();
        enter.atomic().cmd("SADD").arg(WITNESS).arg(&name).ignore().cmd("SCARD").arg(WITNESS);
        enter.cmd("INCR").arg(ACQUIRED);
        let (in_use, acquired): (u64, u64) = enter.query_async(&mut witness).await.unwrap();
        if permit.is_held() {
            most = most.max(in_use);
        }
        tokio::time::sleep(Duration::from_millis(fastrand_ms())).await;
        redis::cmd("SREM").arg(WITNESS).arg(&name).query_async::<()>(&mut witness).await.unwrap();
        match acquired % 2 {
            0 => drop(permit),
            _ => permit.release().await.unwrap(),
        }
    }
    most
}

/// Returns up to 10 ms of work.
fn fastrand_ms() -> u64 {
    rand::random::<u64>() % 10
}

#[expect(clippy::print_stdout, reason = "an instance reports on its standard output")]
fn report(value: &serde_json::Value) {
    println!("{value}");
}
