//! The conditions of `alerts.yml`, by the figures that the console has.

use std::time::Duration;

use tidegate::Override;

use crate::console::gates::gate_of;
use crate::console::hour::{GateHour, Hour, STEP_S, STEPS};
use crate::console::words;

/// The maximum gates that a detail names.
const MAX_NAMED: usize = 5;

/// What the conditions are decided by.
pub(in crate::console) struct Known<'k> {
    pub(in crate::console) hour: Result<&'k Hour, &'k str>,
    /// The overrides, or why they are not known.
    pub(in crate::console) overrides: Result<&'k [Override], String>,
    /// The error of this process's last reload of its rules.
    pub(in crate::console) reload_error: Option<String>,
    /// Why Redis does not decide checks of this process.
    pub(in crate::console) redis_error: Option<String>,
}

/// The state of an entry, with a sentence that says why.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::console) enum State {
    Fires(String),
    Quiet(String),
    /// The console lacks the figures.
    Unknown(String),
}

/// Returns the state of the entry for this alert.
pub(super) fn of(alert: &str, known: &Known<'_>) -> State {
    match alert {
        "TidegateReloadFailed" => match &known.reload_error {
            Some(error) => {
                State::Fires(format!("The last reload in this process failed: {}", first_line(error)))
            }
            None => State::Quiet(
                "This process has applied the last change of its files. Other instances: see Prometheus."
                    .to_owned(),
            ),
        },
        "TidegateSwitched" => switched(known),
        "TidegateRedisRefuses" => match &known.redis_error {
            Some(error) => State::Fires(format!("Redis does not decide for this process: {error}")),
            None => {
                State::Quiet("Redis decides for this process. Other instances: see Prometheus.".to_owned())
            }
        },
        "TidegateBreakerOpen"
        | "TidegateFallbackDecides"
        | "TidegateNearDeadline"
        | "TidegateDeniesMuch"
        | "TidegateNoDecisions" => match known.hour {
            Ok(hour) => of_figures(alert, hour),
            Err(why) => State::Unknown(why.to_owned()),
        },
        _ => State::Unknown("Its figures are only in Prometheus: see alerts.yml.".to_owned()),
    }
}

fn switched(known: &Known<'_>) -> State {
    let overrides = match &known.overrides {
        Ok(overrides) => overrides,
        Err(error) => return State::Unknown(format!("The overrides cannot be read: {error}")),
    };
    let switches = overrides.iter().filter(|entry| matches!(entry, Override::Switch { .. }));
    let gates: Vec<&str> = switches.filter_map(gate_of).collect();
    match gates.is_empty() {
        true => State::Quiet("No gate is switched.".to_owned()),
        false => {
            State::Fires(format!("Switched now: {}. The alert waits for an hour.", named(gates.into_iter())))
        }
    }
}

