//! Reads the environment variables of envoyproxy/ratelimit as settings of `serve`.

mod redis;
mod variables;

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use self::variables::{Imported, Treatment, VARIABLES, Variables, boolean, misspelt};
use super::setting::Origin;

/// The origin of settings that no variable changes.
const FROM_ENV: &str = "--from-env";
/// That program listens on all addresses.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// The age of connections that never become too old.
const NO_MAXIMUM_AGE: &str = "3650d";
/// The maximum number of files that a warning names.
const MAX_NAMED_FILES: usize = 3;

/// Returns the settings that an environment means, and all its mistakes: variables that ask for something that the service
/// does not do, or that are not valid. If the URLs of Redis are from a place with precedence, the variables `REDIS_…` do
/// not apply: they describe another server, which alone may get their password.
pub(crate) fn read(
    environment: &dyn Fn(&str) -> Option<OsString>,
    names: impl Iterator<Item = String>,
    redis_origin: Option<&Origin>,
) -> Imported {
    let mut imported = Imported::default();
    for name in names {
        if let Some(near) = misspelt(&name) {
            imported.warnings.push(format!("unknown variable {name} is ignored: did you mean {near}?"));
        }
    }
    if let Some(origin) = redis_origin {
        let names = VARIABLES.iter().map(|variable| variable.name).filter(|name| is_of_redis(name));
        let is_set = |name: &&str| environment(name).is_some_and(|text| !text.is_empty());
        let unused: Vec<&str> = names.filter(is_set).collect();
        if !unused.is_empty() {
            let names = unused.join(", ");
            imported.warnings.push(format!("{names}: no effect, because {origin} sets the URL of Redis"));
        }
    }
    let environment = |name: &str| environment(name).filter(|_| redis_origin.is_none() || !is_of_redis(name));
    let variables = Variables::new(&environment);
    report(&variables, &mut imported);
    rules(&variables, &mut imported);
    address(&variables, &mut imported, ("HOST", "PORT", 8080), "http_addr");
    address(&variables, &mut imported, ("GRPC_HOST", "GRPC_PORT", 8081), "grpc_addr");
    connections(&variables, &mut imported);
    decisions(&variables, &mut imported);
    if redis_origin.is_none() {
        redis::read(&variables, &mut imported);
    }
    if variables.get("LOG_FORMAT").is_some_and(|format| format.eq_ignore_ascii_case("json")) {
        imported.set("json", "true", "LOG_FORMAT");
    }
    imported.mistakes = variables.into_mistakes();
    imported
}

/// Returns whether a variable describes the Redis server or the connection to it.
fn is_of_redis(name: &str) -> bool {
    name.starts_with("REDIS_")
}

/// Reports the variables that have no effect, and refuses those that would change decisions.
fn report(variables: &Variables<'_>, imported: &mut Imported) {
    for variable in VARIABLES {
        let name = variable.name;
        let (Treatment::Warned(reason) | Treatment::Refused(reason)) = variable.treatment else { continue };
        let Some(text) = variables.get(name).or_else(|| by_default(variables, name)) else { continue };
        let is_neutral = match (boolean(variable.neutral), boolean(&text)) {
            (Some(neutral), Some(given)) => neutral == given,
            _ => text.eq_ignore_ascii_case(variable.neutral),
        };
        if is_neutral {
            continue;
        }
        match variable.treatment {
            Treatment::Refused(_) => variables.refuse(format!("{name}={text} is not supported: {reason}")),
            _ => imported.warnings.push(format!("{name} has no effect: {reason}")),
        }
    }
}

/// Returns the value of a variable that is not set, where it has an effect there.
fn by_default(variables: &Variables<'_>, name: &str) -> Option<String> {
    (name == "USE_STATSD" && !variables.is_true("DISABLE_STATS")).then(|| "true".to_owned())
}

fn rules(variables: &Variables<'_>, imported: &mut Imported) {
    let or = |name, default: &str| variables.get(name).unwrap_or_else(|| default.to_owned());
    let root = or("RUNTIME_ROOT", "/srv/runtime_data/current");
    let folders = [or("RUNTIME_SUBDIRECTORY", ""), or("RUNTIME_APPDIRECTORY", "config")];
    // Joined as in Go: a leading slash of the second part does not begin a new path.
    let folders = folders.iter().map(|folder| folder.trim_matches('/')).filter(|folder| !folder.is_empty());
    let path = folders.fold(PathBuf::from(root), |path, folder| path.join(folder));
    warn_of_unread(&path, imported);
    imported.set("rules", path.to_string_lossy(), "RUNTIME_ROOT");
    if variables.is_true("MERGE_DOMAIN_CONFIG") {
        imported.set("merge_domains", "true", "MERGE_DOMAIN_CONFIG");
    }
}

