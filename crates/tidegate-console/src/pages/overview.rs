//! The overview: what the fleet denies now, and why; the last hour.

mod charts;
mod verdict;

use std::time::Duration;

use askama::Template;
use tidegate::Override;
use tidegate::admin::{Instance, human};

pub(super) use self::charts::decisions_of_gate;
use self::charts::{decisions_chart, latency_chart, spark};
use self::verdict::{Denying, Headline, switches};
use super::chart::Chart;
use super::figures::NodeLoad;
use super::frame::{Frame, Tab};
use super::hour::{Hour, SLOW_US, Totals};
use super::{display, filters};
use crate::pages::catalog::Catalog;

/// The maximum rows of each list.
const MAX_DENYING: usize = 10;
const MAX_GATES: usize = 25;
const MAX_INSTANCES: usize = 100;

/// The page.
#[derive(Template)]
#[template(path = "overview.html")]
pub(super) struct Overview {
    pub(super) frame: Frame,
    pub(super) live: Live,
}

/// The part of the page that the script replaces.
#[derive(Template)]
#[template(path = "overview_live.html")]
pub(super) struct OverviewLive {
    pub(super) live: Live,
}

/// The figures of the overview.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) verdict: Tone,
    pub(super) headline: String,
    /// A sentence for a screen reader. It changes only when the verdict or the denying gates do.
    pub(super) summary: String,
    pub(super) note: Option<String>,
    pub(super) denying: Vec<Denying>,
    pub(super) more_denying: usize,
    /// Whether operators have switched gates.
    pub(super) has_switches: bool,
    /// Whether there is a reading of the fleet's figures.
    pub(super) has_figures: bool,
    /// The sums of the gates that count for candidates.
    pub(super) candidates: Option<String>,
    pub(super) tiles: Vec<Tile>,
    pub(super) decisions: Chart,
    /// `None` without Redis.
    pub(super) latency: Option<Chart>,
    pub(super) gates: Vec<GateRow>,
    pub(super) more_gates: usize,
    pub(super) sources: Vec<SourceRow>,
    pub(super) redis: Result<Vec<NodeRow>, String>,
    pub(super) instances: Vec<InstanceRow>,
    pub(super) more_instances: usize,
    pub(super) until: String,
    pub(super) bucket: String,
}

#[derive(Debug)]
pub(super) struct Tile {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) more: String,
    pub(super) tone: Tone,
}

#[derive(Debug)]
pub(super) struct GateRow {
    pub(super) name: String,
    pub(super) totals: Totals,
    pub(super) spark: Chart,
}

#[derive(Debug)]
pub(super) struct SourceRow {
    pub(super) name: String,
    pub(super) meaning: &'static str,
    pub(super) decisions: u64,
    pub(super) share: String,
    pub(super) percent: u64,
}

#[derive(Debug)]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) commands_per_second: u64,
    pub(super) memory: String,
    pub(super) cpu: String,
    pub(super) clients: u64,
    pub(super) uptime: String,
}

#[derive(Debug)]
pub(super) struct InstanceRow {
    pub(super) id: String,
    pub(super) version: String,
    pub(super) is_breaker_open: bool,
    pub(super) store_errors: u64,
    pub(super) age: String,
}

impl Overview {
    pub(super) fn new(frame: Frame, live: Live) -> Self {
        Self { frame: Frame { title: "Overview".to_owned(), tab: Some(Tab::Overview), ..frame }, live }
    }
}

