//! The report as Markdown, for the terminal and the README.

use std::fmt::Write;

use super::{Report, short, thousands};
use crate::case::Case;
use crate::keys::Slice;
use crate::rounds::Row;

pub(crate) fn table(report: &Report) -> String {
    let mut text = String::new();
    for (name, value) in &report.machine {
        let value = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let _ = writeln!(text, "- {name}: {value}");
    }
    for case in Case::ALL {
        let mut rows: Vec<&Row> = report.rows.iter().filter(|row| row.case == case).collect();
        if rows.is_empty() {
            continue;
        }
        let rate = |row: &Row| if row.is_usable() { row.per_second() } else { -1.0 };
        rows.sort_by(|a, b| b.is_main.cmp(&a.is_main).then(rate(b).total_cmp(&rate(a))));
        let _ = write!(text, "\n### `{}`: {}\n\n", case.name(), case.title());
        text += "| subject | checks/s | p50 us | p99 us | Redis us/check | longest call us | difference |\n";
        text += "| --- | ---: | ---: | ---: | ---: | ---: | --- |\n";
        for row in rows {
            text += &table_row(row);
        }
    }
    if let Some(scripts) = &report.scripts {
        let median = |of: &dyn Fn(&crate::script_alone::Rate) -> f64, rates: &[_]| {
            thousands(crate::rounds::median(rates.iter().map(of).collect()))
        };
        text += "\n### the script alone: calls of 64 keys of 100,000, pipelined by 4 connections\n\n";
        text += "| script | keys/s | keys per second of Redis's CPU |\n| --- | ---: | ---: |\n";
        for (title, rates) in [("take:token_bucket", &scripts.ours), ("GET + SET PX", &scripts.bare)] {
            let wall = median(&|rate| rate.keys_per_s, rates);
            let cpu = median(&|rate| rate.keys_per_cpu_s, rates);
            let _ = writeln!(text, "| {title} | {wall} | {cpu} |");
        }
    }
    if !report.bytes_per_key.is_empty() {
        text += "\n### bytes per key\n\n| algorithm | bytes |\n| --- | ---: |\n";
        for (title, bytes) in &report.bytes_per_key {
            let _ = writeln!(text, "| {title} | {} |", thousands(*bytes as f64));
        }
    }
    text += "\n### ratios: medians over the rounds of this run\n\n";
    text += "| ratio | is | floor | aim | |\n| --- | ---: | ---: | ---: | --- |\n";
    for ratio in &report.ratios {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let outcome = match (ratio.value, ratio.floor, ratio.aim) {
            (Some(is), _, Some(aim)) if is >= aim => "reaches the aim",
            (Some(is), Some(floor), _) if is >= floor => "above the floor",
            (Some(_), Some(_), _) => "**below the floor**",
            _ => "",
        };
        let notes: Vec<&str> = [Some(outcome), ratio.note.as_deref()]
            .into_iter()
            .flatten()
            .filter(|note| !note.is_empty())
            .collect();
        let notes = notes.join("; ");
        let is = number(ratio.value);
        let (floor, aim) = (number(ratio.floor), number(ratio.aim));
        let _ =
            writeln!(text, "| `{}`: {} | {is} | {floor} | {aim} | {notes} |", ratio.name, ratio.description);
    }
    text
}

fn table_row(row: &Row) -> String {
    let server = if row.is_main { String::new() } else { format!(" (on {})", row.server) };
    let title = format!("{}{server}", row.info.title);
    if let Some(reason) = &row.absent {
        return format!("| {title} | - | - | - | - | - | not run: {reason} |\n");
    }
    if let Some(reason) = &row.failed {
        return format!("| {title} | - | - | - | - | - | **failed**: {} |\n", reason.replace('|', "/"));
    }
    let known = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), short);
    let mut note = row.info.note.to_owned();
    let fell_back = row.median(|round| round.fell_back as f64 / round.checks as f64);
    if fell_back > 0.0 {
        note += &format!("; {:.4} % of the checks waited for Redis", fell_back * 100.0);
    }
    if row.case == Case::HotDenied {
        note += &format!("; {} admitted in a round", row.median(|round| round.allowed as f64));
    }
    format!(
        "| {title} | {} | {} | {} | {} | {} | {note} |\n",
        thousands(row.per_second()),
        short(row.us(0.5)),
        short(row.us(0.99)),
        known(row.redis_us()),
        known(row.longest_hold_us()),
    )
}

/// Returns the table of `scripts/bench keys`.
pub(crate) fn keys(slices: &[Slice]) -> String {
    let mut text = "| keys | tidegate checks/s | its Redis us/check | its Redis MB | this process MB \
        | by hand checks/s | its Redis us/check | its Redis MB |\n\
        | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for slice in slices {
        let _ = writeln!(text, "| {} |", slice.cells().join(" | "));
    }
    text
}
