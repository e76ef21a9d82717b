//! Which entries of the runbook fire now, by the figures of the fleet and by what this process knows.

use std::time::Duration;

use askama::Template;
use tidegate::Override;
use tidegate::admin::{RegionFigures, human};

use super::catalog::Catalog;
use super::frame::{Frame, Tab};
use super::{filters, runbook};
use crate::pages::display::{self, IN_MEMORY};
use crate::pages::hour::{GateHour, Hour, SLOW_US, STEP_S, STEPS};

/// The page.
#[derive(Template)]
#[template(path = "health.html")]
pub(super) struct HealthPage {
    pub(super) frame: Frame,
    pub(super) firing: Vec<RunbookEntry>,
    pub(super) quiet: Vec<RunbookEntry>,
    /// Entries that need figures which the console does not have.
    pub(super) unknown: Vec<RunbookEntry>,
    /// The state of this process's own Redis, and warnings about it.
    pub(super) redis: Vec<String>,
    /// The replication of gates. `None` if nothing is replicated, or if it is not known.
    pub(super) regions: Option<RegionFigures>,
}

/// An entry of the runbook with its state.
pub(super) struct RunbookEntry {
    pub(super) alert: &'static str,
    /// The anchor of the section.
    pub(super) anchor: String,
    pub(super) detail: String,
    /// The section, which is HTML.
    pub(super) html: &'static str,
}

impl HealthPage {
    pub(super) fn new(frame: Frame, inputs: &ConditionInputs<'_>, redis: Vec<String>) -> Self {
        let (mut firing, mut quiet, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for section in runbook::sections() {
            let (list, detail) = match of(section.alert, inputs) {
                EntryState::Fires(detail) => (&mut firing, detail),
                EntryState::Quiet(detail) => (&mut quiet, detail),
                EntryState::Unknown(detail) => (&mut unknown, detail),
            };
            let anchor = section.alert.to_lowercase();
            list.push(RunbookEntry { alert: section.alert, anchor, detail, html: &section.html });
        }
        let frame =
            Frame { title: "Health".to_owned(), tab: Some(Tab::Health), firing: firing.len(), ..frame };
        let regions = inputs.regions.as_ref().ok().cloned().flatten();
        Self { frame, firing, quiet, unknown, redis, regions }
    }
}

/// Returns the number of entries that fire.
pub(super) fn firing(inputs: &ConditionInputs<'_>) -> usize {
    let alerts = runbook::sections().iter();
    alerts.filter(|section| matches!(of(section.alert, inputs), EntryState::Fires(_))).count()
}

// The conditions of `alerts.yml`, by the figures that the console has.

/// The maximum gates that a detail names.
const MAX_NAMED: usize = 5;

/// What the conditions are decided by.
pub(in crate::pages) struct ConditionInputs<'i> {
    /// The names that are shown for gates.
    pub(in crate::pages) catalog: &'i Catalog,
    pub(in crate::pages) hour: Result<&'i Hour, &'i str>,
    /// The overrides, or why they are not known.
    pub(in crate::pages) overrides: Result<&'i [Override], String>,
    /// The error of this process's last reload of its rules.
    pub(in crate::pages) reload_error: Option<String>,
    pub(in crate::pages) redis: RedisState,
    /// The replication of gates, or why it is not known.
    pub(in crate::pages) regions: &'i Result<Option<RegionFigures>, String>,
}

/// What Redis does with a call of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pages) enum RedisState {
    /// This process has no Redis.
    InMemory,
    Answers,
    /// It answers, and rejects the call: no permission, no memory, a replica. With its error.
    Rejects(String),
    /// It does not answer. With the error of the call.
    Unavailable(String),
}

/// The state of an entry, with a sentence that says why.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::pages) enum EntryState {
    Fires(String),
    Quiet(String),
    /// The console lacks the figures.
    Unknown(String),
}