impl Live {
    pub(super) fn new(readings: Readings<'_>) -> Self {
        let empty = Hour::new([].into_iter(), Vec::new(), Duration::from_secs(5), 0);
        let hour = readings.hour.unwrap_or(&empty);
        let total = hour.total();
        let denying = Denying::all(hour, readings.overrides, readings.catalog);
        let Headline { verdict, headline, note } = Headline::new(&readings, hour, &denying);
        let names: Vec<&str> =
            denying.iter().take(3).map(|gate| readings.catalog.shown(&gate.name)).collect();
        let summary = match names.is_empty() {
            true => headline.clone(),
            false => format!("{headline}: {}", names.join(", ")),
        };
        let mut gates: Vec<_> = hour.gates.iter().collect();
        gates.sort_by_key(|(_, gate)| {
            (std::cmp::Reverse(gate.hour.denied), std::cmp::Reverse(gate.hour.decisions()))
        });
        let rows = gates.iter().take(MAX_GATES).map(|(name, gate)| GateRow {
            name: (*name).clone(),
            totals: gate.hour,
            spark: spark(gate),
        });
        let more_denying = denying.len().saturating_sub(MAX_DENYING);
        let mut denying = denying;
        denying.truncate(MAX_DENYING);
        Self {
            verdict,
            headline,
            summary,
            note,
            denying,
            more_denying,
            has_switches: switches(readings.overrides) > 0,
            has_figures: readings.hour.is_ok(),
            candidates: candidates(hour),
            tiles: tiles(hour, &total.now, &readings),
            decisions: decisions_chart(hour, &total),
            latency: (!readings.is_in_memory).then(|| latency_chart(hour)),
            gates: rows.collect(),
            more_gates: gates.len().saturating_sub(MAX_GATES),
            sources: sources(&total.sources),
            redis: readings.redis.map(|nodes| nodes.iter().map(NodeRow::new).collect()),
            instances: hour.instances.iter().take(MAX_INSTANCES).map(InstanceRow::new).collect(),
            more_instances: hour.instances.len().saturating_sub(MAX_INSTANCES),
            until: display::clock(hour.until_unix_s),
            bucket: human(hour.bucket),
        }
    }
}

/// Returns the sums of the gates that count for candidates, which are in no other sum.
fn candidates(hour: &Hour) -> Option<String> {
    let totals = hour.candidates();
    let [decisions, over] =
        [totals.decisions(), totals.shadow_denied].map(|number| display::grouped(&number.to_string()));
    (totals.decisions() > 0).then(|| {
        format!("Candidate quotas of rules, the last hour: {decisions} checks, {over} over limit (shadow). The sums of this page are without them.")
    })
}

fn tiles(hour: &Hour, now: &Totals, readings: &Readings<'_>) -> Vec<Tile> {
    let tile = |name, value, more, tone| Tile { name, value, more, tone };
    if readings.hour.is_err() {
        return Vec::new();
    }
    let rate = |number| format!("{}/s", display::per_second(Hour::per_second_now(number)));
    let tone = |number, tone| if number > 0 { tone } else { Tone::Plain };
    let open = hour.instances.iter().filter(|instance| instance.breaker_open).count();
    let all = hour.instances.len();
    let breaker = match (open, all) {
        _ if !readings.has_answered => {
            ("-".to_owned(), "Redis does not answer this process".to_owned(), Tone::Bad)
        }
        (_, 0) => ("-".to_owned(), "no instance".to_owned(), Tone::Plain),
        (0, _) => ("closed".to_owned(), "on all instances".to_owned(), Tone::Good),
        _ => ("open".to_owned(), format!("on {open} of {}", display::counted(all, "instance")), Tone::Bad),
    };
    let (p99, p50, slow) = match hour.latency_now {
        None => ("-".to_owned(), String::new(), Tone::Plain),
        Some(now) => {
            let slow = if now.p99_us > SLOW_US { Tone::Warn } else { Tone::Plain };
            (display::latency(now.p99_us), format!("p50 {}", display::latency(now.p50_us)), slow)
        }
    };
    let mut tiles = vec![
        tile("Decisions, last minute", rate(now.decisions()), String::new(), Tone::Plain),
        tile(
            "Denied",
            rate(now.denied),
            display::share(now.denied, now.decisions()),
            tone(now.denied, Tone::Bad),
        ),
        tile(
            "Near a limit",
            rate(now.near_limit),
            "admitted with a fifth left".to_owned(),
            tone(now.near_limit, Tone::Warn),
        ),
        tile("Over limit (shadow)", rate(now.shadow_denied), "admitted".to_owned(), Tone::Plain),
        tile("Errors", rate(now.errors), "checks without a reply".to_owned(), tone(now.errors, Tone::Bad)),
    ];
    if !readings.is_in_memory {
        tiles.extend([
            tile("Wait for Redis, p99", p99, p50, slow),
            tile("Circuit breaker", breaker.0, breaker.1, breaker.2),
            tile("Instances", all.to_string(), "with a heartbeat".to_owned(), Tone::Plain),
        ]);
    }
    tiles
}

