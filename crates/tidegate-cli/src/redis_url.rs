//! The URL of a Redis, which may contain a password. The one place that decides what of it is printed.

use std::fmt;

/// The known schemes. Another scheme may be a part of a password.
const SCHEMES: [&str; 7] = ["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"];

/// A URL as the user wrote it; not validated. `Display` and `Debug` show the scheme, the host, the port and the
/// database, or the path of a socket. If any other text could be a part of these, they show `scheme://…`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl(String);

impl RedisUrl {
    /// Returns the URL with its password.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Returns whether the text is meant as the URL of a Redis.
    pub(crate) fn is_of_redis(&self) -> bool {
        Parts::of(&self.0).is_some()
    }

    /// Returns whether the URL contains a password, or text that may be one.
    pub(crate) fn may_have_password(&self) -> bool {
        let Some(parts) = Parts::of(&self.0) else { return !is_address(&self.0) };
        let has_login_password = parts.login.is_some_and(|login| login.contains(':'));
        has_login_password || parts.shown.is_none() || parts.query.contains("pass")
    }
}

impl From<&str> for RedisUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Parts::of(&self.0) {
            Some(Parts { scheme, shown: Some((host, path)), .. }) => write!(f, "{scheme}://{host}{path}"),
            Some(Parts { scheme, shown: None, .. }) => write!(f, "{scheme}://…"),
            None if is_address(&self.0) => f.write_str(&self.0),
            None => f.write_str("…"),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The parts of a URL with a known scheme.
struct Parts<'u> {
    scheme: &'u str,
    login: Option<&'u str>,
    /// The host with its port, and the path. `None` if they may contain a part of a password, as with a
    /// password that is not percent-encoded.
    shown: Option<(&'u str, &'u str)>,
    /// The query and the fragment.
    query: &'u str,
}

impl<'u> Parts<'u> {
    fn of(url: &'u str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        if !SCHEMES.contains(&scheme) {
            return None;
        }
        let (address, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        let (authority, path) = address.split_at(address.find('/').unwrap_or(address.len()));
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Some(login), host),
            None => (None, authority),
        };
        let is_socket = scheme.ends_with("unix");
        let is_plain = match is_socket {
            true => authority.is_empty() && is_socket_path(path),
            false => is_address(host) && is_database(path),
        };
        // A later `@` may end a password that contains `/`, `?` or `#`.
        let is_ambiguous = path.contains('@') || (query.contains('@') && !is_socket);
        let shown = (is_plain && !is_ambiguous).then_some((host, path));
        Some(Self { scheme, login, shown, query })
    }
}

/// Returns whether the text can only be a host, or a host with a port.
fn is_address(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && (!host.contains(':') || host.ends_with(']')) => {
            (host, port)
        }
        _ => (text, ""),
    };
    let is_ip_v6 = host.starts_with('[')
        && host.ends_with(']')
        && host.bytes().all(|byte| byte.is_ascii_hexdigit() || b"[]:.%".contains(&byte));
    let is_name = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    (is_name || is_ip_v6) && port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_database(path: &str) -> bool {
    let number = path.strip_prefix('/').unwrap_or(path);
    number.len() <= 3 && number.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_socket_path(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte))
}

/// Returns the message without the passwords of URLs among these arguments. An error quotes an argument that is
/// in the place of another one.
pub(crate) fn redact_urls(mut message: String, arguments: impl Iterator<Item = String>) -> String {
    let urls = arguments.filter_map(|argument| {
        // `--redis=URL`, but also an option that does not exist.
        let value = match argument.split_once('=') {
            Some((option, value)) if option.starts_with('-') => value.to_owned(),
            _ => argument,
        };
        // Also without a scheme, or with a mistyped one.
        let may_be_url = value.contains("://") || (value.contains(':') && value.contains('@'));
        may_be_url.then_some(value)
    });
    let mut urls: Vec<String> = urls.collect();
    // A URL may be the beginning of another one.
    urls.sort_by_key(|url| std::cmp::Reverse(url.len()));
    for url in urls {
        // Several URLs in one argument, as in the environment's variable.
        let shown: Vec<String> = url.split_whitespace().map(|url| RedisUrl::from(url).to_string()).collect();
        message = message.replace(&url, &shown.join(" "));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_the_address_but_no_password() {
        for (url, expected) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://ada:secret@redis.internal:6379/0", "redis://redis.internal:6379/0"),
            ("rediss://:secret@[::1]:6379", "rediss://[::1]:6379"),
            ("rediss://:s%40cret@h/0#insecure", "rediss://h/0"),
            ("redis://h?password=secret", "redis://h"),
            ("redis://h#secret", "redis://h"),
            ("unix:///run/redis.sock?db=1&pass=secret", "unix:///run/redis.sock"),
            ("redis+unix:///run/redis.sock#secret", "redis+unix:///run/redis.sock"),
            ("unix:///run/redis.sock%3Fpass=secret", "unix://…"),
            ("unix://ada:secret@/run/redis.sock", "unix://…"),
            // Not percent-encoded.
            ("redis://:sec/ret@h", "redis://…"),
            ("redis://:sec?ret@h", "redis://…"),
            ("redis://:sec#ret@h", "redis://…"),
            ("redis://:sec@ret@h", "redis://h"),
            ("redis://h?password=sec@ret", "redis://…"),
            ("redis://h/secret", "redis://…"),
            ("redis://:secret", "redis://…"),
            ("redis://ada:secret", "redis://…"),
            ("redis://h:secret:6379", "redis://…"),
            ("secret://h", "…"),
            (":secret@h", "…"),
            ("ada:secret@h:6379", "…"),
            ("127.0.0.1:6379", "127.0.0.1:6379"),
        ] {
            let shown = RedisUrl::from(url);
            assert_eq!(shown.to_string(), expected, "{url}");
            assert_eq!(format!("{shown:?}"), format!("\"{expected}\""));
        }
    }

    #[test]
    fn password_is_recognized_in_each_part_of_a_url() {
        for url in ["redis://h", "redis://ada@h:6379/0", "unix:///s?db=1", "rediss://h#insecure", "h:6379"] {
            assert!(!RedisUrl::from(url).may_have_password(), "{url}");
        }
        for url in ["redis://:x@h", "unix:///s?pass=x", "redis://:a/b@h", "redis://h?password=x", ":x@h"] {
            assert!(RedisUrl::from(url).may_have_password(), "{url}");
        }
    }

    #[test]
    fn urls_in_messages_about_arguments_are_redacted() {
        let message =
            |text: &str, argument: &str| redact_urls(text.to_owned(), [argument.to_owned()].into_iter());
        let url = "redis://:secret@h";
        assert_eq!(message(&format!("unknown command '{url}'"), url), "unknown command 'redis://h'");
        assert_eq!(message(&format!("'--x={url}'"), &format!("--x={url}")), "'--x=redis://h'");
        assert_eq!(message("unknown 'redis:/:a@h'", "redis:/:a@h"), "unknown '…'");
        assert_eq!(message("'redis://h redis://:a@i'", "redis://h redis://:a@i"), "'redis://h redis://i'");
    }
}
