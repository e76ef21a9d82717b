//! Measures limits of several regions: the cost of a check, traffic around a limit, load on many keys, and a cut.

mod cost;
mod cut;
mod fleet;
mod load;
mod traffic;

use clap::ValueEnum;
use serde_json::Value as Json;
use tokio::runtime::Runtime;

use crate::{Failure, Options};

/// The number of regions.
const REGIONS: usize = 3;

/// A part of the measurement.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Part {
    /// CPU time of Redis per check of a replicated gate beside that of a plain gate, per flush and per change
    Cost,
    /// Admitted checks under demand around a limit, and the delay of charges
    Traffic,
    /// Load on many keys: what it costs the servers, and whether replication keeps up
    Load,
    /// The latency of checks while a peer is cut off
    Cut,
}

impl Part {
    /// Runs the part. Returns Markdown tables, and the figures.
    pub(crate) fn run(self, runtime: &Runtime, options: &Options) -> Result<(String, Json), Failure> {
        match self {
            Self::Cost => cost::run(options),
            Self::Traffic => runtime.block_on(traffic::run(options)),
            Self::Load => runtime.block_on(load::run(options)),
            Self::Cut => runtime.block_on(cut::run(options)),
        }
    }
}

/// Returns a Markdown table, whose first column is text.
fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    let mut rule = vec!["---:".to_owned(); head.len()];
    rule[0] = "---".to_owned();
    rows.into_iter().fold(line(&head) + &line(&rule), |text, row| text + &line(&row))
}

/// Returns a number of a result by its JSON pointer.
fn number(result: &Json, at: &str) -> f64 {
    result.pointer(at).and_then(Json::as_f64).unwrap_or(f64::NAN)
}
