//! The charts of the overview and of a gate.

use crate::pages::chart::{Chart, Drawing, Series};
use crate::pages::display;
use crate::pages::hour::{GateHour, Hour, Totals};

/// Decisions per second of all gates.
pub(super) fn decisions_chart(hour: &Hour, total: &GateHour) -> Chart {
    stacked("Decisions per second", hour, total)
}

/// Decisions per second of one gate.
pub(in crate::pages) fn decisions_of_gate(hour: &Hour, gate: &GateHour) -> Chart {
    stacked("Decisions per second", hour, gate)
}

fn stacked(title: &'static str, hour: &Hour, gate: &GateHour) -> Chart {
    let Totals { allowed, denied, shadow_denied, .. } = gate.hour;
    let summary = format!(
        "{title} in the last hour: {allowed} allowed, {shadow_denied} over limit (shadow), {denied} denied"
    );
    let series = series(hour, gate);
    Chart::new(title, summary, Drawing::stacked(series), |value| format!("{}/s", display::per_second(value)))
        .between("1 h ago", "now")
}

/// A small chart of one gate.
pub(super) fn spark(gate: &GateHour) -> Chart {
    let Totals { allowed, denied, shadow_denied, .. } = gate.hour;
    let summary =
        format!("the last hour: {allowed} allowed, {shadow_denied} over limit (shadow), {denied} denied");
    // One bar for each two minutes.
    let steps: Vec<Totals> = gate
        .steps
        .chunks(4)
        .map(|steps| {
            steps.iter().fold(Totals::default(), |mut sum, step| {
                sum.add(step);
                sum
            })
        })
        .collect();
    let values = |value: fn(&Totals) -> u64| steps.iter().map(|step| Some(value(step) as f64)).collect();
    let series = vec![
        Series { class: "denied", label: "denied", values: values(|step| step.denied) },
        Series { class: "shadow", label: "over limit (shadow)", values: values(|step| step.shadow_denied) },
        Series { class: "allowed", label: "allowed", values: values(|step| step.allowed) },
    ];
    Chart::new("", summary, Drawing::stacked(series), |value| value.to_string())
}

fn series(hour: &Hour, gate: &GateHour) -> Vec<Series> {
    let values = |value: fn(&Totals) -> u64| hour.rates(&gate.steps, value);
    vec![
        Series { class: "denied", label: "denied", values: values(|step| step.denied) },
        Series { class: "shadow", label: "over limit (shadow)", values: values(|step| step.shadow_denied) },
        Series { class: "allowed", label: "allowed", values: values(|step| step.allowed) },
    ]
}

/// Latency of the decisions that waited for Redis.
pub(super) fn latency_chart(hour: &Hour) -> Chart {
    let values = |value: fn(&super::super::hour::Latency) -> u64| {
        hour.latency.iter().map(|step| step.as_ref().map(|step| value(step) as f64)).collect()
    };
    let summary = match hour.latency_now {
        None => "Wait for Redis: no check has waited in the last minute".to_owned(),
        Some(now) => format!(
            "Wait for Redis in the last minute: half of the checks up to {}, 99 in 100 up to {}",
            display::latency(now.p50_us),
            display::latency(now.p99_us)
        ),
    };
    let series = vec![
        Series { class: "p99", label: "p99", values: values(|step| step.p99_us) },
        Series { class: "p50", label: "p50", values: values(|step| step.p50_us) },
    ];
    Chart::new("Wait for Redis", summary, Drawing::lines(series), |value| display::latency(value as u64))
        .between("1 h ago", "now")
}
