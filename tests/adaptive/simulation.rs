//! A simulation of a service behind an in-flight limit: a queue with some servers, fed by open arrivals. Seeded,
//! so each run gives the same numbers.
//!
//! An arrival that finds no room is denied. Several processes share the limit, as they do over Redis: each has
//! a copy of the limit, and reports when it is due. Calls between them take no time.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use fastrand::Rng;
use tidegate::reference::adapt::{Adaptation, Bounds, Report};

use super::gradient2::Gradient2;

pub const SECOND_US: f64 = 1_000_000.0;

/// The time that an operation takes without a queue, relative to [`Phase::latency_us`], which is its mean.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Lognormal, with this standard deviation of the logarithm.
    Lognormal(f64),
    /// A Pareto distribution with the exponent 1.5, whose variance is infinite.
    HeavyTail,
    /// Nine of ten operations take a tenth, and need no server: hits of a cache. The others take about ten
    /// times as long.
    TwoKinds,
}

/// The service and its load, from a time on.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub from_s: f64,
    pub arrivals_per_s: f64,
    pub servers: usize,
    pub latency_us: f64,
    /// The service rejects an operation at once, as overloaded, if this number is there.
    pub rejects_above: usize,
}

impl Phase {
    pub const fn new(from_s: f64, arrivals_per_s: f64, servers: usize, latency_us: f64) -> Self {
        Self { from_s, arrivals_per_s, servers, latency_us, rejects_above: usize::MAX }
    }
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub shape: Shape,
    pub phases: Vec<Phase>,
    pub seconds: f64,
    pub processes: usize,
    pub seed: u64,
}

/// The limiter of the operations in flight.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    Fixed(u64),
    Adaptive(Bounds),
    Gradient2 { max: f64 },
}

/// The results, by seconds.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The end and the latency of each operation that the service did not reject, in s and µs.
    ended: Vec<(f32, f32)>,
    /// The time of each denial, in s.
    denied: Vec<f32>,
    /// The limit at each second.
    pub limits: Vec<f64>,
    /// The baseline at each second, in µs.
    pub baselines_us: Vec<f64>,
    /// The windows of probes at the seconds.
    pub probing: Vec<bool>,
}

impl Outcome {
    fn latencies(&self, from_s: f64, to_s: f64) -> Vec<f32> {
        let is_in = |at_s: f32| (from_s..to_s).contains(&f64::from(at_s));
        let mut found: Vec<f32> =
            self.ended.iter().filter(|(at_s, _)| is_in(*at_s)).map(|(_, us)| *us).collect();
        found.sort_by(f32::total_cmp);
        found
    }

    /// Returns the operations per second.
    pub fn throughput(&self, from_s: f64, to_s: f64) -> f64 {
        self.latencies(from_s, to_s).len() as f64 / (to_s - from_s)
    }

    /// Returns the latency in ms that this part of the operations does not exceed.
    pub fn quantile_ms(&self, part: f64, from_s: f64, to_s: f64) -> f64 {
        let latencies = self.latencies(from_s, to_s);
        let at = (latencies.len().saturating_sub(1) as f64 * part) as usize;
        latencies.get(at).map_or(0.0, |us| f64::from(*us) / 1_000.0)
    }

    pub fn denials(&self, from_s: f64, to_s: f64) -> usize {
        self.denied.iter().filter(|at_s| (from_s..to_s).contains(&f64::from(**at_s))).count()
    }

    /// Returns the limits of these seconds.
    pub fn limits(&self, from_s: usize, to_s: usize) -> &[f64] {
        &self.limits[from_s..to_s.min(self.limits.len())]
    }

    pub fn mean_limit(&self, from_s: usize, to_s: usize) -> f64 {
        let limits = self.limits(from_s, to_s);
        limits.iter().sum::<f64>() / limits.len() as f64
    }
}

/// Runs a scenario under a policy.
pub fn run(scenario: &Scenario, policy: Policy) -> Outcome {
    Simulation::new(scenario, policy).run()
}

struct Operation {
    admitted_us: f64,
    process: usize,
    work_us: f64,
    kind: OperationKind,
}

#[derive(Clone, Copy, PartialEq)]
enum OperationKind {
    NeedsServer,
    NeedsNone,
    Rejected,
}

