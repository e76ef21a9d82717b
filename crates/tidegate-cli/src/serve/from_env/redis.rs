//! The variables of envoyproxy/ratelimit that say where Redis is.

mod url;

use std::fmt::Write as _;

use self::url::{login, split, tcp_url, unix_url};
use super::variables::{Imported, Variables};
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

/// The maximum length of a namespace.
const MAX_BYTES: usize = 64;

/// Returns the namespace of a prefix: the prefix itself if it is a namespace, else with `..` and two hexadecimal digits in
/// place of each byte that a namespace cannot have: `edge:` becomes `edge..3a`. `None` if it is too long.
///
/// Different prefixes have different namespaces: a dot before an escape or another dot is escaped, too, so `..` always
/// begins an escape.
pub(super) fn namespace(prefix: &str) -> Option<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let mut namespace = String::new();
    for (at, byte) in prefix.bytes().enumerate() {
        let next = prefix.as_bytes().get(at + 1);
        let is_escape_next = next.is_some_and(|next| *next == b'.' || !is_allowed(*next));
        // Writing to a String cannot fail.
        let _ = match is_allowed(byte) && !(byte == b'.' && is_escape_next) {
            true => write!(namespace, "{}", char::from(byte)),
            false => write!(namespace, "..{byte:02x}"),
        };
    }
    (namespace.len() <= MAX_BYTES).then_some(namespace)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn prefix_that_is_a_namespace_stays_as_it_is() {
        for prefix in ["edge", "Edge_1.a-b", ".", "a."] {
            assert_eq!(namespace(prefix).as_deref(), Some(prefix));
        }
        assert_eq!(namespace("edge:").as_deref(), Some("edge..3a"));
        assert_eq!(namespace("ä").as_deref(), Some("..c3..a4"));
        assert_eq!(namespace(&"x".repeat(65)), None);
        assert_eq!(namespace(&":".repeat(17)), None);
    }

    #[test]
    fn different_prefixes_have_different_namespaces() {
        const LETTERS: [&str; 6] = [".", ":", "3", "a", "2", "e"];
        let mut texts = vec![String::new()];
        let mut seen = HashMap::new();
        for _ in 0..6 {
            texts = texts.iter().flat_map(|text| LETTERS.map(|letter| format!("{text}{letter}"))).collect();
            for text in &texts {
                let namespace = namespace(text).unwrap();
                assert!(namespace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'));
                let other = seen.insert(namespace.clone(), text.clone());
                assert_eq!(other, None, "{text} and {namespace}");
            }
        }
    }
}
