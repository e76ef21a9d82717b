//! The report as JSON.

use serde_json::{Map, Value, json};

use super::{Report, rounded};
use crate::case::Case;
use crate::measure::Round;
use crate::rounds::{Row, median};

pub(crate) fn json(report: &Report) -> Value {
    let machine: Map<_, _> =
        report.machine.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let ratios: Map<_, _> = report
        .ratios
        .iter()
        .filter_map(|ratio| Some((ratio.name.to_owned(), json!(rounded(ratio.value?)))))
        .collect();
    let notes: Map<_, _> = report
        .ratios
        .iter()
        .filter_map(|ratio| Some((ratio.name.to_owned(), json!(ratio.note.as_ref()?))))
        .collect();
    let bounds: Map<_, _> = report
        .ratios
        .iter()
        .map(|ratio| (ratio.name.to_owned(), json!({ "floor": ratio.floor, "aim": ratio.aim })))
        .collect();
    let bytes: Map<_, _> =
        report.bytes_per_key.iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
    json!({
        "machine": machine,
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "ratios": ratios,
        "ratio_notes": notes,
        "ratio_bounds": bounds,
        "redis_cpu_us_per_check": by_case(&report.rows, Row::redis_us),
        "longest_hold_us": by_case(&report.rows, Row::longest_hold_us),
        "call_p99_us": by_case(&report.rows, Row::call_p99_us),
        "bytes_per_key": bytes,
        "script_alone": report.scripts.as_ref().map(|scripts| {
            let rate = |rates: &[crate::script_alone::Rate]| json!({
                "keys_per_s": median(rates.iter().map(|r| r.keys_per_s).collect()).round(),
                "keys_per_redis_cpu_s": median(rates.iter().map(|r| r.keys_per_cpu_s).collect()).round(),
            });
            json!({ "tidegate": rate(&scripts.ours), "bare": rate(&scripts.bare) })
        }),
    })
}

fn row(row: &Row) -> Value {
    let mut json = json!({
        "case": row.case.name(),
        "subject": row.info.name,
        "server": row.server,
        "note": row.info.note,
    });
    if let Some(reason) = &row.absent {
        json["absent"] = json!(reason);
    } else if let Some(reason) = &row.failed {
        json["failed"] = json!(reason);
    } else {
        let sum = |of: fn(&Round) -> u64| row.rounds.iter().map(of).sum::<u64>();
        json["checks_per_s"] = json!(row.per_second().round());
        json["p50_us"] = json!(rounded(row.us(0.5)));
        json["p99_us"] = json!(rounded(row.us(0.99)));
        json["asked"] = json!(sum(|round| round.checks));
        json["allowed"] = json!(sum(|round| round.allowed));
        json["waited_for_redis"] = json!(sum(|round| round.fell_back));
        json["rounds_checks_per_s"] =
            row.rounds.iter().map(|round| json!(round.per_second().round())).collect();
    }
    json
}

/// Returns `{case: {subject: number}}` for the first server.
fn by_case(rows: &[Row], of: impl Fn(&Row) -> Option<f64>) -> Value {
    let mut cases = Map::new();
    for case in Case::ALL {
        let subjects: Map<_, _> = rows
            .iter()
            .filter(|row| row.case == case && row.is_main && row.is_usable())
            .filter_map(|row| Some((row.info.name.to_owned(), json!(rounded(of(row)?)))))
            .collect();
        if !subjects.is_empty() {
            cases.insert(case.name().to_owned(), subjects.into());
        }
    }
    cases.into()
}
