//! The results of `scripts/bench http` as Markdown.

use std::fmt::Write;

use super::load::Round;
use super::serve::Pattern;
use super::{Case, Ratio, Row, cpu};
use crate::report::{short, thousands};
use crate::rounds::median;

pub(crate) fn table(cases: &[Case]) -> String {
    let mut text = String::new();
    for case in cases {
        let load = match case.pattern {
            Pattern::Unlike => "100,000 keys, all allowed",
            Pattern::Hot => "one hot key, mostly denied",
        };
        let _ = write!(
            text,
            "### {load}, {} connections\n\n\
             | service | requests/s | p50 us | p99 us | added p50 us | added p99 us | service CPU us | Redis CPU us | behavior |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n",
            case.connections
        );
        let us = |rounds: &[Round], quantile| median(rounds.iter().map(|round| round.us(quantile)).collect());
        for Row { service, rounds, failed } in &case.rows {
            if let Some(reason) = failed {
                let reason = reason.replace('|', "/");
                let _ = writeln!(
                    text,
                    "| {} | - | - | - | - | - | - | - | **failed**: {reason} |",
                    service.name()
                );
                continue;
            }
            let bare = case.rounds(service.framework().unlimited());
            let added = |quantile| us(rounds, quantile) - us(bare, quantile);
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {:.0} | {:.0} | {:.1} | {:.1} | {} |",
                service.name(),
                thousands(median(rounds.iter().map(Round::per_second).collect())),
                short(us(rounds, 0.5)),
                short(us(rounds, 0.99)),
                added(0.5),
                added(0.99),
                cpu(rounds, |cpu| cpu.service_us),
                cpu(rounds, |cpu| cpu.redis_us),
                service.note(),
            );
        }
        text.push('\n');
    }
    text += "| ratio of requests/s | is | aim |\n| --- | ---: | ---: |\n";
    for Ratio { name, is, aim } in cases.iter().flat_map(Case::ratios) {
        let aim = if aim > 0.0 { aim.to_string() } else { "-".to_owned() };
        let is = is.map_or_else(|| "left out: all peers failed".to_owned(), |is| format!("{is:.2}"));
        let _ = writeln!(text, "| `{name}` | {is} | {aim} |");
    }
    text
}
