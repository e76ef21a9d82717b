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
    /// What three regions admit under demand around a limit
    Traffic,
    /// 10,000 keys a second in each region
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
