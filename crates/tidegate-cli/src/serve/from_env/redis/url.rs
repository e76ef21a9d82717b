//! The URLs of `REDIS_URL`. There, an address can have the scheme `redis://`, which says nothing about TLS: only `REDIS_TLS` does.

use std::fmt::Write as _;

use crate::failure::Failure;

/// Returns the URL of an address, which may be a URL itself. TLS is never turned off: neither by a scheme nor by a
/// fragment such as `#insecure`. A login replaces that of the address, if it is not empty.
///
/// # Errors
///
/// If the address has another scheme, a query or a fragment. The message omits the address, which may hold a password.
pub(super) fn tcp_url(address: &str, is_encrypted: bool, login: &str) -> Result<String, Failure> {
    let (is_encrypted, rest) = match address.split_once("://") {
        None if address.starts_with("unix:/") => return Err(other_scheme()),
        None => (is_encrypted, address),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("redis") => (is_encrypted, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("rediss") => (true, rest),
        Some(_) => return Err(other_scheme()),
    };
    if rest.contains("://") {
        return Err(other_scheme());
    }
    if rest.contains(['?', '#']) {
        return Err(Failure::usage(
            "REDIS_URL has a query or a fragment: write the login and the database as in `redis://user:password@host:6379/0`",
        ));
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = match authority.rsplit_once('@') {
        Some((_, host)) if !login.is_empty() => host,
        _ => authority,
    };
    let scheme = if is_encrypted { "rediss" } else { "redis" };
    Ok(format!("{scheme}://{login}{host}{path}"))
}

/// Returns the URL of a socket, whose address is a path or a URL.
///
/// # Errors
///
/// If it is to be encrypted.
pub(super) fn unix_url(address: &str, is_encrypted: bool) -> Result<String, Failure> {
    if is_encrypted {
        return Err(Failure::usage(
            "REDIS_TLS=true is not supported for a Unix socket: unset it, or set REDIS_SOCKET_TYPE=tcp and \
             REDIS_URL=HOST:PORT",
        ));
    }
    let path = address.split_once("://").map_or(address, |(_, path)| path);
    Ok(format!("unix://{path}"))
}

fn other_scheme() -> Failure {
    Failure::usage(
        "REDIS_URL has an unknown scheme: write addresses such as `10.0.0.1:6379` or `redis://10.0.0.1:6379`",
    )
}

/// Splits a login into the user, if it has one, and the password.
pub(super) fn split(auth: &str) -> (Option<&str>, &str) {
    match auth.split_once(':') {
        Some((user, password)) => (Some(user), password),
        None => (None, auth),
    }
}

/// Returns a login as it begins a URL.
pub(super) fn login(auth: &str) -> String {
    let (user, password) = split(auth);
    format!("{}:{}@", percent_encode(user.unwrap_or_default()), percent_encode(password))
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        // Writing to a String cannot fail.
        let _ = match byte.is_ascii_alphanumeric() {
            true => write!(encoded, "{}", char::from(byte)),
            false => write!(encoded, "%{byte:02X}"),
        };
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_and_database_remain_and_a_given_login_precedes() {
        for (address, login, expected) in [
            ("redis://ada:x@h:1/2", "", "rediss://ada:x@h:1/2"),
            ("redis://ada:x@h:1/2", ":y@", "rediss://:y@h:1/2"),
            ("h:1", ":y@", "rediss://:y@h:1"),
            ("unix:1", "", "rediss://unix:1"),
            ("", "", "rediss://"),
        ] {
            assert_eq!(tcp_url(address, true, login).unwrap(), expected, "{address}");
        }
        assert_eq!(unix_url("/run/x", false).unwrap(), unix_url("unix:///run/x", false).unwrap());
    }
}
