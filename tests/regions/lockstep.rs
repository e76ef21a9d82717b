//! The scripts of the mode gossip and the model do the same: random sequences of operations, deliveries and faults run on
//! real servers with stopped clocks and on the model, and each step leaves equal states, to the unit.

mod pair;
mod planted_mistakes;
mod sequence;

use self::pair::{Pair, Seen};
use self::sequence::{Family, Sequence};
use crate::support::plan::sequences;

/// The servers of up to three regions, with the scripts.
struct Servers(Vec<Pair>);

impl Servers {
    fn start() -> Self {
        Self((0..3).map(Pair::new).collect())
    }

    /// Runs sequences until one differs. Returns the first difference.
    fn run(&mut self, family: Family, seeds: std::ops::Range<u64>) -> Result<(), String> {
        for seed in seeds {
            let mut sequence = Sequence::new(family, seed, std::mem::take(&mut self.0));
            let result = sequence.run();
            let steps = sequence.steps();
            self.0 = sequence.pairs;
            result.map_err(|error| format!("{family:?}, seed {seed}: {steps}\n{error}"))?;
        }
        Ok(())
    }
}

fn assert_lockstep(family: Family) {
    let mut servers = Servers::start();
    servers.0.iter_mut().for_each(|pair| pair.load(str::to_owned));
    let count = u64::from(sequences() / 5);
    servers.run(family, 0..count).unwrap_or_else(|error| panic!("{error}"));
    let seen: Vec<_> = servers.0.iter().map(|pair| pair.seen).collect();
    eprintln!("{family:?}: {count} sequences, by region {seen:?}");
    let decides = |seen: &Seen| seen.admitted > 0 && seen.denied > 0 && seen.shared > 0 && seen.applied > 0;
    assert!(seen.iter().all(decides), "{seen:?}");
}

#[test]
fn token_bucket_runs_in_lockstep() {
    assert_lockstep(Family::TokenBucket);
}

#[test]
fn leaky_bucket_runs_in_lockstep() {
    assert_lockstep(Family::LeakyBucket);
}

#[test]
fn fixed_window_runs_in_lockstep() {
    assert_lockstep(Family::FixedWindow);
}

#[test]
fn sliding_log_runs_in_lockstep() {
    assert_lockstep(Family::SlidingLog);
}

#[test]
fn sliding_counter_runs_in_lockstep() {
    assert_lockstep(Family::SlidingCounter);
}
