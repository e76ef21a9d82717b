//! Leases of several processes, of which one hoards, and one is killed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::{Gate, Lease, Limiter, Quota, Rate, Source};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::fixture::{HOUR, PATIENCE, namespace, soon};
use crate::support::instance::Instance;

/// What an instance is told: url, namespace, gate and job, separated by spaces.
const ORDERS: &str = "TIDEGATE_TEST_LEASING_INSTANCE";
const WINDOW: Duration = Duration::from_millis(500);
const HOLD: Duration = Duration::from_millis(150);
const LIMIT: u64 = 100;
const MOST: u64 = 12;
const HONEST: usize = 3;

fn quotas() -> [(&'static str, Quota); 4] {
    [
        ("token", Quota::token_bucket(LIMIT, Rate::new(LIMIT, WINDOW))),
        ("fixed", Quota::fixed_window(LIMIT, WINDOW).aligned_to_clock()),
        ("log", Quota::sliding_log(LIMIT, WINDOW)),
        ("counter", Quota::sliding_counter(LIMIT, WINDOW)),
    ]
}

const SCARCE: (&str, Quota) = ("scarce", Quota::token_bucket(2_000, Rate::new(1, HOUR)));

fn gate(url: &str, namespace: &str, name: &str) -> Gate {
    let limiter = Limiter::builder().url(url).namespace(namespace).deadline(PATIENCE).build().unwrap();
    let (_, quota) = quotas().into_iter().chain([SCARCE]).find(|(known, _)| *known == name).unwrap();
    limiter.gate(name, quota)
}

fn lease() -> Lease {
    Lease::new().max_units(MOST).hold(HOLD)
}

#[tokio::test]
async fn a_fleet_with_a_hoarder_stays_within_the_bound_of_each_algorithm() {
    let (server, namespace) = (harness::shared(), namespace());
    for (name, quota) in quotas() {
        let mut fleet = vec![spawn(server.url(), &namespace, name, "hoard")];
        fleet.extend((0..HONEST).map(|_| spawn(server.url(), &namespace, name, "ask")));
        for instance in &mut fleet {
            instance.says().await;
        }
        for instance in &mut fleet {
            instance.start().await;
        }
        let (mut admitted, mut error_us, mut leased) = (BTreeMap::<u64, u64>::new(), 0, 0);
        for instance in &mut fleet {
            let says = instance.says().await;
            error_us = error_us.max(says["error_us"].as_u64().unwrap());
            leased += says["leased"].as_u64().unwrap();
            for time in says["admitted"].as_array().unwrap() {
                *admitted.entry(time.as_u64().unwrap()).or_default() += 1;
            }
        }
        let total: u64 = admitted.values().sum();
        eprintln!("{quota}: {total} admitted, {leased} from leases, times within {error_us} us");
        assert!(leased * 50 >= total, "{quota}: only {leased} of {total} were leased");
        assert!(total >= LIMIT, "{quota}: {total} admitted are no load");
        for (start, end, units) in intervals(&admitted) {
            // Both ends may be off by as much.
            let length = end - start + 2 * error_us;
            let excess = bound(&quota, length).map_or(0, |bound| units.saturating_sub(bound));
            assert_eq!(excess, 0, "{quota}: {units} in {length} us");
        }
    }
}

/// Units that may be admitted in an interval (µs); `None` if that depends on
/// where it lies.
fn bound(quota: &Quota, length: u64) -> Option<u64> {
    let (window, hold) = (WINDOW.as_micros() as u64, HOLD.as_micros() as u64);
    let held = (HONEST as u64 + 1) * MOST;
    match quota.algorithm() {
        "token_bucket" => Some(LIMIT + LIMIT * length / window + held.min((LIMIT * hold).div_ceil(window))),
        "sliding_log" => (length <= window).then_some(LIMIT + held.min(LIMIT)),
        // So many windows by the clock can lie in it, or reach into it.
        _ => Some(LIMIT * (length / window + 2)),
    }
}

/// Every interval that begins and ends with an admission.
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
async fn a_killed_process_loses_what_it_held_and_invents_nothing() {
    let (server, namespace) = (harness::shared(), namespace());
    let mut victim = spawn(server.url(), &namespace, SCARCE.0, "hold");
    victim.says().await;
    victim.start().await;
    let says = victim.says().await;
    let (admitted, held) = (says["admitted"].as_u64().unwrap(), says["held"].as_u64().unwrap());
    assert!(held > 0 && held <= MOST, "{says}");
    victim.process.kill().await.unwrap();

    let gate = gate(server.url(), &namespace, SCARCE.0);
    let mut others = 0;
    while gate.check("hot").await.unwrap().is_allowed() {
        others += 1;
    }
    let limit = SCARCE.1.limit();
    // What it had just asked for belongs to the most that it held, too.
    let all = admitted + others;
    assert!(all <= limit, "{admitted} by the victim and {others} by others");
    assert!(all >= limit - MOST, "{all} of {limit}, and the victim held {held}");
}

fn spawn(url: &str, namespace: &str, gate: &str, job: &str) -> Instance {
    Instance::spawn("leases::fleet::leasing_instance", ORDERS, &[url, namespace, gate, job])
}

/// Not a test of its own: what the processes of the tests above run.
#[tokio::test]
#[ignore = "run by the others"]
async fn leasing_instance() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let [url, namespace, name, job] = *orders.split(' ').collect::<Vec<_>>() else { panic!("{orders}") };
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

#[expect(clippy::print_stdout, reason = "how an instance answers")]
fn say(line: &Value) {
    println!("\n{line}");
}

async fn work(gate: &Gate, job: &str) -> Value {
    if job == "hold" {
        return hold(&gate.clone().leased(lease().hold(HOUR))).await;
    }
    // The server's time by this process's: of three attempts the closest.
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
    let mut note = |decision: &tidegate::Decision, before: Instant| {
        if decision.is_allowed() {
            let is_leased = decision.source() == Source::Lease;
            leased += u64::from(is_leased);
            // A lease's end is looked at after it was asked.
            let local = now_us + (before - sent).as_micros() as u64;
            admitted.push(if is_leased { local } else { decision.server_now_us() });
        }
        decision.is_allowed()
    };
    while sent.elapsed() < 4 * WINDOW {
        if job == "hoard" {
            // Gets a lease, lets it lie, and spends it in its last moments.
            let held_since = Instant::now();
            while gate.lease_stats().held < MOST / 2 && held_since.elapsed() < HOLD {
                let before = Instant::now();
                note(&gate.check("hot").await.unwrap(), before);
                tokio::task::yield_now().await;
            }
            let until = Instant::now() + HOLD * 9 / 10;
            soon("the last moment", async || Instant::now() >= until).await;
        }
        loop {
            let before = Instant::now();
            let decision = match gate.try_check("hot") {
                Some(decision) => decision,
                None if job == "hoard" => break,
                None => gate.check("hot").await.unwrap(),
            };
            if !note(&decision, before) || sent.elapsed() >= 4 * WINDOW {
                break;
            }
            // Lets the refill arrive: the instance has one thread.
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    json!({"admitted": admitted, "leased": leased, "error_us": error_us})
}

/// Spends until much is held, and says so.
async fn hold(gate: &Gate) -> Value {
    let mut admitted = 0;
    soon("much is held", async || {
        admitted += u64::from(gate.check("hot").await.unwrap().is_allowed());
        gate.lease_stats().held >= MOST / 2
    })
    .await;
    json!({"admitted": admitted, "held": gate.lease_stats().held})
}
