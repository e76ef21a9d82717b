//! A fleet under steady load, and one fault in the middle of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::fixture::{PATIENCE, namespace};
use crate::support::fleet::Fleet;
use crate::support::load::{Checked, Fallback, Job, Report};
use crate::support::stalls::{LostTime, Stalls, extended};

use super::JOB;
use super::bounds::{Class, Gate, gates};
use super::faults::{Fault, Ground};

pub const DEADLINE_MS: u64 = 100;

/// Number of processes, and durations of the phases.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub processes: u64,
    pub before: Duration,
    pub hold: Duration,
    /// Number of repetitions of repeated faults.
    pub times: u32,
    pub after: Duration,
}

/// The reports of the processes, and the fault that happened to them.
pub struct Run {
    pub fault: &'static Fault,
    pub fallback: Fallback,
    pub ground: Ground,
    pub gates: Vec<Gate>,
    pub reports: Vec<Report>,
    pub start_us: u64,
    /// Connections accepted since the fault, if a server or a proxy counts them.
    pub connections: Option<u64>,
    /// The longest time in which a server, or this process with its proxy, was not scheduled: before the
    /// fault, and after the repair.
    pub stalled: [Duration; 2],
    /// The time after the repair in which the processes of the fleet were not scheduled.
    pub fleet_lost: Duration,
    pub charged: Vec<Charged>,
}

/// Units of a fresh key that Redis was charged in the end, and the minimum: all units admitted since the last
/// loss of state.
pub struct Charged {
    pub gate: usize,
    pub key: u64,
    pub charged: u64,
    pub min: u64,
}

pub async fn run(fault: &'static Fault, fallback: Fallback, size: Size) -> Run {
    let mut ground = Ground::new(fault.topology, size.hold, size.times);
    let job = Job {
        to: ground.to(),
        namespace: namespace(),
        gates: "chaos".to_owned(),
        one_by_one: false,
        on_failure: fallback,
        instances: size.processes,
        connections: ground.max_connections(),
        deadline_ms: DEADLINE_MS,
        pause_ms: 12,
    };
    let processes = watched(&ground);
    let mut fleet = Fleet::start("chaos::instance", JOB, &job).await;
    let stalls = Stalls::watch(&processes);
    tokio::time::sleep(size.before).await;
    fleet.note().await;
    let before = ground.connections();
    let stalled_before = stalls.end().worst();
    // This blocks the test's thread. The load runs in other processes.
    (fault.inject)(&mut ground);
    let processes = watched(&ground);
    let (stalled_after, fleet_lost) = wait_with_stalls(&processes, &fleet.processes(), size.after).await;
    let now = ground.connections();
    let stalled = [stalled_before, stalled_after];
    // A restarted server counts from 0.
    let since = |now: u64| if before > Some(now) { now } else { now - before.unwrap_or_default() };
    let connections = now.map(since);
    let start_us = fleet.start_us;
    let (reports, _fleet) = fleet.end().await;
    let gates = gates(size.processes);
    let charged = charged(&job, &gates, &ground, &reports).await;
    Run { fault, fallback, ground, gates, reports, start_us, connections, stalled, fleet_lost, charged }
}

/// Waits for this time, and for as much longer as a recovery may take because of stalls meanwhile. Returns the
/// longest stall of a server, and the time that the fleet lost.
async fn wait_with_stalls(servers: &[String], fleet: &[String], time: Duration) -> (Duration, Duration) {
    let start = Instant::now();
    let (mut stalled, mut fleet_lost) = (Duration::ZERO, Duration::ZERO);
    loop {
        let rest = extended(time, stalled.max(fleet_lost)).saturating_sub(start.elapsed());
        if rest.is_zero() {
            return (stalled, fleet_lost);
        }
        let (stalls, lost) = (Stalls::watch(servers), LostTime::start(fleet));
        tokio::time::sleep(rest).await;
        stalled = stalled.max(stalls.end().worst());
        fleet_lost += lost.end();
    }
}

fn watched(ground: &Ground) -> Vec<String> {
    let mut processes = ground.processes();
    processes.push("self".to_owned());
    processes
}

/// Returns the charges of all fresh keys for which a fallback decided. Waits until each key has been charged,
/// at most [`PATIENCE`] in total.
async fn charged(job: &Job, gates: &[Gate], ground: &Ground, reports: &[Report]) -> Vec<Charged> {
    let mut keys: BTreeMap<(usize, u64), (u64, bool)> = BTreeMap::new();
    let checks = reports.iter().flat_map(|report| &report.checks);
    let is_fresh =
        |check: &&Checked| gates[check.gate].class == Class::Fresh && check.called_us > ground.lost_us;
    for check in checks.filter(is_fresh).filter(|check| check.allowed) {
        let (admitted, is_local) = keys.entry((check.gate, check.key)).or_default();
        *admitted += u64::from(check.is_local() || check.is_redis());
        *is_local |= check.is_local();
    }
    let limiter = Job { on_failure: Fallback::Error, deadline_ms: 10_000, ..job.clone() }.limiter();
    let mut all = Vec::new();
    let start = Instant::now();
    for ((index, key), (admitted, _)) in keys.into_iter().filter(|(_, (_, is_local))| *is_local) {
        let Gate { name, quota, .. } = &gates[index];
        let (gate, min) = (limiter.gate(name, *quota), admitted.min(quota.limit()));
        loop {
            let peek = gate.peek(key.to_string()).await.unwrap();
            let charged = peek.limit() - peek.remaining();
            if charged >= min || start.elapsed() > PATIENCE {
                all.push(Charged { gate: index, key, charged, min });
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    all
}
