//! Figures as a table.

use std::fmt::Write;

use super::bounds::Class;
use super::figures::Figures;
use super::scenario::Size;
use crate::support::load::Fallback;

const HEAD: [&str; 19] = [
    "fault",
    "asked",
    "by Redis",
    "deny cache",
    "by itself",
    "failed",
    "p99.9 ms",
    "less stalls",
    "worst ms",
    "less stalls",
    "worst stall ms",
    "scarce: admitted / permitted",
    "hot",
    "fresh",
    "by itself: admitted / permitted",
    "fallback after ms",
    "Redis again after ms",
    "connections",
    "grown kB",
];

pub fn table<'a>(all: impl IntoIterator<Item = &'a Figures>) -> String {
    let ms = |us: u64| format!("{:.1}", us as f64 / 1_000.0);
    let maybe = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), ms);
    let mut text = format!("| {} |\n| ---{} |\n", HEAD.join(" | "), " | ---:".repeat(HEAD.len() - 1));
    for figures in all {
        let admitted = |class| figures.admitted.get(&class).copied().unwrap_or_default();
        let of = |class| {
            let bound = admitted(class);
            format!("{} / {}", bound.admitted, bound.permitted)
        };
        let cells = [
            figures.fault.to_owned(),
            figures.asked.to_string(),
            figures.from("redis").to_string(),
            figures.from("deny_cache").to_string(),
            (figures.from("local") + figures.from("open") + figures.from("closed")).to_string(),
            figures.from("error").to_string(),
            ms(figures.seen.p999_us),
            ms(figures.corrected.p999_us),
            ms(figures.seen.worst_us),
            ms(figures.corrected.worst_us),
            ms(figures.worst_stall_us),
            of(Class::Scarce),
            of(Class::Hot),
            of(Class::Fresh),
            format!("{} / {}", figures.alone.admitted, figures.alone.permitted),
            maybe(figures.first_failure_us),
            maybe(figures.redis_again_us),
            figures.connections.map_or_else(|| "-".to_owned(), |count| count.to_string()),
            figures.grown_kb.to_string(),
        ];
        writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    }
    text
}

/// Each error that was told, and how often.
pub fn errors<'a>(all: impl IntoIterator<Item = &'a Figures>) -> String {
    let mut text = String::new();
    for figures in all.into_iter().filter(|figures| !figures.errors.is_empty()) {
        writeln!(text, "- {}", figures.fault).unwrap();
        for (error, count) in &figures.errors {
            writeln!(text, "  - {count}: {error}").unwrap();
        }
    }
    text
}

pub fn page(all: &[Figures], size: Size) -> String {
    let of = |fallback| all.iter().filter(move |figures| figures.fallback == fallback);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "# What faults do

Written by `scripts/test full`, on {cores} cores; load at its end, with its own: {load}. {processes} processes, half
of them without batching and deny cache, ask 19 gates steadily (a pause of about 12 ms after each answer, 20 tasks
each) with a deadline of 100 ms. After {before:?} a fault is made, held for {hold:?} where it lasts (or comes {times}
times), and mended; {after:?} later they end. What single asks are told in each fault is in [faults.md](faults.md).

- **Latencies** are as the caller saw them, and less what the process itself was not let run: p99.9 within the
  deadline and 20 ms, none beyond it and 250 ms. The worst stall is that of a process within one ask, or of a server.
- **Admitted / permitted** by Redis. \"Scarce\" gates give nothing back: permitted is one limit of 100 for each of
  six, and one more for each loss of state. \"Hot\" gates give 60 units back each 500 ms: permitted is what the
  reference admits to whoever asks for all at the same instants. Of \"fresh\" gates each key, with a limit of 40, is asked
  for half a second.
- **By itself**: what processes admitted without Redis, each within its share of the quota ({processes} processes have a
  quarter each), of all these keys. Where Redis is away once, each process keeps to its share; where it comes and goes, all of them
  and Redis together to the quota and the shares. It was charged to Redis afterwards: fresh keys are looked at in the end.
- **Fallback after**: from the fault to the first ask that Redis did not decide. **Redis again**: from the repair (of a failover: the
  promotion) to the first decision of Redis in the process that waited longest, at most 2 s; from then on it decides all
  (unless somebody was not let run for 20 ms or more, so that deadlines may have passed).
- **Connections** are those that the server, or the proxy before it, took since the fault. **Grown**: the memory of the
  process that grew most. No task, file or connection is left over.

## `OnFailure::Local`, the default

No ask fails.

{local}
## `OnFailure::Error`

{error}
### Errors told

{errors}",
        load = load.join(", "),
        processes = size.processes,
        before = size.before,
        hold = size.hold,
        times = size.times,
        after = size.after,
        local = table(of(Fallback::Local)),
        error = table(of(Fallback::Error)),
        errors = errors(of(Fallback::Error)),
    )
}
