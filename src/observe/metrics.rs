//! Metrics of a limiter, for the `metrics` recorder that the program uses (feature `metrics`).
//!
//! ```
//! use tidegate::Limiter;
//! use tidegate::metrics::Metrics;
//!
//! // Install the program's recorder first, such as metrics-exporter-prometheus's `install_recorder()`.
//! let limiter = Limiter::builder().in_memory().observer(Metrics::new()).build()?;
//! # Ok::<(), tidegate::Error>(())
//! ```
//!
//! # Metrics and labels
//!
//! [`names`] lists the metrics with their units. The number of label values is bounded. Clients cannot add any, except
//! names of gates by the HTTP API of the crate `tidegate-server`:
//!
//! | label | values |
//! | --- | --- |
//! | `gate` | the name of the gate; of a rule its [readable name](crate::Event::GateNamed), such as `api / user`. Beyond some 16,000 names: `other` |
//! | `outcome` | `allowed`, `denied`; `shadow_denied`: admitted only because of shadow mode |
//! | `source` | the component that decided: [`Source`](crate::Source) |
//! | `kind` | of an error: [`Error::kind`]; of an operator's override: `switch`, `override` |
//! | `fate` | of leased units: `taken`, `spent`, `returned`, `stranded`; of changes of a region: `applied`, `failed`, `skipped` |
//! | `peer` | the name of another region |
//! | `result` | `good`, `bad` |
//! | `code` | of a warning: [`Warning::code`](crate::Warning::code) |
//!
//! The series of a gate appear with its first decision, its first lease and its first permit, those of warnings of other
//! crates with their first report, those of replication in a limiter with peers; all others exist from the start.
//! All limiters of a process share the same series.
//!
//! Configure the histogram buckets of a Prometheus recorder: [`names::SECONDS`] and [`names::CHECKS`], as
//! the example `prometheus` of `tidegate-http` does.

mod gate_metrics;
pub mod names;

use std::sync::OnceLock;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};

use self::gate_metrics::Gates;
use self::names::{Metric, MetricKind};
use crate::decision::Decision;
use crate::error::Error;
use crate::observe::observer::{Event, Observer};
#[cfg(feature = "regions")]
use crate::observe::replication::Status;
use crate::observe::warning;
use crate::runtime::clock::Clock;

/// One wait in this number is recorded. A recorder stores each value until it is scraped, and callers of one
/// key would contend for the histogram.
const ONE_IN: u32 = 8;

/// Counts the events of a limiter. Pass it to [`Builder::observer`](crate::Builder::observer).
///
/// Each decision costs one counter increment. Finding the counter takes neither a lock nor an allocation.
pub struct Metrics {
    register: Register,
    gates: Gates,
    wait: Histogram,
    call: Histogram,
    call_checks: Histogram,
    call_groups: Counter,
    /// By kind. Created at the start: Prometheus does not count the first value of a new series as an
    /// increase.
    errors: [(&'static str, Counter); Error::KINDS.len()],
    breaker_open: Gauge,
    breaker_opened: Counter,
    instances: OnceLock<Gauge>,
    switches: Gauge,
    overrides: Gauge,
    rules: OnceLock<Rules>,
}

/// Created when rules files are followed.
struct Rules {
    count: Gauge,
    loaded: Gauge,
    good: Counter,
    bad: Counter,
    is_last_good: Gauge,
}

impl Metrics {
    /// Records to the program's recorder. Install that recorder first: events before its installation are
    /// lost.
    #[must_use]
    pub fn new() -> Self {
        Self::to(Register::global())
    }

    /// Records to the given recorder.
    #[must_use]
    pub fn with_recorder(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Self::to(Register::of(recorder))
    }

    /// Labels gates of rules by their names in Redis, such as `auth.auth_type-login`, for dashboards and alerts that have
    /// these labels. The next minor version removes the method.
    #[must_use]
    pub fn with_stored_gate_names(mut self) -> Self {
        self.gates.names = None;
        self
    }

    fn to(register: Register) -> Self {
        register.describe_all();
        let breaker_open = register.gauge(&names::BREAKER_OPEN, &[]);
        // Creates the series before the first outage.
        breaker_open.increment(0.0);
        for code in warning::CODES {
            register.counter(&names::WARNINGS, &[("code", code)]).increment(0);
        }
        let metrics = Self {
            gates: Gates::new(),
            wait: register.histogram(&names::WAIT),
            call: register.histogram(&names::CALL),
            call_checks: register.histogram(&names::CALL_CHECKS),
            call_groups: register.counter(&names::CALL_GROUPS, &[]),
            errors: Error::KINDS.map(|kind| (kind, register.counter(&names::ERRORS, &[("kind", kind)]))),
            breaker_open,
            breaker_opened: register.counter(&names::BREAKER_OPENED, &[]),
            instances: OnceLock::new(),
            switches: register.gauge(&names::OVERRIDES, &[("kind", "switch")]),
            overrides: register.gauge(&names::OVERRIDES, &[("kind", "override")]),
            rules: OnceLock::new(),
            register,
        };
        metrics.on(&Event::OverridesChanged { switches: 0, overrides: 0 });
        metrics
    }

    fn lease_units(&self, gate: &str, fate: usize, units: u64) {
        let lease = self.gates.named(gate).lease(&self.register);
        lease.units[fate].increment(units);
        match fate {
            TAKEN => lease.held.increment(units as f64),
            _ => lease.held.decrement(units as f64),
        }
    }

    fn rules(&self) -> &Rules {
        self.rules.get_or_init(|| {
            let reloads = |result| self.register.counter(&names::RELOADS, &[("result", result)]);
            Rules {
                count: self.register.gauge(&names::RULES, &[]),
                loaded: self.register.gauge(&names::RULES_LOADED, &[]),
                good: reloads("good"),
                bad: reloads("bad"),
                is_last_good: self.register.gauge(&names::RELOAD_GOOD, &[]),
            }
        })
    }
}

// Indices into `gate_metrics::FATES`.
const TAKEN: usize = 0;
const SPENT: usize = 1;
const RETURNED: usize = 2;
const STRANDED: usize = 3;

impl Observer for Metrics {
    #[inline]
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Decided(decision) => self.decided(decision),
            other => self.record(other),
        }
    }
}