enum Event {
    Arrival { phase: usize },
    End(Operation),
    Second,
}

/// Orders events by their time, then by their number.
struct Due {
    at_us: f64,
    number: u64,
    event: Event,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at_us.total_cmp(&self.at_us).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

/// A process's copy of the limit, and its observations.
#[derive(Clone, Copy, Default)]
struct Process {
    limit: u64,
    report: Report,
    in_flight: u64,
    since_us: f64,
    reports_at_us: f64,
}

enum Limit {
    Fixed(u64),
    Adaptive { shared: Adaptation, bounds: Bounds, processes: Vec<Process> },
    Gradient2(Gradient2),
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    limit: Limit,
    rng: Rng,
    now_us: f64,
    due: BinaryHeap<Due>,
    numbers: u64,
    held: u64,
    busy: usize,
    queue: VecDeque<Operation>,
    outcome: Outcome,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, policy: Policy) -> Self {
        let limit = match policy {
            Policy::Fixed(limit) => Limit::Fixed(limit),
            Policy::Gradient2 { max } => Limit::Gradient2(Gradient2::new(max)),
            Policy::Adaptive(bounds) => {
                let process = Process { limit: bounds.min, ..Process::default() };
                let processes = vec![process; scenario.processes];
                Limit::Adaptive { shared: Adaptation::new(&bounds, 0), bounds, processes }
            }
        };
        Self {
            scenario,
            limit,
            rng: Rng::with_seed(scenario.seed),
            now_us: 0.0,
            due: BinaryHeap::new(),
            numbers: 0,
            held: 0,
            busy: 0,
            queue: VecDeque::new(),
            outcome: Outcome::default(),
        }
    }

    fn run(mut self) -> Outcome {
        for (phase, Phase { from_s, arrivals_per_s, .. }) in self.scenario.phases.iter().enumerate() {
            if *arrivals_per_s > 0.0 {
                self.schedule(from_s * SECOND_US, Event::Arrival { phase });
            }
        }
        self.schedule(0.0, Event::Second);
        while let Some(Due { at_us, event, .. }) = self.due.pop() {
            if at_us >= self.scenario.seconds * SECOND_US {
                break;
            }
            self.now_us = at_us;
            match event {
                Event::Arrival { phase } => self.arrive(phase),
                Event::End(operation) => self.end(&operation),
                Event::Second => self.second(),
            }
        }
        self.outcome
    }

    fn schedule(&mut self, at_us: f64, event: Event) {
        self.numbers += 1;
        self.due.push(Due { at_us, number: self.numbers, event });
    }

    fn phase(&self) -> Phase {
        let mut phases = self.scenario.phases.iter();
        *phases.rfind(|phase| phase.from_s * SECOND_US <= self.now_us).expect("a phase from 0 s on")
    }

    fn arrive(&mut self, phase: usize) {
        let next_us =
            self.now_us + self.exponential() / self.scenario.phases[phase].arrivals_per_s * SECOND_US;
        let ends_s = self.scenario.phases.get(phase + 1).map_or(f64::MAX, |next| next.from_s);
        if next_us < ends_s * SECOND_US {
            self.schedule(next_us, Event::Arrival { phase });
        }
        let process = self.rng.usize(..self.scenario.processes);
        if self.held < self.acquire(process) {
            self.admit(process);
        } else {
            self.outcome.denied.push((self.now_us / SECOND_US) as f32);
        }
    }

    fn admit(&mut self, process: usize) {
        let phase = self.phase();
        self.held += 1;
        self.count(process, 1);
        let (mut kind, factor) = match self.scenario.shape {
            Shape::Lognormal(sigma) => {
                (OperationKind::NeedsServer, (sigma * self.normal() - sigma * sigma / 2.0).exp())
            }
            Shape::HeavyTail => (OperationKind::NeedsServer, self.uniform().powf(-1.0 / 1.5) / 3.0),
            Shape::TwoKinds if self.rng.usize(..10) == 0 => {
                (OperationKind::NeedsServer, 10.0 * self.exponential())
            }
            Shape::TwoKinds => (OperationKind::NeedsNone, 0.1),
        };
        let mut work_us = phase.latency_us * factor;
        if self.busy + self.queue.len() >= phase.rejects_above {
            (kind, work_us) = (OperationKind::Rejected, 1_000.0);
        }
        let operation = Operation { admitted_us: self.now_us, process, work_us, kind };
        match kind {
            OperationKind::NeedsServer => self.queue.push_back(operation),
            _ => self.schedule(self.now_us + work_us, Event::End(operation)),
        }
        self.serve(phase.servers);
    }