/// Returns the state of the entry for this alert.
fn of(alert: &str, inputs: &ConditionInputs<'_>) -> EntryState {
    match alert {
        "TidegateReloadFailed" => match &inputs.reload_error {
            Some(error) => {
                EntryState::Fires(format!("The last reload in this process failed: {}", first_line(error)))
            }
            None => EntryState::Quiet(
                "This process has applied the last change of its files. Other instances: see Prometheus."
                    .to_owned(),
            ),
        },
        "TidegateSwitched" => switched(inputs),
        "TidegateRegionCutOff" => cut_off(inputs),
        "TidegateRedisRefuses" => match &inputs.redis {
            RedisState::InMemory => EntryState::Unknown(IN_MEMORY.to_owned()),
            RedisState::Answers => EntryState::Quiet(
                "Redis decides for this process. Other instances: see Prometheus.".to_owned(),
            ),
            RedisState::Rejects(error) => {
                EntryState::Fires(format!("Redis does not decide for this process: {error}"))
            }
            RedisState::Unavailable(_) => {
                EntryState::Unknown("Redis does not answer this process. See TidegateBreakerOpen.".to_owned())
            }
        },
        "TidegateBreakerOpen"
        | "TidegateFallbackDecides"
        | "TidegateNearDeadline"
        | "TidegateDeniesMuch"
        | "TidegateNoDecisions" => match (&inputs.redis, inputs.hour) {
            (RedisState::Unavailable(error), _) if alert == "TidegateBreakerOpen" => {
                EntryState::Fires(format!("Redis does not answer this process: {error}"))
            }
            (_, Ok(Hour { stale: Some(stale), .. })) => EntryState::Unknown(format!(
                "The figures are from {}, before Redis stopped answering.",
                display::clock(stale.read_unix_s)
            )),
            (_, Ok(hour)) => of_figures(alert, hour, inputs.catalog),
            (_, Err(why)) => EntryState::Unknown(why.to_owned()),
        },
        _ => EntryState::Unknown("Its figures are only in Prometheus: see alerts.yml.".to_owned()),
    }
}

fn switched(inputs: &ConditionInputs<'_>) -> EntryState {
    let overrides = match &inputs.overrides {
        Ok(overrides) => overrides,
        Err(error) => return EntryState::Unknown(format!("The overrides cannot be read: {error}")),
    };
    let switches = overrides.iter().filter(|entry| matches!(entry, Override::Switch { .. }));
    let gates: Vec<&str> = switches.map(|entry| inputs.catalog.shown(entry.gate())).collect();
    match gates.is_empty() {
        true => EntryState::Quiet("No gate is switched.".to_owned()),
        false => EntryState::Fires(format!(
            "Switched now: {}. The alert waits for an hour.",
            named(gates.into_iter())
        )),
    }
}

fn cut_off(inputs: &ConditionInputs<'_>) -> EntryState {
    match inputs.regions {
        Ok(Some(figures)) => {
            let silent = figures.peers.iter().filter(|peer| peer.is_cut_off());
            any(silent.map(|peer| &*peer.name), "Silent regions", "All regions are heard of.")
        }
        Ok(None) => EntryState::Quiet("No gate is replicated.".to_owned()),
        Err(why) => EntryState::Unknown(why.clone()),
    }
}

