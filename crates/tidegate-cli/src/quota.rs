//! A quota, from arguments or from a rule file.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use tidegate::algorithm::{ALGORITHMS, Definition, Parameters};
use tidegate::quota::Calendar;
use tidegate::{Quota, Rate};
use tidegate_rules::{Rule, Rules};

use crate::failure::Failure;
use crate::known_gates;
use crate::units;

/// The arguments of a quota: an algorithm with its numbers, or rules that contain the gate.
#[derive(Args, Debug)]
#[command(next_help_heading = "Quota")]
#[group(skip)]
pub(crate) struct QuotaArgs {
    #[command(flatten)]
    algorithm: AlgorithmArgs,
    /// Find the gate in this rule file or folder, by its name or the name or path of its rule; without
    /// another quota, its quota applies
    #[arg(long, value_name = "PATH")]
    pub(crate) rules: Option<PathBuf>,
    /// Such as 5/s, 100/m, 1/1500ms
    #[arg(long, value_parser = units::rate, requires = "algorithm")]
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

/// A gate of the arguments.
pub(crate) struct NamedGate {
    pub(crate) name: String,
    /// The quota of the arguments or of the rules; `None` if there is none.
    pub(crate) quota: Option<Quota>,
    pub(crate) is_in_rules: bool,
}

impl NamedGate {
    /// Returns the quota, or an error if there is none.
    pub(crate) fn required_quota(&self) -> Result<Quota, Failure> {
        self.quota.ok_or_else(|| match self.is_in_rules {
            true => Failure::usage(format!(
                "the rule of gate `{}` has no quota: it allows or denies every request",
                self.name
            )),
            false => Failure::usage(HOW_TO_SPECIFY),
        })
    }
}

/// What to do if a quota is missing.
pub(crate) const HOW_TO_SPECIFY: &str =
    "specify the gate's quota, such as `--token-bucket 5 --rate 5/m`, or its rules: --rules PATH";

impl QuotaArgs {
    /// Returns the gate that `gate` names, with its quota.
    pub(crate) fn gate(&self, gate: &str) -> Result<NamedGate, Failure> {
        let quota = self.quota()?;
        let Some(path) = &self.rules else {
            return Ok(NamedGate { name: gate.to_owned(), quota, is_in_rules: false });
        };
        let rules = Rules::load(path).map_err(Failure::ConfigErrors)?;
        let rule = find_rule(&rules, gate)?;
        Ok(NamedGate { name: rule.gate_name(), quota: quota.or(rule.quota()), is_in_rules: true })
    }

    /// Returns the quota of the options, or `None` if they contain none.
    fn quota(&self) -> Result<Option<Quota>, Failure> {
        // clap requires these options with the algorithms that use them.
        let rate = || self.rate.ok_or_else(|| Failure::usage("--rate is missing"));
        let window = || self.window.ok_or_else(|| Failure::usage("--window is missing"));
        let Some((algorithm, limit)) = self.algorithm.0 else { return Ok(None) };
        if let Some(calendar) = self.calendar {
            // clap does not require an option that conflicts with a given one.
            return match algorithm.name {
                "fixed_window" => Ok(Some(Quota::try_calendar_window(limit, calendar)?)),
                _ => Err(Failure::usage("--calendar needs --fixed-window")),
            };
        }
        let mut quota = match algorithm.parameters {
            Parameters::Rate => Quota::with_rate(algorithm, limit, rate()?),
            Parameters::Window => Quota::with_window(algorithm, limit, window()?),
            Parameters::Count => Quota::with_count(algorithm, limit),
        }?;
        if let Some(offset) = self.by_clock {
            quota = quota.try_aligned_to_clock_at(offset)?;
        }
        if self.count_denied {
            quota = quota.try_count_denied()?;
        }
        Ok(Some(quota))
    }
}

/// Returns the rule with this gate, path or name.
pub(crate) fn find_rule<'r>(rules: &'r Rules, text: &str) -> Result<&'r Rule, Failure> {
    // Names and paths need not be unique; gates are.
    let by_gate = rules.iter().find(|rule| rule.gate_name() == text);
    let named = || rules.iter().filter(|rule| rule.path() == text || rule.name() == Some(text));
    let found: Vec<&Rule> = by_gate.map_or_else(|| named().collect(), |rule| vec![rule]);
    let gates = |rules: &mut dyn Iterator<Item = &Rule>| {
        let gates: BTreeSet<String> = rules.map(Rule::gate_name).collect();
        known_gates::list(gates.iter().map(String::as_str))
    };
    match found.as_slice() {
        [rule] => Ok(rule),
        [] => {
            let gate_names: Vec<String> = rules.iter().map(Rule::gate_name).collect();
            let names = rules.iter().flat_map(|rule| [Some(rule.path()), rule.name()]).flatten();
            let known = gate_names.iter().map(String::as_str).chain(names);
            let near = known_gates::did_you_mean(text, known);
            Err(Failure::usage(format!(
                "no rule has the gate, path or name `{text}`{near}\ngates in the rules: {}",
                gates(&mut rules.iter())
            )))
        }
        several => Err(Failure::usage(format!(
            "{} rules have the name `{text}`: give one of their gates: {}",
            several.len(),
            gates(&mut several.iter().copied())
        ))),
    }
}
