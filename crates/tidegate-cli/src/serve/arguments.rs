//! Merges the settings of `serve` into its arguments. Each argument of `serve` that has a value or is a switch is a
//! setting under the same name in
//! the environment and in the file. The first of these has precedence:
//!
//! 1. the flag, `--grpc-addr`
//! 2. the environment, `TIDEGATE_GRPC_ADDR`
//! 3. the file of `--config`, `grpc_addr`
//! 4. with `--from-env`, the environment of envoyproxy/ratelimit: see [`from_env`](super::from_env)
//! 5. the default
//!
//! The definitions in `args` are the only place of a setting: settings of the environment and of the file become further
//! arguments, which clap parses.

use std::env;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};
use serde_json::Value;
#[cfg(feature = "console")]
use tidegate_console::{Console, audit_json};
use tidegate_rules::similar_name;
use tidegate_server::{Admin, AdminTokens, AdminTokensError, Role};

use super::config_file::is_word;
use super::setting::{Kind, Origin, PREFIX, Setting, SettingValue, settings};
use super::{config_file, from_env, relations};
use crate::args::{AdminPort, Cli, Serve};
use crate::connect::{PASSWORD_VARIABLE, VARIABLE};
use crate::failure::Failure;
use crate::option_file;
#[cfg(feature = "console")]
use crate::output::audit;
use crate::redis_url::{Password, RedisUrl, redact_urls};

const CONFIG_VARIABLE: &str = "TIDEGATE_CONFIG";

/// The arguments with the settings of all places.
#[derive(Debug, Default)]
pub(crate) struct MergedArguments {
    /// The arguments of the command line, then those of the other places.
    pub(crate) arguments: Vec<OsString>,
    /// The origins of all settings that are not defaults, by their names.
    origins: Vec<(String, Origin)>,
    /// Whether the URLs of Redis are not those of a flag.
    pub(crate) urls_are_hidden: bool,
    /// A password of Redis that is no setting.
    pub(crate) password: Option<Password>,
    pub(crate) warnings: Vec<String>,
}

impl MergedArguments {
    /// Returns where the value of a setting comes from.
    pub(crate) fn origin(&self, name: &str) -> Origin {
        let known = self.origins.iter().find(|(of, _)| of == name);
        known.map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// Returns the places of the settings that a message names, if they are not flags.
    pub(crate) fn places(&self, message: &str) -> String {
        let is_named = |name: &str| {
            let option = format!("--{}", name.replace('_', "-"));
            message.contains(&option) || message.contains(&format!("`{name}`")) || message.starts_with(name)
        };
        let elsewhere = self.origins.iter().filter(|(_, origin)| !matches!(origin, Origin::Flag(_)));
        let named = elsewhere.filter(|(name, _)| is_named(name));
        named.map(|(name, origin)| format!("\n{origin}: the setting `{name}`")).collect()
    }

    fn add(&mut self, setting: &Setting, value: SettingValue) {
        // `connect` reads this variable itself, since a password of the environment is for its URL.
        let is_read_later = value.origin == Origin::Variable(VARIABLE.to_owned());
        match setting.kind {
            _ if is_read_later => {}
            // A switch that is off has no argument.
            Kind::Switch if value.texts.iter().all(|text| text == "false") => {}
            Kind::Switch => self.arguments.push(format!("--{}", setting.option).into()),
            Kind::One | Kind::List => {
                let arguments = value.texts.iter().map(|text| format!("--{}={text}", setting.option).into());
                self.arguments.extend(arguments);
            }
        }
        self.urls_are_hidden |= setting.name == "redis";
        self.origins.push((value.name, value.origin));
    }
}

/// Returns the arguments with all settings of `serve`. The arguments of other commands are unchanged.
pub(crate) fn merge(arguments: Vec<OsString>) -> Result<MergedArguments, Failure> {
    let mut merged = MergedArguments { arguments, ..Default::default() };
    // The arguments may lack what the file contains. Their mistakes are reported when they are parsed with it.
    let given = Cli::command().ignore_errors(true).try_get_matches_from(&merged.arguments);
    let Some(given) = given.ok().and_then(|mut given| given.remove_subcommand()) else { return Ok(merged) };
    let ("serve", given) = (&*given.0, given.1) else { return Ok(merged) };

    let settings = settings();
    let mut layers = environment(&settings, &mut merged.warnings)?;
    let mut mistakes = Vec::new();
    let mut is_file_valid = true;
    if let Some((path, origin)) = config_path(&given) {
        match file(&path, &origin, &given, &settings) {
            Ok(values) => {
                let urls = values.iter().filter(|value| value.name == "redis").flat_map(|value| &value.texts);
                if urls.map(|url| RedisUrl::from(&**url)).any(|url| url.may_have_password()) {
                    merged.warnings.extend(option_file::warning_of_readers(&origin, &path));
                }
                layers.extend(values);
            }
            Err(failure) => {
                is_file_valid = false;
                mistakes.push(failure.to_string());
            }
        }
    }
    // After a mistake in the arguments, a switch has no value.
    if given.value_source("from_env") == Some(ValueSource::CommandLine) {
        let redis = redis_origin(&given, &layers);
        let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let imported = from_env::read(&|name| env::var_os(name), names, redis.as_ref());
        mistakes.extend(imported.mistakes);
        merged.password = imported.password;
        merged.warnings.extend(imported.warnings);
        layers.extend(imported.values);
    }
    mistakes.extend(layers.iter().filter_map(|value| mistake(&settings, value)));
    // After any other mistake in the arguments, those that follow it are not known, and after one in the file, its values.
    let parsed = Cli::command().try_get_matches_from(&merged.arguments);
    let has_relations_only = |error: &clap::Error| {
        matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict)
    };
    if is_file_valid && parsed.as_ref().err().is_none_or(has_relations_only) {
        mistakes.extend(relations::mistakes(&with_values(&given, &layers, &settings)));
    }
    if !mistakes.is_empty() {
        // A misspelt variable can be the cause of a mistake.
        mistakes.extend(merged.warnings.iter().map(|warning| format!("warning: {warning}")));
        return Err(Failure::usage(mistakes.join("\n")));
    }
    for setting in &settings {
        if is_given(&given, setting) {
            merged.origins.push((setting.name.clone(), Origin::Flag(format!("--{}", setting.option))));
        } else if let Some(at) = layers.iter().position(|value| value.name == setting.name) {
            merged.add(setting, layers.remove(at));
        }
    }
    Ok(merged)
}