impl Metrics {
    fn decided(&self, decision: &Decision) {
        let counts = self.gates.of(&decision.gate);
        counts.decision(decision, &self.register).increment(1);
        if decision.is_near_limit() {
            counts.near_limit(&self.register).increment(1);
        }
    }

    fn record(&self, event: &Event<'_>) {
        let register = &self.register;
        let series = |gate| self.gates.named(gate);
        let permits = |gate| series(gate).permits(register);
        // For rare events, which the registry may look up.
        let counter = |metric, gate| register.counter(metric, &[("gate", series(gate).name())]);
        match *event {
            Event::Banned { gate, .. } => counter(&names::BANS, gate).increment(1),
            Event::Granted { gate, granted, denied } => {
                let [allowed_units, denied_units] = series(gate).grant_units(register);
                allowed_units.increment(granted);
                denied_units.increment(denied);
            }
            Event::DebtCapped { gate, units } => counter(&names::DEBT_CAPPED, gate).increment(units),
            Event::Waited(took) if fastrand::u32(..ONE_IN) == 0 => self.wait.record(took),
            Event::Failed { error, .. } => self.failed(error),
            Event::Warned(warning) => {
                let counter = register.counter(&names::WARNINGS, &[("code", warning.code())]);
                counter.increment(warning.occurrences());
            }
            Event::BreakerOpened => {
                self.breaker_open.increment(1.0);
                self.breaker_opened.increment(1);
            }
            Event::BreakerClosed => self.breaker_open.decrement(1.0),
            Event::Called { checks, groups, took } => {
                self.call.record(took);
                self.call_checks.record(checks as f64);
                self.call_groups.increment(groups as u64);
            }
            Event::Leased { gate, units } => self.lease_units(gate, TAKEN, units),
            Event::Spent { gate, units } => self.lease_units(gate, SPENT, units),
            Event::Returned { gate, units } => self.lease_units(gate, RETURNED, units),
            Event::Stranded { gate, units } => self.lease_units(gate, STRANDED, units),
            Event::Settled { gate, settlement } => {
                series(gate).settlement(settlement, register).increment(1);
            }
            Event::PermitsHeld { gate, change } => permits(gate).held.increment(change as f64),
            Event::PermitsWaiting { gate, change } => permits(gate).waiting.increment(change as f64),
            Event::PermitsLapsed { gate, units } => permits(gate).lapsed.increment(units),
            Event::PermitsRestored { gate, units } => permits(gate).restored.increment(units),
            Event::LimitAdapted { gate, limit } => {
                let gauge = register.gauge(&names::ADAPTIVE_LIMIT, &[("gate", series(gate).name())]);
                gauge.set(limit as f64);
            }
            Event::InstancesCounted(instances) => {
                let gauge = self.instances.get_or_init(|| register.gauge(&names::INSTANCES, &[]));
                gauge.set(instances as f64);
            }
            Event::OverridesChanged { switches, overrides } => {
                self.switches.set(switches as f64);
                self.overrides.set(overrides as f64);
            }
            #[cfg(feature = "regions")]
            Event::Replicated { now, last } => self.replicated(now, last),
            Event::GateNamed { gate, readable } => self.gates.add_name(gate, readable),
            Event::RulesLoaded(rules) => self.rules_loaded(rules),
            Event::RulesReloaded(Ok(rules)) => {
                self.rules_loaded(rules);
                self.rules().good.increment(1);
            }
            Event::RulesReloaded(Err(_)) => {
                self.rules().bad.increment(1);
                self.rules().is_last_good.set(0.0);
            }
            _ => {}
        }
    }