fn of_figures(alert: &str, hour: &Hour) -> State {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    match alert {
        "TidegateBreakerOpen" => {
            let open: Vec<&str> =
                hour.instances.iter().filter(|it| it.breaker_open).map(|it| &*it.id).collect();
            match open.is_empty() {
                true => State::Quiet("The circuit breakers of all instances are closed.".to_owned()),
                false => State::Fires(format!("Open on {}.", named(open.into_iter()))),
            }
        }
        "TidegateFallbackDecides" => {
            let without_redis = |gate: &GateHour| {
                let of = |source: &str| gate.sources_now.get(source).copied().unwrap_or(0);
                let all: u64 = gate.sources_now.values().sum();
                20 * (of("local") + of("open") + of("closed")) > all
            };
            gates(
                hour.gates.iter().filter(|(_, gate)| without_redis(gate)).map(|(name, _)| &**name),
                "More than one in twenty decisions of the last minute without Redis",
                "Redis makes nearly all decisions, or they need none.",
            )
        }
        "TidegateNearDeadline" => {
            let steps = steps_of(minutes(5));
            let slow = hour.latency[STEPS - steps..].iter().flatten().map(|step| step.p99_us).max();
            match slow {
                Some(us) if us > 50_000 => State::Fires(format!(
                    "One check in a hundred waited up to {} for Redis in the last 5 minutes.",
                    words::latency(us)
                )),
                Some(us) => State::Quiet(format!(
                    "99 of 100 checks waited at most {} for Redis in the last 5 minutes.",
                    words::latency(us)
                )),
                None => State::Quiet("No check has waited for Redis in the last 5 minutes.".to_owned()),
            }
        }
        "TidegateDeniesMuch" => {
            let denies_much = |gate: &GateHour| {
                let sum = Hour::newest(gate, minutes(10));
                2 * sum.denied > sum.decisions()
            };
            gates(
                hour.gates.iter().filter(|(_, gate)| denies_much(gate)).map(|(name, _)| &**name),
                "More than half of the checks of the last 10 minutes denied",
                "No gate denies more than half of its checks.",
            )
        }
        _ => {
            let any = hour.gates.values().any(|gate| Hour::newest(gate, minutes(5)).decisions() > 0);
            match any {
                true => State::Quiet("The fleet makes decisions.".to_owned()),
                false => {
                    State::Fires("No instance has published a decision in the last 5 minutes.".to_owned())
                }
            }
        }
    }
}

fn gates<'g>(found: impl Iterator<Item = &'g str> + Clone, fires: &str, quiet: &str) -> State {
    match found.clone().next() {
        None => State::Quiet(quiet.to_owned()),
        Some(_) => State::Fires(format!("{fires}: {}.", named(found))),
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
        Hour::new([bucket].iter(), vec![instance], Duration::from_secs(5), NOW)
    }

    fn known(hour: Result<&Hour, &'static str>) -> Vec<String> {
        let known = Known { hour, overrides: Ok(&[]), reload_error: None, redis_error: None };
        let alerts = [
            "TidegateBreakerOpen",
            "TidegateFallbackDecides",
            "TidegateNearDeadline",
            "TidegateDeniesMuch",
            "TidegateNoDecisions",
        ];
        let fires = alerts.into_iter().filter(|alert| matches!(of(alert, &known), State::Fires(_)));
        fires.map(str::to_owned).collect()
    }

    #[test]
    fn entries_fire_by_the_figures_of_the_fleet() {
        assert_eq!(known(Ok(&hour(5, "redis", 50_000, false))), [""; 0]);
        assert_eq!(
            known(Ok(&hour(6, "redis", 50_001, true))),
            ["TidegateBreakerOpen", "TidegateNearDeadline", "TidegateDeniesMuch"]
        );
        assert_eq!(known(Ok(&hour(0, "local", 0, false))), ["TidegateFallbackDecides"]);
        let empty = Hour::new([].iter(), Vec::new(), Duration::from_secs(5), NOW);
        assert_eq!(known(Ok(&empty)), ["TidegateNoDecisions"]);
        assert_eq!(known(Err("no Redis")), [""; 0]);
    }

    #[test]
    fn entries_without_figures_are_unknown() {
        let known = Known {
            hour: Err("no Redis"),
            overrides: Err("no Redis".to_owned()),
            reload_error: Some("a.yaml:1:1: wrong\nmore".to_owned()),
            redis_error: Some("OOM".to_owned()),
        };
        for alert in ["TidegateBreakerOpen", "TidegateSwitched", "TidegateQueueFull", "TidegateRulesDiffer"] {
            assert!(matches!(of(alert, &known), State::Unknown(_)), "{alert}");
        }
        let failed = State::Fires("The last reload in this process failed: a.yaml:1:1: wrong".to_owned());
        assert_eq!(of("TidegateReloadFailed", &known), failed);
        assert!(matches!(of("TidegateRedisRefuses", &known), State::Fires(_)));
    }
}