fn of_figures(alert: &str, hour: &Hour, catalog: &Catalog) -> EntryState {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    match alert {
        "TidegateBreakerOpen" => {
            let open: Vec<&str> =
                hour.instances.iter().filter(|it| it.breaker_open).map(|it| &*it.id).collect();
            match open.is_empty() {
                true => EntryState::Quiet("The circuit breakers of all instances are closed.".to_owned()),
                false => EntryState::Fires(format!("Open on {}.", named(open.into_iter()))),
            }
        }
        "TidegateFallbackDecides" => {
            let without_redis = |gate: &GateHour| {
                let of = |source: &str| gate.sources_now.get(source).copied().unwrap_or(0);
                let sum = |counts: &mut dyn Iterator<Item = u64>| counts.fold(0, u64::saturating_add);
                let fallback = sum(&mut ["local", "open", "closed"].into_iter().map(of));
                fallback.saturating_mul(20) > sum(&mut gate.sources_now.values().copied())
            };
            any(
                hour.gates
                    .iter()
                    .filter(|(_, gate)| without_redis(gate))
                    .map(|(name, _)| catalog.shown(name)),
                "More than one in twenty decisions of the last minute without Redis",
                "Redis makes nearly all decisions, or they need none.",
            )
        }
        "TidegateNearDeadline" => {
            let steps = steps_of(minutes(5));
            let slow = hour.latency[STEPS - steps..].iter().flatten().map(|step| step.p99_us).max();
            match slow {
                Some(us) if us > SLOW_US => EntryState::Fires(format!(
                    "One check in a hundred waited up to {} for Redis in the last 5 minutes.",
                    display::latency(us)
                )),
                Some(us) => EntryState::Quiet(format!(
                    "99 of 100 checks waited at most {} for Redis in the last 5 minutes.",
                    display::latency(us)
                )),
                None => EntryState::Quiet("No check has waited for Redis in the last 5 minutes.".to_owned()),
            }
        }
        "TidegateDeniesMuch" => {
            let since = |(name, gate): (&String, &GateHour)| {
                let since = display::clock(hour.denies_most_since(gate, minutes(10))?);
                let name = catalog.shown(name);
                Some(format!("{name}: denied more than half of its checks since {since}"))
            };
            let denying: Vec<String> = hour.gates.iter().filter_map(since).collect();
            match denying.is_empty() {
                true => EntryState::Quiet("No gate denies more than half of its checks.".to_owned()),
                false => EntryState::Fires(format!(
                    "{}; the alert waits 15 minutes.",
                    named(denying.iter().map(|sentence| &**sentence))
                )),
            }
        }
        _ => {
            let any = hour.gates.values().any(|gate| Hour::newest(gate, minutes(5)).decisions() > 0);
            match any {
                true => EntryState::Quiet("The fleet makes decisions.".to_owned()),
                false => EntryState::Fires(
                    "No instance has published a decision in the last 5 minutes.".to_owned(),
                ),
            }
        }
    }
}

fn any<'g>(found: impl Iterator<Item = &'g str> + Clone, fires: &str, quiet: &str) -> EntryState {
    match found.clone().next() {
        None => EntryState::Quiet(quiet.to_owned()),
        Some(_) => EntryState::Fires(format!("{fires}: {}.", named(found))),
    }
}

