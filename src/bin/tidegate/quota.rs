//! A quota, from arguments or from a file of rules.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate::rules::Rules;
use tidegate::{Quota, Rate};

use crate::failure::Failure;
use crate::units;

/// One algorithm with its numbers, or rules that have the gate.
#[derive(Args, Debug)]
#[command(next_help_heading = "Quota")]
#[group(skip)]
pub(crate) struct QuotaArgs {
    /// A bucket of so many units, refilled at --rate
    #[arg(long, value_name = "CAPACITY", requires = "rate", group = "algorithm")]
    token_bucket: Option<u64>,
    /// A queue of so many places, drained at --rate
    #[arg(long, value_name = "QUEUE", requires = "rate", group = "algorithm")]
    leaky_bucket: Option<u64>,
    /// So many units in each --window, from the first on
    #[arg(long, value_name = "LIMIT", requires = "window", group = "algorithm")]
    fixed_window: Option<u64>,
    /// So many units in any --window
    #[arg(long, value_name = "LIMIT", requires = "window", group = "algorithm")]
    sliding_log: Option<u64>,
    /// About so many units in any --window
    #[arg(long, value_name = "LIMIT", requires = "window", group = "algorithm")]
    sliding_counter: Option<u64>,
    /// The gate's, in this file or folder of rules
    #[arg(long, value_name = "PATH", group = "algorithm")]
    pub(crate) rules: Option<PathBuf>,
    /// Such as 5/s, 100/m, 1/1500ms
    #[arg(long, value_parser = units::rate, requires = "algorithm")]
    rate: Option<Rate>,
    /// Such as 90s, 1h30m, 7d
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "algorithm")]
    window: Option<Duration>,
    /// Fixed windows begin by the clock, so much later than 00:00 UTC
    #[arg(long, value_name = "OFFSET", value_parser = units::duration, requires = "fixed_window",
        num_args = 0..=1, default_missing_value = "0s")]
    by_clock: Option<Duration>,
    /// A log counts denied asks too
    #[arg(long, requires = "sliding_log")]
    count_denied: bool,
}

impl QuotaArgs {
    /// The quota for a gate, if one was given.
    pub(crate) fn quota(&self, gate: &str) -> Result<Option<Quota>, Failure> {
        if let Some(path) = &self.rules {
            return of_rules(&Rules::load(path).map_err(Failure::Mistakes)?, gate).map(Some);
        }
        // Each of these is there where the other is.
        let rate = || self.rate.ok_or_else(|| Failure::usage("--rate is missing"));
        let window = || self.window.ok_or_else(|| Failure::usage("--window is missing"));
        Ok(Some(if let Some(capacity) = self.token_bucket {
            Quota::try_token_bucket(capacity, rate()?)?
        } else if let Some(queue) = self.leaky_bucket {
            Quota::try_leaky_bucket(queue, rate()?)?
        } else if let Some(limit) = self.fixed_window {
            let quota = Quota::try_fixed_window(limit, window()?)?;
            match self.by_clock {
                Some(offset) => quota.try_aligned_to_clock_at(offset)?,
                None => quota,
            }
        } else if let Some(limit) = self.sliding_log {
            let quota = Quota::try_sliding_log(limit, window()?)?;
            if self.count_denied { quota.try_count_denied()? } else { quota }
        } else if let Some(limit) = self.sliding_counter {
            Quota::try_sliding_counter(limit, window()?)?
        } else {
            return Ok(None);
        }))
    }

    /// As [`quota`](Self::quota), where there has to be one.
    pub(crate) fn required(&self, gate: &str) -> Result<Quota, Failure> {
        let how =
            "say the gate's quota, such as `--token-bucket 5 --rate 5/m`, or where it stands: --rules PATH";
        self.quota(gate)?.ok_or_else(|| Failure::usage(how))
    }
}

fn of_rules(rules: &Rules, gate: &str) -> Result<Quota, Failure> {
    let Some(rule) = rules.iter().find(|rule| rule.gate_name() == gate) else {
        let names: Vec<String> = rules.iter().take(10).map(|rule| rule.gate_name()).collect();
        return Err(Failure::usage(format!("no rule has the gate `{gate}`: there are {}", names.join(", "))));
    };
    rule.quota().ok_or_else(|| Failure::usage(format!("the rule of `{gate}` has nothing to count")))
}