/// Returns where the URLs of Redis come from, if a flag or one of these layers has them.
fn redis_origin(given: &ArgMatches, layers: &[SettingValue]) -> Option<Origin> {
    if given.value_source("urls") == Some(ValueSource::CommandLine) {
        return Some(Origin::Flag("--redis".to_owned()));
    }
    layers.iter().find(|value| value.name == "redis").map(|value| value.origin.clone())
}

/// Returns the settings that have a value, each with the origin that has precedence. A switch that is off has none.
fn with_values(given: &ArgMatches, layers: &[SettingValue], settings: &[Setting]) -> Vec<(String, Origin)> {
    let origin = |setting: &Setting| {
        if is_given(given, setting) {
            return Some(Origin::Flag(format!("--{}", setting.option)));
        }
        let value = layers.iter().find(|value| value.name == setting.name)?;
        let is_off = setting.kind == Kind::Switch && value.texts.iter().all(|text| text == "false");
        (!is_off).then(|| value.origin.clone())
    };
    settings.iter().filter_map(|setting| Some((setting.name.clone(), origin(setting)?))).collect()
}

fn is_given(given: &ArgMatches, setting: &Setting) -> bool {
    given.value_source(&setting.id) == Some(ValueSource::CommandLine)
}

/// Returns the settings of the environment. An empty variable is none.
fn environment(settings: &[Setting], warnings: &mut Vec<String>) -> Result<Vec<SettingValue>, Failure> {
    let mut values = Vec::new();
    for setting in settings {
        let variable = setting.variable();
        let Some(text) = env::var_os(&variable).filter(|text| !text.is_empty()) else { continue };
        let text =
            text.into_string().map_err(|_| Failure::usage(format!("{variable} is not text in UTF-8")))?;
        let texts = match setting.kind {
            Kind::List => text.split_whitespace().map(str::to_owned).collect(),
            Kind::One | Kind::Switch => vec![text],
        };
        values.push(SettingValue { name: setting.name.clone(), texts, origin: Origin::Variable(variable) });
    }
    let known: Vec<String> = settings.iter().map(Setting::variable).collect();
    for variable in env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        let is_ours =
            variable.starts_with(PREFIX) && ![CONFIG_VARIABLE, PASSWORD_VARIABLE].contains(&&*variable);
        if !is_ours || known.contains(&variable) {
            continue;
        }
        // Others are ignored: Kubernetes sets such as TIDEGATE_SERVICE_HOST for a service with this name.
        // Without the prefix, which makes unlike names similar.
        let names = known.iter().filter_map(|known| known.strip_prefix(PREFIX));
        let name = &variable[PREFIX.len()..];
        if let Some(near) = similar_name(name, names.clone()).or_else(|| longer_or_shorter(name, names)) {
            warnings.push(format!("unknown variable {variable} is ignored: did you mean {PREFIX}{near}?"));
        }
    }
    Ok(values)
}

