//! The figures as tables, and the page `docs/reference/chaos.md`.

use std::fmt::Write;

use super::bounds::Class;
use super::figures::Figures;
use super::scenario::Size;
use crate::support::load::Fallback;

const HEAD: [&str; 19] = [
    "fault",
    "checks",
    "by Redis",
    "deny cache",
    "fallback",
    "failed",
    "p99.9 ms",
    "without stalls",
    "worst ms",
    "without stalls",
    "worst stall ms",
    "scarce: admitted / permitted",
    "hot",
    "fresh",
    "fallback: admitted / permitted",
    "fallback after ms",
    "Redis again after ms",
    "connections",
    "growth kB",
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
            figures.checks.to_string(),
            figures.from("redis").to_string(),
            figures.from("deny_cache").to_string(),
            (figures.from("local") + figures.from("open") + figures.from("closed")).to_string(),
            figures.from("error").to_string(),
            ms(figures.observed.p999_us),
            ms(figures.corrected.p999_us),
            ms(figures.observed.worst_us),
            ms(figures.corrected.worst_us),
            ms(figures.worst_stall_us),
            of(Class::Scarce),
            of(Class::Hot),
            of(Class::Fresh),
            format!("{} / {}", figures.by_fallback.admitted, figures.by_fallback.permitted),
            maybe(figures.first_failure_us),
            maybe(figures.redis_again_us),
            figures.connections.map_or_else(|| "-".to_owned(), |count| count.to_string()),
            figures.grown_kb.to_string(),
        ];
        writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    }
    text
}

/// Lists the errors of each fault, with their counts.
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
        "# Fleet under load during faults

Written by `scripts/test full` on {cores} cores. The load average at the end, including the test: {load}.

- **Load**: {processes} processes check 19 gates steadily with a deadline of 100 ms. Half of the processes
  have no batching and no deny cache. Each has 20 tasks, which pause for about 12 ms after each reply.
- **Fault**: it begins after {before:?} and is held for {hold:?}, or repeated {times} times. The processes end
  {after:?} after the repair.
- [faults.md](faults.md) lists the outcome of a single check in each fault.

The columns:

- **p99.9, worst**: latencies that callers observed. \"Without stalls\" excludes the time in which the process
  was not scheduled. The bounds without stalls are the deadline plus 20 ms for p99.9, and the deadline plus
  250 ms for all checks.
- **Worst stall**: the longest time in which a process was not scheduled within one check, or a server at a
  time.
- **Scarce, hot, fresh**: units that Redis admitted, and the maximum that the quotas permit.
  - No units of a scarce gate become free. Permitted is one limit of 100 for each of six gates, and one more
    for each loss of state.
  - 60 units of a hot gate become free every 500 ms. Permitted is the number that the reference admits to a
    caller that takes all units it can get at the same instants.
  - Each key of a fresh gate has a limit of 40 and is checked for half a second.
- **Fallback: admitted / permitted**: units of all these keys that processes admitted without Redis. The share
  of a process is the quota divided by {processes}.
  - In a single outage each process stays within its share.
  - In repeated outages all processes and Redis together stay within the quota and the shares.
  - The units are charged to Redis afterwards. The test asserts this for fresh keys at the end.
- **Fallback after**: time from the fault to the first check that Redis did not decide.
- **Redis again after**: time from the repair to the first decision by Redis, in the process that waited
  longest. For a failover the repair is the promotion. The bound is 2 s. From then on Redis decides all
  checks, except in rounds where a process or server was not scheduled for 20 ms or more, since deadlines may
  have passed.
- **Connections**: connections that the server, or the proxy in front of it, accepted since the fault.
- **Growth**: memory growth of the process that grew most. No task, file or connection is left over.

## `OnFailure::Local`, the default

No check returns an error.

{local}
## `OnFailure::Error`

{error}
### Errors

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
