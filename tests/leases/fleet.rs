//! Tests leases of several processes: one hoards units, and one is killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::{Gate, Lease, Limiter, Quota, Rate, Source};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::fixture::{HOUR, PATIENCE, namespace, soon};
use crate::support::instance::Instance;

/// The environment variable with an instance's arguments: URL, namespace, gate and job, separated by spaces.
const ARGUMENTS: &str = "TIDEGATE_TEST_LEASING_INSTANCE";
const WINDOW: Duration = Duration::from_millis(500);
const HOLD: Duration = Duration::from_millis(150);
const LIMIT: u64 = 100;
const MAX_UNITS: u64 = 12;
const HONEST: usize = 3;

fn quotas() -> [(&'static str, Quota); 4] {
    [
        ("token", Quota::token_bucket(LIMIT, Rate::new(LIMIT, WINDOW))),
        ("fixed", Quota::fixed_window(LIMIT, WINDOW).aligned_to_clock()),
        ("log", Quota::sliding_log(LIMIT, WINDOW)),
        ("counter", Quota::sliding_counter(LIMIT, WINDOW)),
    ]
}

/// The fleet runs this often at most, until it has used leases.
const MAX_ROUNDS: usize = 5;
const SCARCE: (&str, Quota) = ("scarce", Quota::token_bucket(2_000, Rate::new(1, HOUR)));

fn gate(url: &str, namespace: &str, name: &str) -> Gate {
    let limiter = Limiter::builder().url(url).namespace(namespace).deadline(PATIENCE).build().unwrap();
    let (_, quota) = quotas().into_iter().chain([SCARCE]).find(|(known, _)| *known == name).unwrap();
    limiter.gate(name, quota)
}

fn lease() -> Lease {
    Lease::new().max_units(MAX_UNITS).hold(HOLD)
}

#[tokio::test]
async fn a_fleet_with_a_hoarder_stays_within_the_bound_of_each_algorithm() {
    for (name, quota) in quotas() {
        // On a busy machine a fleet may get too little of a processor to use leases at all.
        let mut rounds = Vec::new();
        while !rounds.iter().any(|&(admitted, leased)| admitted >= LIMIT && leased * 50 >= admitted) {
            assert!(rounds.len() < MAX_ROUNDS, "{quota}: admitted and leased units: {rounds:?}");
            rounds.push(stays_within_the_bound(name, &quota).await);
        }
    }
}

/// Runs a fleet, and returns how many units it admitted, and how many of them from leases.
async fn stays_within_the_bound(name: &str, quota: &Quota) -> (u64, u64) {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let mut fleet = vec![spawn(server.url(), &namespace, name, "hoard")];
    fleet.extend((0..HONEST).map(|_| spawn(server.url(), &namespace, name, "check")));
    for instance in &mut fleet {
        instance.says().await;
    }
    for instance in &mut fleet {
        instance.start().await;
    }
    let (mut admitted, mut error_us, mut leased) = (BTreeMap::<u64, u64>::new(), 0, 0);
    for instance in &mut fleet {
        let result = instance.says().await;
        error_us = error_us.max(result["error_us"].as_u64().unwrap());
        leased += result["leased"].as_u64().unwrap();
        for time in result["admitted"].as_array().unwrap() {
            *admitted.entry(time.as_u64().unwrap()).or_default() += 1;
        }
    }
    let total = admitted.values().sum();
    eprintln!("{quota}: {total} admitted, {leased} from leases, times within {error_us} us");
    for (start, end, units) in intervals(&admitted) {
        // Each end of the interval may be off by `error_us`.
        let length = end - start + 2 * error_us;
        let excess = bound(quota, length).map_or(0, |bound| units.saturating_sub(bound));
        assert_eq!(excess, 0, "{quota}: {units} in {length} us");
    }
    (total, leased)
}

/// Returns how many units may be admitted in an interval (µs), or `None` if that depends on the position of
/// the interval.
fn bound(quota: &Quota, length: u64) -> Option<u64> {
    let (window, hold) = (WINDOW.as_micros() as u64, HOLD.as_micros() as u64);
    let held = (HONEST as u64 + 1) * MAX_UNITS;
    match quota.algorithm() {
        "token_bucket" => Some(LIMIT + LIMIT * length / window + held.min((LIMIT * hold).div_ceil(window))),
        "sliding_log" => (length <= window).then_some(LIMIT + held.min(LIMIT)),
        // The number of clock windows that can overlap the interval.
        _ => Some(LIMIT * (length / window + 2)),
    }
}

/// Returns every interval that begins and ends with an admission: start, end and admitted units.
fn intervals(admitted: &BTreeMap<u64, u64>) -> Vec<(u64, u64, u64)> {
    let mut sum = 0;
    let sums: Vec<(u64, u64, u64)> = admitted
        .iter()
        .map(|(&time, &units)| {
            sum += units;
            (time, sum - units, sum)
        })
        .collect();
    let mut intervals = Vec::new();
    for (at, &(start, before, _)) in sums.iter().enumerate() {
        intervals.extend(sums[at..].iter().map(|&(end, _, after)| (start, end, after - before)));
    }
    intervals
}

#[tokio::test]
async fn a_killed_process_loses_its_held_units_and_creates_none() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let mut victim = spawn(server.url(), &namespace, SCARCE.0, "hold");
    victim.says().await;
    victim.start().await;
    let result = victim.says().await;
    let (admitted, held) = (result["admitted"].as_u64().unwrap(), result["held"].as_u64().unwrap());
    assert!(held > 0 && held <= MAX_UNITS, "{result}");
    victim.process.kill().await.unwrap();

    let gate = gate(server.url(), &namespace, SCARCE.0);
    let mut others = 0;
    while gate.check("hot").await.unwrap().is_allowed() {
        others += 1;
    }
    let limit = SCARCE.1.limit();
    // The units of the victim's take in flight count towards its maximum, too.
    let total = admitted + others;
    assert!(total <= limit, "{admitted} by the victim and {others} by others");
    assert!(total >= limit - MAX_UNITS, "{total} of {limit}, and the victim held {held}");
}

