//! The results of `scripts/bench serve` as Markdown.

use std::fmt::Write;

use super::load::{Pattern, Round, Shape};
use super::{Case, Ratio};
use crate::report::{short, thousands};

pub(crate) fn table(cases: &[Case]) -> String {
    let mut text = String::new();
    for case in cases {
        let keys = match case.pattern {
            Pattern::Unlike => "100,000 keys",
            Pattern::Hot => "one hot key",
        };
        let Shape { connections, in_flight } = case.shape;
        let plural = if connections == 1 { "" } else { "s" };
        let _ = write!(
            text,
            "### {keys}, {connections} connection{plural} with {in_flight} requests in flight\n\n\
             | service | decisions/s | per core of the service | Redis us | p50 us | p99 us | p50 us at half | p99 us at half |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
        );
        for row in &case.rows {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {:.2} | {} | {} | {} | {} |",
                row.service.name(),
                thousands(row.median(Round::per_second)),
                thousands(row.median(Round::per_core)),
                row.median(Round::redis_us),
                short(row.median(|round| round.us(0.5))),
                short(row.median(|round| round.us(0.99))),
                short(row.median_at_half(|round| round.us(0.5))),
                short(row.median_at_half(|round| round.us(0.99))),
            );
        }
        text.push('\n');
    }
    text += "| ratio of | decisions/s | per core of the service | aim for decisions/s |\n| --- | ---: | ---: | ---: |\n";
    for Ratio { name, per_second, per_core, aim } in cases.iter().flat_map(Case::ratios) {
        let aim = aim.map_or_else(|| "-".to_owned(), |aim| aim.to_string());
        let _ = writeln!(text, "| `{name}` | {per_second:.2} | {per_core:.2} | {aim} |");
    }
    text.push('\n');
    for row in cases.first().into_iter().flat_map(|case| &case.rows) {
        let _ = writeln!(text, "- {}: {}", row.service.name(), row.service.note());
    }
    text
}
