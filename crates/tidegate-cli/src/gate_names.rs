//! The names of gates: those by which an operator names one, and those that the program shows.

use std::collections::HashMap;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap_complete::{ArgValueCompleter, CompletionCandidate};
use tidegate::admin::{ChangedGate, did_you_mean, listed};
use tidegate::{Limiter, Quota, Rate};
use tidegate_rules::{ConfigErrors, Loader, Rules};

use crate::failure::Failure;
use crate::output::{Output, warn};

/// The variable with the rules in which gates are found without `--rules`.
const VARIABLE: &str = "TIDEGATE_RULES";

/// The rules whose gates a command reads and shows by their rule, if it has any.
#[derive(Default)]
pub(crate) struct GateNames {
    rules: Option<Rules>,
    /// Whether the rules are those of `--rules`: the gate of the command must be one of them.
    are_given: bool,
    /// The readable names, by those in Redis.
    readable: HashMap<String, String>,
}

impl GateNames {
    /// Loads these rules, or those of the environment. Of the latter, an error is only a warning, since each gate still has
    /// its name in Redis.
    pub(crate) fn load(given: Option<&Path>, out: Output) -> Result<Self, Failure> {
        let rules = match given {
            Some(path) => Some(Rules::load(path).map_err(Failure::ConfigErrors)?),
            None => rules_of_environment(out),
        };
        let gates = rules.iter().flat_map(Rules::gates);
        let readable = gates.map(|gate| (gate.name().to_owned(), gate.readable_name())).collect();
        Ok(Self { rules, are_given: given.is_some(), readable })
    }

    pub(crate) const fn rules(&self) -> Option<&Rules> {
        self.rules.as_ref()
    }

    /// Returns the name that is shown for a gate.
    pub(crate) fn shown<'n>(&'n self, gate: &'n str) -> &'n str {
        self.readable.get(gate).map_or(gate, String::as_str)
    }

    /// Returns the gate that `name` means. Rejects an invalid name before the command prints it: it may be a URL with a
    /// password.
    pub(crate) fn find(&self, name: &str, limiter: &Limiter) -> Result<ChangedGate, Failure> {
        let named = self.rules.iter().flat_map(|rules| rules.gates_named(name));
        let found = ChangedGate::named(name, named.map(ChangedGate::from))?;
        let any = Quota::token_bucket(1, Rate::per_second(1));
        match (&self.rules, limiter.try_gate(name, any)) {
            _ if found.is_in_rules => Ok(found),
            (Some(rules), valid) if self.are_given || valid.is_err() => Err(no_rule(rules, name)),
            (_, Ok(_)) => Ok(found),
            (_, Err(error)) => Err(Failure::usage(format!(
                "{error}; if this is the name or path of a rule, add --rules PATH or set {VARIABLE}"
            ))),
        }
    }
}

fn rules_of_environment(out: Output) -> Option<Rules> {
    let loaded = load(&path_of_environment()?);
    loaded.map_err(|errors| warn(out.json, &format!("{VARIABLE} names no gates: {errors}"))).ok()
}

fn path_of_environment() -> Option<PathBuf> {
    env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Loads rules for the names of their gates. Also those of a service that merges domains.
fn load(path: &Path) -> Result<Rules, ConfigErrors> {
    Loader::new().merge_domains(true).load(path)
}

/// Completes the name of a gate in a shell, by the rules of the command line or of the environment.
pub(crate) fn completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut words = env::args_os();
        let given = words.by_ref().find(|word| word == "--rules").and_then(|_| words.next());
        let rules = given.map(PathBuf::from).or_else(path_of_environment);
        let rules = rules.and_then(|path| load(&path).ok());
        let gates = rules.iter().flat_map(Rules::gates);
        gates
            .filter(|gate| gate.name().as_bytes().starts_with(typed.as_encoded_bytes()))
            .map(|gate| CompletionCandidate::new(gate.name()).help(Some(gate.readable_name().into())))
            .collect()
    })
}

fn no_rule(rules: &Rules, name: &str) -> Failure {
    let readable: Vec<String> = rules.gates().map(|gate| gate.readable_name()).collect();
    let names = rules.gates().map(|gate| gate.name().to_owned()).collect::<Vec<_>>();
    let of_rules = rules.iter().flat_map(|rule| [Some(rule.path()), rule.name()]).flatten();
    let all = readable.iter().chain(&names).map(String::as_str).chain(of_rules);
    Failure::usage(format!(
        "no rule has the gate, path or name `{name}`{}\ngates in the rules: {}",
        did_you_mean(name, all),
        listed(readable.iter().map(String::as_str)),
    ))
}
