//! A quota, from arguments or from a rule file.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate::rules::Rules;
use tidegate::{Quota, Rate};

use crate::failure::Failure;
use crate::units;

/// The arguments of a quota: an algorithm with its numbers, or rules that contain the gate.
#[derive(Args, Debug)]
#[command(next_help_heading = "Quota")]
#[group(skip)]
pub(crate) struct QuotaArgs {
    /// A bucket of this many units, refilled at --rate
    #[arg(long, value_name = "CAPACITY", requires = "rate", group = "algorithm")]
    token_bucket: Option<u64>,
    /// A queue of this many units, drained at --rate
    #[arg(long, value_name = "QUEUE", requires = "rate", group = "algorithm")]
    leaky_bucket: Option<u64>,
    /// The units per --window, which begins with its first unit
    #[arg(long, value_name = "LIMIT", requires = "window", group = "algorithm")]
    fixed_window: Option<u64>,
    /// The units in any period of --window
    #[arg(long, value_name = "LIMIT", requires = "window", group = "algorithm")]
    sliding_log: Option<u64>,
    /// The approximate units in any period of --window
    #[arg(long, value_name = "LIMIT", requires = "window", group = "algorithm")]
    sliding_counter: Option<u64>,
    /// The quota of the gate in this rule file or folder
    #[arg(long, value_name = "PATH", group = "algorithm")]
    pub(crate) rules: Option<PathBuf>,
    /// Such as 5/s, 100/m, 1/1500ms
    #[arg(long, value_parser = units::rate, requires = "algorithm")]
    rate: Option<Rate>,
    /// Such as 90s, 1h30m, 7d
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "algorithm")]
    window: Option<Duration>,
    /// Align fixed windows to the clock, with this offset from 00:00 UTC
    #[arg(long, value_name = "OFFSET", value_parser = units::duration, requires = "fixed_window",
        num_args = 0..=1, default_missing_value = "0s")]
    by_clock: Option<Duration>,
    /// Count denied checks in a sliding log too
    #[arg(long, requires = "sliding_log")]
    count_denied: bool,
}

impl QuotaArgs {
    /// Returns the quota for a gate, or `None` if the arguments contain none.
    pub(crate) fn quota(&self, gate: &str) -> Result<Option<Quota>, Failure> {
        if let Some(path) = &self.rules {
            return quota_in_rules(&Rules::load(path).map_err(Failure::ConfigErrors)?, gate).map(Some);
        }
        // clap requires these options with the algorithms that use them.
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

    /// Returns [`quota`](Self::quota), or an error if the arguments contain none.
    pub(crate) fn required(&self, gate: &str) -> Result<Quota, Failure> {
        let how =
            "specify the gate's quota, such as `--token-bucket 5 --rate 5/m`, or its rules: --rules PATH";
        self.quota(gate)?.ok_or_else(|| Failure::usage(how))
    }
}

fn quota_in_rules(rules: &Rules, gate: &str) -> Result<Quota, Failure> {
    let Some(rule) = rules.iter().find(|rule| rule.gate_name() == gate) else {
        let names: Vec<String> = rules.iter().take(10).map(|rule| rule.gate_name()).collect();
        return Err(Failure::usage(format!(
            "no rule has the gate `{gate}`; gates in the rules: {}",
            names.join(", ")
        )));
    };
    rule.quota().ok_or_else(|| {
        Failure::usage(format!("the rule of gate `{gate}` has no quota: it allows or denies every request"))
    })
}
