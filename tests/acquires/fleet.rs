//! Permits of several processes, of which some are killed or stopped.

use std::time::{Duration, Instant};

use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tidegate::{Gate, Limiter, Permit, Quota};
use tidegate_testkit::Server;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::{acquire_until_denied, remaining};
use crate::support::fixture::{PATIENCE, namespace, soon};
use crate::support::instance::Instance;

/// The variable that gives an instance its URL, namespace, role and seconds.
const JOB: &str = "TIDEGATE_TEST_PERMITS";
const TEST: &str = "acquires::fleet::instance";
const LIMIT: u64 = 5;
/// Longer than a pause of a busy machine.
const TTL: Duration = Duration::from_secs(3);
/// The permits in use at one time, and the number of live processes.
const WITNESS: &str = "witness";

fn connect(url: &str, namespace: &str) -> Gate {
    let builder = Limiter::builder().url(url).namespace(namespace).deadline(PATIENCE).permit_ttl(TTL);
    builder.build().unwrap().gate("gate", Quota::in_flight(LIMIT))
}

fn spawn(server: &Server, namespace: &str, role: &str, seconds: u64) -> Instance {
    Instance::spawn(TEST, JOB, &[server.url(), namespace, role, &seconds.to_string()])
}

fn signal(instance: &Instance, signal: &str) {
    let process = instance.process.id().unwrap().to_string();
    let status = std::process::Command::new("kill").args([signal, &process]).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn units_of_a_killed_process_are_free_after_the_time_to_live() {
    let server = Server::process(&[]).unwrap();
    let (namespace, gate) = with_gate(&server);
    let mut holder = spawn(&server, &namespace, "hold", 0);
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
    let mut stopped = spawn(&server, &namespace, "hold", 0);
    assert_eq!(stopped.says().await, json!({"held": LIMIT}));
    signal(&stopped, "-STOP");
    let waited = gate.acquire("x").cost(LIMIT).max_wait(2 * PATIENCE).await.unwrap();
    let permit = waited.permit().expect("the units of a stopped process lapse");
    signal(&stopped, "-CONT");
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
    storm(2, 2, false).await;
}

#[tokio::test]
#[ignore = "50 runs of 9 s each"]
async fn live_processes_never_hold_more_units_than_the_limit_in_50_runs() {
    for run in 0..50 {
        eprintln!("run {run}");
        storm(8, 4, true).await;
    }
}

/// Runs 8 processes, of which some are killed meanwhile, and one is stopped for longer than its lease.
async fn storm(seconds: u64, killed: u32, is_one_stopped: bool) {
    let server = Server::process(&[]).unwrap();
    let (namespace, gate) = with_gate(&server);
    let mut fleet: Vec<Instance> = (0..8).map(|_| spawn(&server, &namespace, "storm", seconds)).collect();
    for instance in &mut fleet {
        assert_eq!(instance.says().await, json!({"ready": true}));
    }
    for instance in &mut fleet {
        instance.start().await;
    }
    let mut victims = fleet.split_off(fleet.len() - killed as usize);
    let stopped = fleet.first().filter(|_| is_one_stopped);
    let mut witnesses = [witness(server.url()).await, witness(server.url()).await];
    let [of_killed, of_stopped] = &mut witnesses;
    let kill = async {
        for victim in &mut victims {
            tokio::time::sleep(Duration::from_millis(seconds * 600) / killed).await;
            let process = victim.process.id().unwrap();
            victim.process.kill().await.unwrap();
            // Its work has ended with it.
            forget(of_killed, process).await;
        }
    };
    let stop = async {
        let Some(stopped) = stopped else { return };
        tokio::time::sleep(Duration::from_millis(500)).await;
        signal(stopped, "-STOP");
        // Others are given its units while it is not live.
        forget(of_stopped, stopped.process.id().unwrap()).await;
        tokio::time::sleep(TTL + Duration::from_secs(1)).await;
        signal(stopped, "-CONT");
    };
    tokio::join!(kill, stop);
    let mut acquired = 0;
    for instance in &mut fleet {
        let report = instance.says().await;
        assert!(report["most"].as_u64().unwrap() <= LIMIT, "{report}");
        acquired += report["acquired"].as_u64().unwrap();
    }
    assert!(acquired > 20, "only {acquired} permits were acquired");
    soon("all units are free", async || remaining(&gate, "x").await == LIMIT).await;
    let permits: Vec<Permit> = acquire_until_denied(&gate, "x").await;
    assert_eq!(permits.len() as u64, LIMIT);
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
    let [url, namespace, role, seconds] = job.split(' ').collect::<Vec<_>>()[..] else { panic!("{job}") };
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
    let ends = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let tasks: Vec<_> =
        (0..6).map(|task| tokio::spawn(work(gate.clone(), url.to_owned(), task, ends))).collect();
    let (mut most, mut acquired) = (0, 0);
    for task in tasks {
        let (most_seen, permits) = task.await.unwrap();
        (most, acquired) = (most.max(most_seen), acquired + permits);
    }
    report(&json!({"most": most, "acquired": acquired}));
    input.next_line().await.unwrap();
}

/// Acquires and releases until the end. Returns the largest number of permits that were in use at one time, and
/// the number of permits acquired.
async fn work(gate: Gate, url: String, task: usize, ends: Instant) -> (u64, u64) {
    let mut witness = witness(&url).await;
    let name = format!("{}:{task}", std::process::id());
    let (mut most, mut acquired) = (0, 0);
    while Instant::now() < ends {
        let left = ends.saturating_duration_since(Instant::now());
        let Some(permit) = gate.acquire_timeout("x", left).await.unwrap().permit() else { continue };
        if !permit.is_held() {
            // The process was stopped meanwhile, and others may have the unit.
            continue;
        }
        let mut enter = redis::pipe();
        enter.atomic().cmd("SADD").arg(WITNESS).arg(&name).ignore().cmd("SCARD").arg(WITNESS);
        let (in_use,): (u64,) = enter.query_async(&mut witness).await.unwrap();
        if permit.is_held() {
            (most, acquired) = (most.max(in_use), acquired + 1);
        }
        tokio::time::sleep(Duration::from_millis(fastrand_ms())).await;
        redis::cmd("SREM").arg(WITNESS).arg(&name).query_async::<()>(&mut witness).await.unwrap();
        match acquired % 2 {
            0 => drop(permit),
            _ => permit.release().await.unwrap(),
        }
    }
    (most, acquired)
}

/// Returns up to 10 ms of work.
fn fastrand_ms() -> u64 {
    rand::random::<u64>() % 10
}

#[expect(clippy::print_stdout, reason = "an instance reports on its standard output")]
fn report(value: &serde_json::Value) {
    println!("{value}");
}