fn spawn(url: &str, namespace: &str, gate: &str, job: &str) -> Instance {
    Instance::spawn("leases::fleet::leasing_instance", ARGUMENTS, &[url, namespace, gate, job])
}

/// Not a test of its own: the processes of the tests above run it.
#[tokio::test]
#[ignore = "run by the other tests"]
async fn leasing_instance() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let [url, namespace, name, job] = *arguments.split(' ').collect::<Vec<_>>() else {
        panic!("{arguments}")
    };
    let gate = gate(url, namespace, name);
    let _ = gate.peek("hot").await.unwrap();
    say(&json!({"ready": true}));
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    if input.next_line().await.unwrap().is_none() {
        return;
    }
    tokio::select! {
        result = work(&gate, job) => say(&result),
        _ = input.next_line() => return,
    }
    let _ = input.next_line().await;
}

#[expect(clippy::print_stdout, reason = "the test reads results from stdout")]
fn say(line: &Value) {
    println!("\n{line}");
}

async fn work(gate: &Gate, job: &str) -> Value {
    if job == "hold" {
        return hold(&gate.clone().leased(lease().hold(HOUR))).await;
    }
    // Maps this process's clock to the server's, by the most exact of three attempts.
    let mut origin: Option<(Instant, u64, u64)> = None;
    for _ in 0..3 {
        let sent = Instant::now();
        let now_us = gate.peek("hot").await.unwrap().server_now_us();
        let error_us = sent.elapsed().as_micros() as u64 + 1;
        if origin.is_none_or(|(_, _, best)| error_us < best) {
            origin = Some((sent, now_us, error_us));
        }
    }
    let (sent, now_us, error_us) = origin.unwrap();
    let gate = gate.clone().leased(lease());
    let (mut admitted, mut leased) = (Vec::new(), 0);
    let mut record = |decision: &tidegate::Decision, before: Instant| {
        if decision.is_allowed() {
            let is_leased = decision.source() == Source::Lease;
            leased += u64::from(is_leased);
            // The gate compares the lease's end with a time after `before`. So `before` is the earliest
            // possible time of the admission.
            let local = now_us + (before - sent).as_micros() as u64;
            admitted.push(if is_leased { local } else { decision.server_now_us() });
        }
        decision.is_allowed()
    };
    while sent.elapsed() < 4 * WINDOW {
        if job == "hoard" {
            // Takes a lease, holds it, and spends it just before it ends.
            let held_since = Instant::now();
            while gate.lease_stats().held < MAX_UNITS / 2 && held_since.elapsed() < HOLD {
                let before = Instant::now();
                record(&gate.check("hot").await.unwrap(), before);
                tokio::task::yield_now().await;
            }
            let until = Instant::now() + HOLD * 9 / 10;
            soon("the lease is about to end", async || Instant::now() >= until).await;
        }
        loop {
            let before = Instant::now();
            let decision = match gate.try_check("hot") {
                Some(decision) => decision,
                None if job == "hoard" => break,
                None => gate.check("hot").await.unwrap(),
            };
            if !record(&decision, before) || sent.elapsed() >= 4 * WINDOW {
                break;
            }
            // Lets the refill arrive: the instance has one thread.
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    json!({"admitted": admitted, "leased": leased, "error_us": error_us})
}

/// Spends until the lease holds at least half of `MAX_UNITS`, and returns the counts.
async fn hold(gate: &Gate) -> Value {
    let mut admitted = 0;
    soon("enough units are held", async || {
        admitted += u64::from(gate.check("hot").await.unwrap().is_allowed());
        gate.lease_stats().held >= MAX_UNITS / 2
    })
    .await;
    json!({"admitted": admitted, "held": gate.lease_stats().held})
}