fn sources(sources: &std::collections::BTreeMap<String, u64>) -> Vec<SourceRow> {
    let whole = sources.values().copied().fold(0, u64::saturating_add);
    let mut rows: Vec<_> = sources
        .iter()
        .map(|(name, decisions)| SourceRow {
            name: name.clone(),
            meaning: meaning(name),
            decisions: *decisions,
            share: display::share(*decisions, whole),
            percent: decisions.saturating_mul(100).checked_div(whole).unwrap_or(0).min(100),
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.decisions));
    rows
}

/// Returns what decided, for a label of [`Source`](tidegate::Source).
fn meaning(source: &str) -> &'static str {
    match source {
        "redis" => "Redis decided",
        "memory" => "the store in memory decided",
        "deny_cache" => "a cached denial that still holds",
        "lease" => "units leased in advance",
        "local" => "Redis away: the instance's share of the limit",
        "open" => "Redis away: admitted without a limit",
        "closed" => "Redis away: denied",
        "rule" => "a rule that denies every request",
        "switch" => "an operator's switch",
        _ => "",
    }
}

impl NodeRow {
    fn new(node: &NodeLoad) -> Self {
        let load = &node.load;
        let name = if load.node.is_empty() {
            load.version.clone()
        } else {
            format!("{} ({})", load.node, load.version)
        };
        let memory = match load.max_memory_bytes {
            None => format!("{}, no limit", display::bytes(load.used_memory_bytes)),
            Some(max) => format!(
                "{} of {} ({})",
                display::bytes(load.used_memory_bytes),
                display::bytes(max),
                display::share(load.used_memory_bytes, max)
            ),
        };
        Self {
            name,
            commands_per_second: load.commands_per_second,
            memory,
            cpu: format!("{:.0} %", 100.0 * node.processors),
            clients: load.clients,
            uptime: human(load.uptime),
        }
    }
}

impl InstanceRow {
    fn new(instance: &Instance) -> Self {
        Self {
            id: instance.id.clone(),
            version: instance.version.clone(),
            is_breaker_open: instance.breaker_open,
            store_errors: instance.store_errors,
            age: human(Duration::from_secs(instance.age.as_secs())),
        }
    }
}

/// The readings from which the overview is made.
pub(in crate::pages) struct Readings<'r> {
    pub(in crate::pages) hour: Result<&'r Hour, &'r str>,
    pub(in crate::pages) is_in_memory: bool,
    /// `None` if they cannot be read.
    pub(in crate::pages) overrides: Option<&'r [Override]>,
    pub(in crate::pages) catalog: &'r Catalog,
    /// Whether Redis answers this process.
    pub(in crate::pages) has_answered: bool,
    /// The message of an error.
    pub(in crate::pages) redis: Result<Vec<NodeLoad>, String>,
}

/// How urgent something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pages) enum Tone {
    Plain,
    Good,
    Warn,
    Bad,
}

impl Tone {
    pub(in crate::pages) const fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "good",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }

    /// Returns the class of a text in this tone.
    pub(in crate::pages) const fn text_class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "is-good",
            Self::Warn => "is-warn",
            Self::Bad => "is-bad",
        }
    }
}
