//! Interleaved rounds: each subject has one turn per round, and each round starts with another subject. Other
//! load on the machine therefore affects all of them equally.

use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::case::Case;
use crate::entrant::Runs;
use crate::measure::Round;
use crate::server::Target;
use crate::subjects::{self, Field, Info, Kind};
use crate::{Length, progress};

/// One subject in one case on one server.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) info: Info,
    pub(crate) server: String,
    pub(crate) is_main: bool,
    pub(crate) rounds: Vec<Round>,
    /// The reason, if the subject did not take part.
    pub(crate) absent: Option<String>,
    /// The error, if the subject failed. A failed subject has no figures.
    pub(crate) failed: Option<String>,
}

impl Row {
    fn new(case: Case, info: Info, server: &str, is_main: bool) -> Self {
        let server = server.to_owned();
        Self { case, info, server, is_main, rounds: Vec::new(), absent: None, failed: None }
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.absent.is_none() && self.failed.is_none() && !self.rounds.is_empty()
    }

    /// Returns whether the row fails the run. A failed peer or baseline only marks its row. A failure of
    /// tidegate fails the run.
    pub(crate) fn fails_the_run(&self) -> bool {
        self.failed.is_some() && self.info.kind == Kind::Ours
    }

    /// Returns the median over all rounds.
    pub(crate) fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect())
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.median(Round::per_second)
    }

    pub(crate) fn us(&self, quantile: f64) -> f64 {
        self.median(|round| round.took_ns.value_at_quantile(quantile) as f64 / 1000.0)
    }

    pub(crate) fn redis_us(&self) -> Option<f64> {
        self.median_known(Round::redis_us)
    }

    pub(crate) fn call_p99_us(&self) -> Option<f64> {
        self.median_known(|round| round.cost.as_ref()?.call_p99_us)
    }

    fn median_known(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let known: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| median(known))
    }

    /// Returns the longest time over all rounds.
    pub(crate) fn longest_hold_us(&self) -> Option<f64> {
        let longest = self.rounds.iter().filter_map(|round| round.cost.as_ref()?.longest_us);
        longest.max_by(f64::total_cmp)
    }
}

#[cfg(test)]
impl Row {
    /// Returns a row of one second on the first server, for tests of code that reads rows.
    pub(crate) fn of_one_round(case: Case, name: &'static str, kind: Kind, checks: u64) -> Self {
        let info = Info { name, title: name, note: "", kind, max_capacity: u64::MAX };
        let round = Round {
            checks,
            allowed: checks,
            fell_back: 0,
            failed: 0,
            first_error: None,
            seconds: 1.0,
            took_ns: hdrhistogram::Histogram::new(3).unwrap(),
            cost: None,
        };
        Self { rounds: vec![round], ..Self::new(case, info, "a server", true) }
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Runs a case on all servers.
pub(crate) fn run(
    runtime: &Runtime,
    case: Case,
    targets: &[Arc<Target>],
    rounds: usize,
    length: Length,
) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut running: Vec<(usize, Box<dyn Runs>)> = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let Field { present, absent } = subjects::of(case, target, index == 0);
        for (info, reason) in absent {
            // Another server can run this subject.
            if targets.len() == 1 || info.name == "tower-redis-cell" {
                let mut row = Row::new(case, info, &target.title, index == 0);
                row.absent = Some(reason);
                rows.push(row);
            }
        }
        for mut runs in present {
            let mut row = Row::new(case, runs.info(), &target.title, index == 0);
            progress(&format!("{}: preparing {}", case.name(), row.info.name));
            match runs.prepare(runtime) {
                Ok(()) => running.push((rows.len(), runs)),
                Err(error) => row.failed = Some(error.to_string()),
            }
            rows.push(row);
        }
    }
    let (rounds, length) = cut(case, rounds, length);
    for round in 0..rounds {
        for turn in 0..running.len() {
            let (row, runs) = &running[(round + turn) % running.len()];
            let row = &mut rows[*row];
            if row.failed.is_some() {
                continue;
            }
            progress(&format!("{}: round {} of {rounds}, {}", case.name(), round + 1, row.info.name));
            match runs.round(runtime, length) {
                Ok(result) => {
                    row.failed = wrong(case, row.info, &result);
                    row.rounds.push(result);
                }
                Err(error) => row.failed = Some(error.to_string()),
            }
        }
    }
    progress("");
    rows
}

fn cut(case: Case, rounds: usize, length: Length) -> (usize, Length) {
    let turns = case.turns();
    let length = Length { warm: length.warm / turns, measured: length.measured / turns };
    (rounds * turns as usize, length)
}

/// Returns why a round counts as failed, if it does: errors, no answers, or wrong decisions.
fn wrong(case: Case, info: Info, round: &Round) -> Option<String> {
    let Round { checks, allowed, failed, .. } = *round;
    if failed > 0 {
        let first = round.first_error.as_deref().unwrap_or_default();
        return Some(format!("{failed} errors, {checks} answers; first error: {first}"));
    }
    if checks == 0 {
        return Some("no answers".to_owned());
    }
    if case == Case::HotDenied {
        // A window may end within a round. A peer may also count each window twice. tidegate is exact.
        let max_allowed = case.limit().capacity * if info.kind == Kind::Peer { 4 } else { 2 };
        return (allowed > max_allowed)
            .then(|| format!("admitted {allowed} of {checks} under a limit of 100"));
    }
    (allowed < checks)
        .then(|| format!("denied {} of {checks} under a limit that admits all", checks - allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_value_or_between_the_two_middle_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }
}
