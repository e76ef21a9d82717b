//! The settings of `serve`, from clap's definitions of its arguments.

use std::fmt;

use clap::{Arg, ArgAction, CommandFactory};
use tidegate_rules::similar_name;

use crate::args::Cli;
use crate::connect::VARIABLE;

/// The beginning of the names of variables.
pub(crate) const PREFIX: &str = "TIDEGATE_";
/// Arguments that are no settings: they say where settings come from, or do something else than serve.
const NO_SETTINGS: [&str; 5] = ["config", "from-env", "check", "help", "version"];

/// A setting of `serve`.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its name in the file.
    pub(crate) name: String,
    /// Its argument in clap.
    pub(crate) id: String,
    pub(crate) option: String,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    One,
    List,
    Switch,
}

/// The values of a setting from one place: one, except of a list.
#[derive(Debug)]
pub(crate) struct SettingValue {
    pub(crate) name: String,
    pub(crate) texts: Vec<String>,
    pub(crate) origin: Origin,
}

/// Where the value of a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(String),
    Variable(String),
    /// The path, the line and the column.
    File(String),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) | Self::File(name) => f.write_str(name),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Returns all settings, in the order of the help text.
pub(crate) fn settings() -> Vec<Setting> {
    let mut command = Cli::command();
    // Makes the global arguments, those of Redis, known to each subcommand.
    command.build();
    let serve = command.find_subcommand("serve");
    serve.into_iter().flat_map(|serve| serve.get_arguments()).filter_map(setting).collect()
}

fn setting(arg: &Arg) -> Option<Setting> {
    let option = arg.get_long().filter(|option| !NO_SETTINGS.contains(option))?;
    let kind = match arg.get_action() {
        ArgAction::SetTrue => Kind::Switch,
        ArgAction::Append => Kind::List,
        _ => Kind::One,
    };
    Some(Setting {
        name: option.replace('-', "_"),
        id: arg.get_id().to_string(),
        option: option.to_owned(),
        kind,
    })
}

impl Setting {
    /// Returns the name of its variable in the environment.
    pub(crate) fn variable(&self) -> String {
        match &*self.name {
            "redis" => VARIABLE.to_owned(),
            name => format!("{PREFIX}{}", name.to_uppercase()),
        }
    }
}

/// Returns the name of the setting that a word may mean.
pub(crate) fn closest<'s>(word: &str, settings: &'s [Setting]) -> Option<&'s str> {
    similar_name(&word.replace('-', "_"), settings.iter().map(|setting| &*setting.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_one_name_in_all_places() {
        let settings = settings();
        let names: Vec<&str> = settings.iter().map(|setting| &*setting.name).collect();
        for name in ["rules", "redis", "namespace", "grpc_addr", "grpc_client_san", "charge", "json"] {
            assert!(names.contains(&name), "{name} in {names:?}");
        }
        assert!(!names.contains(&"config") && !names.contains(&"help"), "{names:?}");
        let variable = |name: &str| settings.iter().find(|setting| setting.name == name).unwrap().variable();
        assert_eq!(variable("grpc_addr"), "TIDEGATE_GRPC_ADDR");
        assert_eq!(variable("redis"), "TIDEGATE_REDIS_URL");
        assert_eq!(variable("namespace"), "TIDEGATE_NAMESPACE");
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
    }

    #[test]
    fn similar_names_are_suggested_and_unlike_ones_are_not() {
        let settings = settings();
        for (word, expected) in [
            ("grpc_adr", Some("grpc_addr")),
            ("grpc-addr", Some("grpc_addr")),
            ("Namespace", Some("namespace")),
            ("drian", Some("drain")),
            ("", None),
            ("x", None),
            ("quota", None),
        ] {
            assert_eq!(closest(word, &settings), expected, "{word}");
        }
        assert_eq!(closest(&"grpc_addr".repeat(1_000), &settings), None);
    }
}
