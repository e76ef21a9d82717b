//! A fleet under steady load, and one fault in the middle of it.

use std::time::Duration;

use serde_json::json;

use crate::support::fixture::namespace;
use crate::support::instance::Instance;
use crate::support::load::{Fallback, Job, Report, now_us};

use super::ORDERS;
use super::bounds::{Gates, gates};
use super::faults::{Fault, Ground, Way};

pub const DEADLINE_MS: u64 = 100;

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub processes: usize,
    pub before: Duration,
    pub hold: Duration,
    pub after: Duration,
}

/// What the processes told, and what happened to them.
pub struct Run {
    pub fault: &'static Fault,
    pub fallback: Fallback,
    pub ground: Ground,
    pub gates: Gates,
    pub reports: Vec<Report>,
    pub start_us: u64,
    /// Connections made since things broke.
    pub connections: u64,
}

pub async fn run(fault: &'static Fault, fallback: Fallback, size: Size) -> Run {
    let mut ground = Ground::new(fault.way, size.hold);
    let job = Job {
        url: ground.url(fault.way),
        namespace: namespace(),
        gates: "chaos".to_owned(),
        one_by_one: false,
        on_failure: fallback,
        deadline_ms: DEADLINE_MS,
        pause_ms: 10,
    };
    let mut fleet: Vec<Instance> = (0..size.processes)
        .map(|process| {
            let job = Job { one_by_one: process % 2 == 1, ..job.clone() };
            Instance::spawn("chaos::instance", ORDERS, &[&serde_json::to_string(&job).unwrap()])
        })
        .collect();
    for instance in &mut fleet {
        assert_eq!(instance.says().await, json!({"ready": true}));
    }
    // As long as nobody has asked, no window has begun.
    let start_us = now_us();
    for instance in &mut fleet {
        instance.start().await;
    }
    tokio::time::sleep(size.before).await;
    let before = connections(&ground, fault.way);
    // It blocks; the processes do not mind.
    (fault.happen)(&mut ground);
    let is_late = fault.again > size.after * 2;
    tokio::time::sleep(if is_late { fault.again } else { size.after }).await;
    // A server that was started anew counts anew.
    let now = connections(&ground, fault.way);
    let connections = if now < before { now } else { now - before };
    for instance in &mut fleet {
        // The second line is the end.
        instance.start().await;
    }
    let mut reports = Vec::new();
    for instance in &mut fleet {
        reports.push(serde_json::from_value(instance.says().await).unwrap());
    }
    Run { fault, fallback, ground, gates: gates(), reports, start_us, connections }
}

fn connections(ground: &Ground, way: Way) -> u64 {
    if way == Way::Proxied {
        return ground.proxy.counts().connections;
    }
    let stats = ground.server.cli(&["INFO", "stats"]).unwrap();
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap()
}