/// Returns the known name that begins with all words of this one, or with whose words this one begins. The variables that
/// Kubernetes sets have none, also those of a service such as `tidegate-redis`.
fn longer_or_shorter<'n>(name: &str, mut known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let of_kubernetes = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"];
    let is_of_kubernetes = of_kubernetes.iter().any(|words| format!("_{name}").contains(words));
    let begins = |long: &str, short: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('_'));
    known.find(|known| !is_of_kubernetes && (begins(known, name) || begins(name, known)))
}

/// Returns the path of the configuration file, and the option or variable that names it.
fn config_path(given: &ArgMatches) -> Option<(PathBuf, String)> {
    match given.get_one::<PathBuf>("config") {
        Some(path) => Some((path.clone(), "--config".to_owned())),
        None => {
            let path = env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty())?;
            Some((path.into(), CONFIG_VARIABLE.to_owned()))
        }
    }
}

fn file(
    path: &Path,
    origin: &str,
    given: &ArgMatches,
    settings: &[Setting],
) -> Result<Vec<SettingValue>, Failure> {
    let timeout = given.get_one::<Duration>("timeout").copied().unwrap_or(Duration::from_secs(5));
    let text = String::from_utf8(option_file::read(origin, path, timeout)?)
        .map_err(|_| Failure::usage(format!("{}: this file is not UTF-8", path.display())))?;
    config_file::read(path, &text, settings)
}

/// Stands for a value that can be a line of the file.
const HIDDEN: &str = "…";

/// Checks a value as clap does. The mistake names where the value comes from.
fn mistake(settings: &[Setting], value: &SettingValue) -> Option<String> {
    let setting = settings.iter().find(|setting| setting.name == value.name)?;
    let invalid = |reason: &str| Some(format!("{}: the setting `{}`: {reason}", value.origin, setting.name));
    if setting.kind == Kind::Switch {
        let text = value.texts.iter().find(|text| !matches!(&***text, "true" | "false"))?;
        let text = if is_word(text) { text } else { HIDDEN };
        return invalid(&format!("invalid value '{text}': write true or false"));
    }
    value.texts.iter().find_map(|text| {
        let argument = format!("--{}={text}", setting.option);
        let error = Cli::command().try_get_matches_from(["tidegate", "serve", &argument]).err()?;
        if !matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation) {
            return None;
        }
        let message = redact_urls(error.to_string(), [argument].into_iter());
        let message = if is_word(text) { message } else { message.replace(text, HIDDEN) };
        let message = message.trim_start_matches("error: ");
        invalid(message.split("\n\nFor more information").next().unwrap_or_default())
    })
}

/// The address of the admin port of a demo.
const DEMO: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8082);

/// Returns the address of the admin port, if there is one.
pub(super) fn address(serve: &Serve) -> Option<SocketAddr> {
    serve.admin.admin_addr.or_else(|| serve.demo.then_some(DEMO))
}

/// Returns the settings of the admin port, if there is one. It shows `settings`, which are those of the program.
pub(super) fn port(serve: &Serve, settings: Value) -> Result<Option<Admin>, Failure> {
    let AdminPort { admin_tokens, admin_host, admin_behind_tls, metrics_public, .. } = &serve.admin;
    let Some(address) = address(serve) else {
        return match admin_tokens.is_some() || *metrics_public {
            true => Err(Failure::usage(
                "--admin-tokens and --metrics-public need the admin port: add --admin-addr ADDRESS",
            )),
            false => Ok(None),
        };
    };
    let mut admin = Admin::new(address)
        .behind_tls(*admin_behind_tls)
        .public_metrics(*metrics_public)
        .shown_settings(settings);
    #[cfg(feature = "console")]
    {
        admin = admin.pages(console());
    }
    for name in admin_host {
        admin = admin.host(name);
    }
    if serve.demo {
        // The limits of a demo are in the memory of this process, and nobody depends on them.
        admin = admin.open_role(Role::Operator);
    }
    Ok(Some(match admin_tokens {
        Some(path) => admin.tokens(AdminTokens::load(path)?),
        None => admin,
    }))
}

/// Returns the web console, which reports changes in the log.
#[cfg(feature = "console")]
fn console() -> Console {
    Console::new().on_audit(|entry, stored| {
        let mut entry = serde_json::json!({ "audit": audit_json(entry) });
        if let Err(error) = stored {
            // The log has the only entry.
            entry["audit"]["not_stored"] = error.to_string().into();
        }
        audit(&entry, stored.is_ok());
    })
}

impl From<AdminTokensError> for Failure {
    fn from(error: AdminTokensError) -> Self {
        Self::usage(format!("{error} (--admin-tokens)"))
    }
}
