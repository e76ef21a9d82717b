//! The variables of envoyproxy/ratelimit that say where Redis is.

mod url;

use self::url::{login, split, tcp_url, unix_url};
use super::imported::{Imported, Variables};
use crate::failure::Failure;
use crate::redis_url::Password;

const URL: &str = "REDIS_URL";
const TYPE: &str = "REDIS_TYPE";
const AUTH: &str = "REDIS_AUTH";

pub(super) fn read(variables: &Variables<'_>, imported: &mut Imported) {
    let is_encrypted = variables.is_true("REDIS_TLS");
    let url = variables.get(URL).unwrap_or_else(|| "/var/run/nutcracker/ratelimit.sock".to_owned());
    let kind = variables.get(TYPE).unwrap_or_default();
    match servers(variables, imported, &kind, &url, is_encrypted) {
        Ok(()) => {}
        Err(failure) => variables.refuse(failure.to_string()),
    }
    if let Some(auth) = variables.get(AUTH) {
        let (user, password) = split(&auth);
        if let Some(user) = user.filter(|user| !user.is_empty()) {
            imported.set("user", user, AUTH);
        }
        imported.password = Some(Password::from(password));
    }
    if is_encrypted {
        for (variable, setting) in [
            ("REDIS_TLS_CACERT", "tls_ca"),
            ("REDIS_TLS_CLIENT_CERT", "tls_certificate"),
            ("REDIS_TLS_CLIENT_KEY", "tls_key"),
        ] {
            if let Some(path) = variables.get(variable) {
                imported.set(setting, path, variable);
            }
        }
    }
    if let Some(timeout) = variables.get("REDIS_TIMEOUT") {
        imported.set("deadline", timeout, "REDIS_TIMEOUT");
    }
    const READY: &str = "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION";
    if variables.is_true(READY) {
        imported.set("ready_needs_redis", "true", READY);
    }
}

/// Sets where Redis is.
fn servers(
    variables: &Variables<'_>,
    imported: &mut Imported,
    kind: &str,
    url: &str,
    is_encrypted: bool,
) -> Result<(), Failure> {
    // A list of addresses, for all kinds but a single server.
    let urls = |addresses: &str, login: &str| -> Result<Vec<String>, Failure> {
        let addresses = addresses.split(',').map(str::trim).filter(|address| !address.is_empty());
        addresses.map(|address| tcp_url(address, is_encrypted, login)).collect()
    };
    match &*kind.to_lowercase() {
        "" | "single" => {
            let is_path = url.starts_with('/') || url.starts_with("unix:");
            // A login can have commas.
            if !is_path && url.rsplit('@').next().is_some_and(|addresses| addresses.contains(',')) {
                return Err(Failure::usage(format!(
                    "{URL} has several addresses, and {TYPE} is SINGLE: set {TYPE} to CLUSTER or SENTINEL, or write one \
                     address"
                )));
            }
            let is_tcp =
                variables.get("REDIS_SOCKET_TYPE").is_some_and(|kind| kind.eq_ignore_ascii_case("tcp"));
            let is_socket = match url.split_once("://") {
                Some((scheme, _)) => scheme.eq_ignore_ascii_case("unix"),
                None => !is_tcp,
            };
            let url = match is_socket {
                true => unix_url(url, is_encrypted)?,
                false => tcp_url(url, is_encrypted, "")?,
            };
            imported.set("redis", url, URL);
        }
        "cluster" => {
            imported.set_all("redis", urls(url, "")?, URL);
            imported.set("cluster", "true", TYPE);
        }
        "sentinel" => {
            let Some((name, sentinels)) = url.split_once(',') else {
                return Err(Failure::usage(format!(
                    "{URL} needs the name of the primary and the sentinels, as in `mymaster,10.0.0.1:26379`"
                )));
            };
            let login = variables.get("REDIS_SENTINEL_AUTH").map(|auth| login(&auth)).unwrap_or_default();
            imported.set_all("redis", urls(sentinels, &login)?, URL);
            imported.set("sentinel", name, URL);
        }
        _ => {
            return Err(Failure::usage(format!("{TYPE}={kind}: write SINGLE, SENTINEL or CLUSTER")));
        }
    }
    Ok(())
}