    fn failed(&self, error: &Error) {
        let kind = error.kind();
        if let Some((_, counter)) = self.errors.iter().find(|(known, _)| *known == kind) {
            counter.increment(1);
        }
    }

    #[cfg(feature = "regions")]
    fn replicated(&self, now: &Status, last: &Status) {
        self.register.gauge(&names::OUTBOX_KEYS, &[]).set(now.outbox as f64);
        for (peer, last) in now.peers.iter().zip(&last.peers) {
            let label = ("peer", &*peer.name);
            let gauge = |metric| self.register.gauge(metric, &[label]);
            gauge(&names::CUT_OFF).set(f64::from(peer.is_cut_off));
            gauge(&names::STALENESS).set(peer.staleness.unwrap_or_default());
            gauge(&names::LAG).set(peer.lag);
            // A region that was never heard of has none.
            peer.silent.inspect(|silent| gauge(&names::HEARD).set(*silent));
            for (fate, changes) in [
                ("applied", peer.applied - last.applied),
                ("failed", peer.failed - last.failed),
                ("skipped", peer.skipped - last.skipped),
            ] {
                self.register.counter(&names::CHANGES, &[label, ("fate", fate)]).increment(changes);
            }
            for (metric, count) in [
                (&names::FENCED, peer.fenced - last.fenced),
                (&names::GAP, peer.gaps - last.gaps),
                (&names::REWOUND, peer.rewound - last.rewound),
            ] {
                self.register.counter(metric, &[label]).increment(count);
            }
        }
    }

    fn rules_loaded(&self, rules: usize) {
        let counts = self.rules();
        counts.count.set(rules as f64);
        counts.loaded.set(Clock::System.now_us() as f64 / 1e6);
        counts.is_last_good.set(1.0);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

// Registers metrics with the program's recorder, or with a given one.

struct Register(Option<Box<dyn Recorder + Send + Sync>>);

const METADATA: Metadata<'_> = Metadata::new("tidegate", Level::INFO, Some(module_path!()));

impl Register {
    /// Uses the program's recorder.
    const fn global() -> Self {
        Self(None)
    }

    fn of(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(recorder)))
    }

    fn describe_all(&self) {
        for Metric { name, unit, kind, description, .. } in names::ALL {
            self.with(|recorder| {
                let describe = match kind {
                    MetricKind::Counter => Recorder::describe_counter,
                    MetricKind::Gauge => Recorder::describe_gauge,
                    MetricKind::Histogram => Recorder::describe_histogram,
                };
                describe(recorder, (*name).into(), Some(*unit), (*description).into());
            });
        }
    }

    fn counter(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Counter {
        self.with(|recorder| recorder.register_counter(&key(metric, labels), &METADATA))
    }

    fn gauge(&self, metric: &Metric, labels: &[(&'static str, &str)]) -> Gauge {
        self.with(|recorder| recorder.register_gauge(&key(metric, labels), &METADATA))
    }

    fn histogram(&self, metric: &Metric) -> Histogram {
        self.with(|recorder| recorder.register_histogram(&key(metric, &[]), &METADATA))
    }

    fn with<T>(&self, register: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.0 {
            Some(recorder) => register(&**recorder),
            None => metrics::with_recorder(register),
        }
    }
}

fn key(metric: &Metric, labels: &[(&'static str, &str)]) -> Key {
    debug_assert!(labels.iter().map(|(name, _)| name).eq(metric.labels), "{}", metric.name);
    let labels = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned()));
    Key::from_parts(metric.name, labels.collect::<Vec<_>>())
}
