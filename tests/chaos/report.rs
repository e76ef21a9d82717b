//! Figures as a table.

use std::fmt::Write;

use super::figures::Figures;
use super::scenario::Size;

const HEAD: &str = "\
| fault | asked | by Redis | remembered | failed | p99.9 ms | worst ms | stalled ms | scarce: admitted / permitted | hot: admitted / permitted | first failure ms | Redis again ms | last failure ms | connections |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

pub fn table(all: &[Figures]) -> String {
    let ms = |us: u64| format!("{:.1}", us as f64 / 1_000.0);
    let maybe = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), ms);
    let mut text = HEAD.to_owned();
    for figures in all {
        let of = |source: &str| figures.by_source.get(source).copied().unwrap_or(0);
        let known = of("redis") + of("deny_cache");
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} / {} | {} / {} | {} | {} | {} | {} |",
            figures.fault,
            figures.asked,
            of("redis"),
            of("deny_cache"),
            figures.asked - known,
            ms(figures.p999_us),
            ms(figures.worst_us),
            ms(figures.worst_stall_us),
            figures.scarce.admitted,
            figures.scarce.permitted,
            figures.hot.admitted,
            figures.hot.permitted,
            maybe(figures.first_failure_us),
            maybe(figures.redis_again_us),
            maybe(figures.last_failure_us),
            figures.connections,
        )
        .unwrap();
    }
    text
}

/// Each error that was told, and how often.
pub fn errors(all: &[Figures]) -> String {
    let mut text = String::new();
    for figures in all.iter().filter(|figures| !figures.errors.is_empty()) {
        writeln!(text, "- {}", figures.fault).unwrap();
        for (error, count) in &figures.errors {
            writeln!(text, "  - {count}: {error}").unwrap();
        }
    }
    text
}

pub fn page(all: &[Figures], size: Size) -> String {
    format!(
        "# What faults do

Written by `scripts/test chaos`: {processes} processes, half of them without batching and deny cache, ask
13 gates steadily (a pause of about 10 ms after each answer, 16 tasks each) with a deadline of 100 ms and
`OnFailure::Error`. After {before:?} a fault is made, held for {hold:?} where it lasts, and mended; {after:?} later they
end.

Latencies are without what the process itself was not let run (the column says the most of that within
one ask). \"Scarce\" gates give nothing back while this runs: permitted is one limit of 100 for each of the
six, and one more for each loss of state. \"Hot\" gates give 60 units back each 500 ms: permitted is what the
reference admits to whoever asks for all at the same instants. Times of failure are from the fault, the
last two from the repair. Redis decides again within 2 s, but after a black hole, where an attempt at a
connection is waited for 5 s; after that less than 1 % fails. Connections are those that the server, or the
proxy before it, took from the fault on.

{table}
## Errors told

{errors}",
        processes = size.processes,
        before = size.before,
        hold = size.hold,
        after = size.after,
        table = table(all),
        errors = errors(all),
    )
}
