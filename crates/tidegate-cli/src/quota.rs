//! A quota or a gate, from arguments or from a rule file.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use tidegate::admin::{ChangedGate, quota_of};
use tidegate::algorithm::{ALGORITHMS, Definition, Parameters};
use tidegate::quota::Calendar;
use tidegate::{Limiter, Quota, Rate};

use crate::failure::Failure;
use crate::gate_names::{self, GateNames};
use crate::output::Output;
use crate::units;

/// The arguments of a quota: an algorithm with its numbers, or rules that contain the gate.
#[derive(Args, Debug)]
#[command(next_help_heading = "Quota")]
#[group(skip)]
pub(crate) struct QuotaArgs {
    #[command(flatten)]
    algorithm: AlgorithmArgs,
    /// The quota as text, such as "100/min", "5/min burst 20" or "10 in flight", instead of an algorithm with its
    /// numbers
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = units::limit::<Quota>,
        conflicts_with_all = ["algorithm", "rate", "length", "by_clock", "count_denied"])]
    quota: Option<Quota>,
    /// Find the gate in this rule file or folder, by its name or the name or path of its rule; without
    /// another quota, its quota applies [env: TIDEGATE_RULES, which need not have the gate]
    #[arg(long, value_name = "PATH")]
    pub(crate) rules: Option<PathBuf>,
    /// Such as 5/s, 100/m, 1/1500ms
    #[arg(long, allow_hyphen_values = true, value_parser = units::limit::<Rate>, requires = "algorithm")]
    rate: Option<Rate>,
    /// Such as 90s, 1h30m, 7d
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "algorithm", group = "length")]
    window: Option<Duration>,
    /// Instead of --window: day, week, month, quarter or year, such as month+15@Europe/Berlin for months that begin on
    /// the 15th in this time zone, week+7 for weeks that begin on Sunday, year+02-29
    #[arg(long, value_parser = Calendar::from_str, requires = "fixed_window", group = "length",
        conflicts_with_all = ["window", "by_clock"])]
    calendar: Option<Calendar>,
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
            let arg = match algorithm.parameters {
                Parameters::Rate => arg.requires("rate"),
                // Of the windows, only a fixed one can follow a calendar.
                Parameters::Window if algorithm.name == "fixed_window" => arg.requires("length"),
                Parameters::Window => arg.requires("window"),
                Parameters::Count => arg.conflicts_with_all(["rate", "window", "calendar"]),
            };
            let arg = arg.help(algorithm.help).group("algorithm");
            command.arg(arg.value_parser(units::whole).allow_hyphen_values(true))
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

/// Returns the quota of the options or of the rule, or an error if there is none.
pub(crate) fn required_quota(gate: &ChangedGate, given: Option<Quota>) -> Result<Quota, Failure> {
    given.or(gate.quota).ok_or_else(|| match gate.is_in_rules {
        true => Failure::usage(format!(
            "the rule of gate `{gate}` has no quota: it allows or denies every request"
        )),
        false => Failure::usage(HOW_TO_SPECIFY),
    })
}

/// What to do if a quota is missing.
pub(crate) const HOW_TO_SPECIFY: &str =
    "specify the gate's quota, such as `--quota \"5/min burst 5\"`, or its rules: --rules PATH";

impl QuotaArgs {
    /// Returns the gate that `gate` names, and the quota of the options.
    pub(crate) fn gate(
        &self,
        gate: &str,
        limiter: &Limiter,
        out: Output,
    ) -> Result<(ChangedGate, Option<Quota>), Failure> {
        let quota = self.quota()?;
        Ok((GateNames::load(self.rules.as_deref(), out)?.find(gate, limiter)?, quota))
    }

    /// Returns the quota of the options, or `None` if they contain none.
    fn quota(&self) -> Result<Option<Quota>, Failure> {
        let Some((algorithm, limit)) = self.algorithm.0 else { return Ok(self.quota) };
        if let Some(calendar) = self.calendar {
            // clap does not require an option that conflicts with a given one.
            return match algorithm.name {
                "fixed_window" => Ok(Some(Quota::try_calendar_window(limit, calendar)?)),
                _ => Err(Failure::usage("--calendar needs --fixed-window")),
            };
        }
        let mut quota = quota_of(algorithm, limit, self.rate, self.window)?;
        if let Some(offset) = self.by_clock {
            quota = quota.try_aligned_to_clock_at(offset)?;
        }
        if self.count_denied {
            quota = quota.try_count_denied()?;
        }
        Ok(Some(quota))
    }
}

/// The rules in which a gate is found.
#[derive(Args, Debug)]
pub(crate) struct InRules {
    /// Find the gate in this rule file or folder, by its name or the name or path of its rule, and show gates by
    /// their rules [env: TIDEGATE_RULES, which need not have the gate]
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,
}

/// The gate whose state is shown.
#[derive(Args, Debug)]
pub(crate) struct ShownGate {
    /// Show only this gate
    #[arg(long, add = gate_names::completer())]
    gate: Option<String>,
    #[command(flatten)]
    rules: InRules,
}

impl InRules {
    pub(crate) fn names(&self, out: Output) -> Result<GateNames, Failure> {
        GateNames::load(self.rules.as_deref(), out)
    }
}

impl ShownGate {
    /// Returns the name of the gate, or `None` for all gates; and the names that are shown.
    pub(crate) fn read(
        &self,
        limiter: &Limiter,
        out: Output,
    ) -> Result<(Option<String>, GateNames), Failure> {
        let names = self.rules.names(out)?;
        let gate = self.gate.as_ref().map(|gate| names.find(gate, limiter)).transpose()?;
        Ok((gate.map(|gate| gate.name), names))
    }
}