/// Returns the first names, and the number of the others.
fn named<'n>(names: impl Iterator<Item = &'n str> + Clone) -> String {
    let shown: Vec<&str> = names.clone().take(MAX_NAMED).collect();
    match names.count().saturating_sub(MAX_NAMED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn steps_of(span: Duration) -> usize {
    usize::try_from(span.as_secs() / STEP_S).unwrap_or(STEPS).min(STEPS)
}

#[cfg(test)]
mod tests {
    use tidegate::admin::{FigureBucket, GateFigures, Instance, LatencyFigures};

    use super::*;
    use crate::pages::hour::{SETTLED, Stale};

    const NOW: u64 = 1_800_000_010;

    fn hour(denied: u64, source: &str, p99_us: u64, breaker_open: bool) -> Hour {
        let by_source = vec![(source.to_owned(), 10)];
        let gate = GateFigures {
            gate: "g".to_owned(),
            allowed: 10 - denied,
            denied,
            by_source,
            ..GateFigures::default()
        };
        let latency_us = LatencyFigures { count: 1, p50_us: 1, p99_us };
        let bucket = FigureBucket { start_unix_s: NOW - 20, gates: vec![gate], latency_us };
        let instance = Instance { breaker_open, ..Instance::default() };
        Hour::new([bucket].iter(), vec![instance], Duration::from_secs(5), NOW - SETTLED.as_secs())
    }

    fn inputs<'h>(hour: Result<&'h Hour, &'static str>, redis: RedisState) -> ConditionInputs<'h> {
        let catalog = Box::leak(Box::new(Catalog::default()));
        ConditionInputs { catalog, hour, overrides: Ok(&[]), reload_error: None, redis, regions: &Ok(None) }
    }

    fn firing(hour: Result<&Hour, &'static str>) -> Vec<String> {
        let inputs = inputs(hour, RedisState::Answers);
        let alerts = [
            "TidegateBreakerOpen",
            "TidegateFallbackDecides",
            "TidegateNearDeadline",
            "TidegateDeniesMuch",
            "TidegateNoDecisions",
        ];
        let fires = alerts.into_iter().filter(|alert| matches!(of(alert, &inputs), EntryState::Fires(_)));
        fires.map(str::to_owned).collect()
    }

    #[test]
    fn entries_fire_by_the_figures_of_the_fleet() {
        assert_eq!(firing(Ok(&hour(5, "redis", 50_000, false))), [""; 0]);
        assert_eq!(
            firing(Ok(&hour(6, "redis", 50_001, true))),
            ["TidegateBreakerOpen", "TidegateNearDeadline", "TidegateDeniesMuch"]
        );
        assert_eq!(firing(Ok(&hour(0, "local", 0, false))), ["TidegateFallbackDecides"]);
        let empty = Hour::new([].iter(), Vec::new(), Duration::from_secs(5), NOW - SETTLED.as_secs());
        assert_eq!(firing(Ok(&empty)), ["TidegateNoDecisions"]);
        assert_eq!(firing(Err("no Redis")), [""; 0]);
    }

    #[test]
    fn entries_without_figures_are_unknown() {
        let inputs = ConditionInputs {
            catalog: &Catalog::default(),
            hour: Err("no Redis"),
            overrides: Err("no Redis".to_owned()),
            reload_error: Some("a.yaml:1:1: wrong\nmore".to_owned()),
            redis: RedisState::Rejects("OOM".to_owned()),
            regions: &Err("no Redis".to_owned()),
        };
        for alert in [
            "TidegateBreakerOpen",
            "TidegateSwitched",
            "TidegateRegionCutOff",
            "TidegateQueueFull",
            "TidegateRulesDiffer",
            "TidegateServiceErrors",
        ] {
            assert!(matches!(of(alert, &inputs), EntryState::Unknown(_)), "{alert}");
        }
        let failed =
            EntryState::Fires("The last reload in this process failed: a.yaml:1:1: wrong".to_owned());
        assert_eq!(of("TidegateReloadFailed", &inputs), failed);
        assert!(matches!(of("TidegateRedisRefuses", &inputs), EntryState::Fires(_)));
    }
    #[test]
    fn redis_that_does_not_answer_is_no_rejection_and_makes_old_figures_unknown() {
        let stale = Stale { error: "timed out".to_owned(), read_unix_s: NOW };
        let hour = Hour { stale: Some(stale), ..hour(9, "redis", 90_000, true) };
        let inputs = inputs(Ok(&hour), RedisState::Unavailable("no route".to_owned()));
        let fires = EntryState::Fires("Redis does not answer this process: no route".to_owned());
        assert_eq!(of("TidegateBreakerOpen", &inputs), fires);
        assert!(matches!(of("TidegateRedisRefuses", &inputs), EntryState::Unknown(_)));
        let unknown = EntryState::Unknown(
            "The figures are from 08:00:10 UTC, before Redis stopped answering.".to_owned(),
        );
        for alert in
            ["TidegateFallbackDecides", "TidegateNearDeadline", "TidegateDeniesMuch", "TidegateNoDecisions"]
        {
            assert_eq!(of(alert, &inputs), unknown, "{alert}");
        }
    }

    #[test]
    fn process_without_redis_does_not_claim_that_redis_decides() {
        let inputs = inputs(Err(IN_MEMORY), RedisState::InMemory);
        for alert in ["TidegateRedisRefuses", "TidegateBreakerOpen", "TidegateNoDecisions"] {
            assert!(matches!(of(alert, &inputs), EntryState::Unknown(_)), "{alert}");
        }
    }

    #[test]
    fn gate_that_denies_much_is_shown_with_the_time_since_when() {
        let hour = hour(9, "redis", 1, false);
        let EntryState::Fires(detail) = of("TidegateDeniesMuch", &inputs(Ok(&hour), RedisState::Answers))
        else {
            panic!("the entry is quiet")
        };
        assert_eq!(
            detail,
            "g: denied more than half of its checks since 07:59:30 UTC; the alert waits 15 minutes."
        );
    }
}