/// Warns of files that envoyproxy/ratelimit reads as rules: it reads all files, also those of subfolders.
fn warn_of_unread(folder: &Path, imported: &mut Imported) {
    // An unreadable folder is an error when its rules are loaded.
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path());
    let is_unread = |file: &PathBuf| {
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_yaml = file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        !is_hidden && (file.is_dir() || !is_yaml)
    };
    let mut unread: Vec<String> = files.filter(is_unread).map(|file| file.display().to_string()).collect();
    unread.sort();
    if !unread.is_empty() {
        let more = unread.len().saturating_sub(MAX_NAMED_FILES);
        unread.truncate(MAX_NAMED_FILES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = unread.join(", ");
        imported.warnings.push(format!(
            "not read as rules: {names}{more}; move the rules into files of the folder itself that end in .yaml"
        ));
    }
}

fn address(
    variables: &Variables<'_>,
    imported: &mut Imported,
    (host, port, default): (&'static str, &'static str, u16),
    setting: &str,
) {
    let address = match variables.get(host) {
        None => Some(ANY),
        Some(name) if name == "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        Some(address) => variables.valid(address.parse(), || {
            format!("{host}={address}: give an IP address, or the setting `{setting}`")
        }),
    };
    let number = match variables.get(port) {
        None => Some(default),
        Some(number) => {
            variables.valid(number.parse(), || format!("{port}={number}: give a port from 0 to 65535"))
        }
    };
    if let (Some(address), Some(number)) = (address, number) {
        imported.set(setting, SocketAddr::new(address, number).to_string(), port);
    }
}

fn connections(variables: &Variables<'_>, imported: &mut Imported) {
    const AGE: &str = "GRPC_MAX_CONNECTION_AGE";
    if let Some(age) = variables.get(AGE) {
        let is_infinite = matches!(&*age, "0" | "0s");
        imported.set("max_connection_age", if is_infinite { NO_MAXIMUM_AGE.to_owned() } else { age }, AGE);
    }
    if variables.is_true("GRPC_SERVER_USE_TLS") {
        for (variable, setting) in [
            ("GRPC_SERVER_TLS_CERT", "grpc_certificate"),
            ("GRPC_SERVER_TLS_KEY", "grpc_key"),
            ("GRPC_CLIENT_TLS_CACERT", "grpc_client_ca"),
        ] {
            if let Some(path) = variables.get(variable) {
                imported.set(setting, path, variable);
            } else if setting != "grpc_client_ca" {
                variables.refuse(format!("GRPC_SERVER_USE_TLS needs {variable}: set it"));
            }
        }
        let san = variables.get("GRPC_CLIENT_TLS_SAN");
        if let (Some(_), Some(san)) = (variables.get("GRPC_CLIENT_TLS_CACERT"), san) {
            imported.set("grpc_client_san", san, "GRPC_CLIENT_TLS_SAN");
        }
    }
}

fn decisions(variables: &Variables<'_>, imported: &mut Imported) {
    const STOP: &str = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT";
    const LOCAL_CACHE: &str = "LOCAL_CACHE_SIZE_IN_BYTES";
    // The proxy decides, as without an answer of that program.
    imported.set("on_failure", "error", FROM_ENV);
    imported.set("peeks_pass_at_limit", "true", FROM_ENV);
    imported.set("charge", if variables.is_true(STOP) { "all" } else { "each" }, STOP);
    let bytes = variables.get(LOCAL_CACHE).and_then(|size| {
        variables.valid(size.parse::<u64>(), || {
            format!("{LOCAL_CACHE}={size}: give a number of bytes, such as 1000000")
        })
    });
    match bytes.is_some_and(|bytes| bytes > 0) {
        true => imported.set("charge_denied", "uncached", LOCAL_CACHE),
        false => imported.set("charge_denied", "all", FROM_ENV),
    }
    for (variable, setting) in [("SHADOW_MODE", "shadow"), ("RESPONSE_DYNAMIC_METADATA", "request_metadata")]
    {
        if variables.is_true(variable) {
            imported.set(setting, "true", variable);
        }
    }
    if variables.is_true("LIMIT_RESPONSE_HEADERS_ENABLED") {
        imported.set("headers", "ratelimit", "LIMIT_RESPONSE_HEADERS_ENABLED");
        for (variable, setting) in [
            ("LIMIT_LIMIT_HEADER", "limit_header"),
            ("LIMIT_REMAINING_HEADER", "remaining_header"),
            ("LIMIT_RESET_HEADER", "reset_header"),
        ] {
            if let Some(name) = variables.get(variable) {
                imported.set(setting, name, variable);
            }
        }
    }
    const PREFIX: &str = "CACHE_KEY_PREFIX";
    if let Some(prefix) = variables.get(PREFIX) {
        match redis::namespace(&prefix) {
            Some(namespace) => {
                if namespace != prefix {
                    imported.warnings.push(format!("{PREFIX}={prefix} is the namespace `{namespace}`"));
                }
                imported.set("namespace", namespace, PREFIX);
            }
            None => variables.refuse(format!(
                "{PREFIX}={prefix}: this is too long for a namespace, which has at most 64 characters: set `namespace`"
            )),
        }
    }
}
