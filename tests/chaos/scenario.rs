//! A fleet under steady load, and one fault in the middle of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::fixture::{PATIENCE, namespace};
use crate::support::fleet::Fleet;
use crate::support::load::{Asked, Fallback, Job, Report};
use crate::support::stalls::Stalls;

use super::ORDERS;
use super::bounds::{Class, Gate, gates};
use super::faults::{Fault, Ground};

pub const DEADLINE_MS: u64 = 100;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub processes: u64,
    pub before: Duration,
    pub hold: Duration,
    /// Of faults that come again and again.
    pub times: u32,
    pub after: Duration,
}

/// What the processes told, and what happened to them.
pub struct Run {
    pub fault: &'static Fault,
    pub fallback: Fallback,
    pub ground: Ground,
    pub gates: Vec<Gate>,
    pub reports: Vec<Report>,
    pub start_us: u64,
    /// Connections made since things broke, where somebody counts them.
    pub connections: Option<u64>,
    /// The most that a server, or this process with its proxy, was not let run at a time: before
    /// things broke, and since they were mended.
    pub stalled: [Duration; 2],
    pub charged: Vec<Charged>,
}

/// What Redis knows in the end of a fresh key, and what it should know at least: all that was admitted
/// since state was lost.
pub struct Charged {
    pub gate: usize,
    pub key: u64,
    pub charged: u64,
    pub least: u64,
}

pub async fn run(fault: &'static Fault, fallback: Fallback, size: Size) -> Run {
    let mut ground = Ground::new(fault.way, size.hold, size.times);
    let job = Job {
        to: ground.to(),
        namespace: namespace(),
        gates: "chaos".to_owned(),
        one_by_one: false,
        on_failure: fallback,
        instances: size.processes,
        connections: ground.most_connections(),
        deadline_ms: DEADLINE_MS,
        pause_ms: 12,
    };
    let mut fleet = Fleet::start("chaos::instance", ORDERS, &job).await;
    let stalls = Stalls::watch(&watched(&ground));
    tokio::time::sleep(size.before).await;
    let stalled_before = stalls.end().worst();
    fleet.note().await;
    let before = ground.connections();
    // It blocks; the processes do not mind.
    (fault.happen)(&mut ground);
    let stalls = Stalls::watch(&watched(&ground));
    tokio::time::sleep(size.after).await;
    let now = ground.connections();
    let stalled = [stalled_before, stalls.end().worst()];
    // A server that was started anew counts anew.
    let since = |now: u64| if before > Some(now) { now } else { now - before.unwrap_or_default() };
    let connections = now.map(since);
    let start_us = fleet.start_us;
    let (reports, _fleet) = fleet.end().await;
    let gates = gates(size.processes);
    let charged = charged(&job, &gates, &ground, &reports).await;
    Run { fault, fallback, ground, gates, reports, start_us, connections, stalled, charged }
}

fn watched(ground: &Ground) -> Vec<String> {
    let mut processes = ground.processes();
    processes.push("self".to_owned());
    processes
}

/// Of all fresh keys of which a process decided by itself, when all of that has been charged, or too long
/// afterwards.
async fn charged(job: &Job, gates: &[Gate], ground: &Ground, reports: &[Report]) -> Vec<Charged> {
    let mut keys: BTreeMap<(usize, u64), (u64, bool)> = BTreeMap::new();
    let asked = reports.iter().flat_map(|report| &report.asked);
    let is_fresh =
        |asked: &&Asked| gates[asked.gate].class == Class::Fresh && asked.called_us > ground.lost_us;
    for asked in asked.filter(is_fresh).filter(|asked| asked.allowed) {
        let (admitted, is_local) = keys.entry((asked.gate, asked.key)).or_default();
        *admitted += u64::from(asked.is_local() || asked.is_redis());
        *is_local |= asked.is_local();
    }
    let limiter = Job { on_failure: Fallback::Error, deadline_ms: 10_000, ..job.clone() }.limiter();
    let mut all = Vec::new();
    let start = Instant::now();
    for ((index, key), (admitted, _)) in keys.into_iter().filter(|(_, (_, is_local))| *is_local) {
        let Gate { name, quota, .. } = &gates[index];
        let (gate, least) = (limiter.gate(name, *quota), admitted.min(quota.limit()));
        loop {
            let peek = gate.peek(key.to_string()).await.unwrap();
            let charged = peek.limit() - peek.remaining();
            if charged >= least || start.elapsed() > PATIENCE {
                all.push(Charged { gate: index, key, charged, least });
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    all
}