    fn serve(&mut self, servers: usize) {
        while self.busy < servers
            && let Some(operation) = self.queue.pop_front()
        {
            self.busy += 1;
            self.schedule(self.now_us + operation.work_us, Event::End(operation));
        }
    }

    fn end(&mut self, operation: &Operation) {
        self.held -= 1;
        self.count(operation.process, -1);
        if operation.kind == OperationKind::NeedsServer {
            self.busy -= 1;
            self.serve(self.phase().servers);
        }
        let latency_us = self.now_us - operation.admitted_us;
        let is_rejected = operation.kind == OperationKind::Rejected;
        if !is_rejected {
            self.outcome.ended.push(((self.now_us / SECOND_US) as f32, latency_us as f32));
        }
        match &mut self.limit {
            Limit::Fixed(_) => {}
            Limit::Gradient2(limit) => limit.sample(self.now_us, latency_us, self.held + 1, is_rejected),
            Limit::Adaptive { processes, .. } => {
                let report = &mut processes[operation.process].report;
                match is_rejected {
                    true => {
                        report.overloads += 1;
                        report.busy_us = report.busy_us.saturating_sub(latency_us as u64);
                    }
                    false => {
                        report.operations += 1;
                        report.ended_ms += latency_us / 1_000.0;
                        report.squares += latency_us / 1_000.0 * (latency_us / 1_000.0);
                    }
                }
                self.report(operation.process);
            }
        }
    }

    /// Returns the limit of an acquire.
    fn acquire(&mut self, process: usize) -> u64 {
        match &mut self.limit {
            Limit::Fixed(limit) => *limit,
            Limit::Gradient2(limit) => limit.limit(),
            Limit::Adaptive { processes, .. } => {
                let report = &mut processes[process].report;
                report.peak = report.peak.max(self.held + 1);
                self.report(process)
            }
        }
    }

    /// Adds up the time in flight of a process.
    fn count(&mut self, process: usize, change: i64) {
        if let Limit::Adaptive { processes, .. } = &mut self.limit {
            processes[process].count(change, self.now_us);
        }
    }

    /// Has a process report if it is due. Returns its limit.
    fn report(&mut self, process: usize) -> u64 {
        let Limit::Adaptive { shared, bounds, processes } = &mut self.limit else { return 0 };
        let process = &mut processes[process];
        if process.reports_at_us <= self.now_us {
            process.count(0, self.now_us);
            let reported = shared.report(&std::mem::take(&mut process.report), bounds, self.now_us as u64);
            process.reports_at_us = self.now_us + reported.wait_us as f64;
            process.limit = shared.limit(bounds);
        }
        process.limit
    }

    fn second(&mut self) {
        let (limit, baseline_us, is_probing) = match &self.limit {
            Limit::Fixed(limit) => (*limit as f64, 0.0, false),
            Limit::Gradient2(limit) => (limit.limit() as f64, 0.0, false),
            Limit::Adaptive { shared, .. } => (shared.limit, shared.baseline_us, shared.resume > 0.0),
        };
        self.outcome.limits.push(limit);
        self.outcome.baselines_us.push(baseline_us);
        self.outcome.probing.push(is_probing);
        self.schedule(self.now_us + SECOND_US, Event::Second);
    }

    /// Returns a number above 0 and below 1.
    fn uniform(&mut self) -> f64 {
        self.rng.f64().max(1e-12)
    }

    fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }

    fn normal(&mut self) -> f64 {
        let (radius, turn) = (2.0 * self.exponential(), self.rng.f64());
        radius.sqrt() * (std::f64::consts::TAU * turn).cos()
    }
}

impl Process {
    fn count(&mut self, change: i64, now_us: f64) {
        let elapsed_us = (now_us as u64).saturating_sub(self.since_us as u64);
        self.report.busy_us += self.in_flight * elapsed_us;
        self.since_us = now_us;
        self.in_flight = self.in_flight.saturating_add_signed(change);
    }
}
