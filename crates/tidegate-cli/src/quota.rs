//! A quota, from arguments or from a rule file.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use tidegate::algorithm::{ALGORITHMS, Definition, Parameters};
use tidegate::{Quota, Rate};
use tidegate_rules::Rules;

use crate::failure::Failure;
use crate::units;

/// The arguments of a quota: an algorithm with its numbers, or rules that contain the gate.
#[derive(Args, Debug)]
#[command(next_help_heading = "Quota")]
#[group(skip)]
pub(crate) struct QuotaArgs {
    #[command(flatten)]
    algorithm: AlgorithmArgs,
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

/// The algorithm and its limit: an option for each algorithm.
#[derive(Debug)]
struct AlgorithmArgs(Option<(&'static Definition, u64)>);

impl Args for AlgorithmArgs {
    fn augment_args(command: Command) -> Command {
        ALGORITHMS.into_iter().fold(command, |command, algorithm| {
            let option: &str = algorithm.name.replace('_', "-").leak();
            let arg = Arg::new(algorithm.name).long(option).value_name(algorithm.limit_name);
            let requires = match algorithm.parameters {
                Parameters::Rate => "rate",
                Parameters::Window => "window",
            };
            let arg = arg.help(algorithm.help).requires(requires).group("algorithm");
            command.arg(arg.value_parser(value_parser!(u64)))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AlgorithmArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let limit = |algorithm: &'static Definition| Some((algorithm, *matches.get_one(algorithm.name)?));
        Ok(Self(ALGORITHMS.into_iter().find_map(limit)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
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
        let Some((algorithm, limit)) = self.algorithm.0 else { return Ok(None) };
        let mut quota = match algorithm.parameters {
            Parameters::Rate => Quota::with_rate(algorithm, limit, rate()?),
            Parameters::Window => Quota::with_window(algorithm, limit, window()?),
        }?;
        if let Some(offset) = self.by_clock {
            quota = quota.try_aligned_to_clock_at(offset)?;
        }
        if self.count_denied {
            quota = quota.try_count_denied()?;
        }
        Ok(Some(quota))
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
