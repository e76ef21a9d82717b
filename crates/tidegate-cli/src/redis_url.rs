//! The URL of a Redis, which may contain a password, in arguments and messages.

use std::fmt;

use tidegate::deadpool_redis::redis::IntoConnectionInfo;
use tidegate::redact::RedactedUrl;

/// The schemes of other clients, with `-` for `+`, and what to write instead.
const SCHEMES: [(&str, &str); 5] = [
    ("redis-sentinel", "write redis://HOST:PORT of each sentinel, and --sentinel NAME"),
    ("redis-cluster", "write redis://HOST:PORT of each node, and --cluster"),
    ("redis-tls", "write rediss://HOST:PORT for TLS"),
    ("redis-ssl", "write rediss://HOST:PORT for TLS"),
    ("tls", "write rediss://HOST:PORT for TLS"),
];

const SEVERAL: &str = "repeat --redis for each server, or set TIDEGATE_REDIS_URL to their URLs with spaces between them; \
                       several need --sentinel or --cluster";

/// The options that redis-rs reads: of each URL, then those of sockets.
const OPTIONS: [&str; 4] = ["protocol", "db", "user", "pass"];

/// Options that URLs of other clients have.
const FOREIGN_OPTIONS: [&str; 10] =
    ["db", "database", "timeout", "user", "username", "pass", "password", "ssl", "tls", "prefix"];

/// A URL as the user wrote it; not validated. `Display` and `Debug` show it as [`RedactedUrl`] does.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl(String);

impl RedisUrl {
    /// Returns the URL with its password.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Returns whether the text is meant as the URL of a Redis.
    pub(crate) fn is_of_redis(&self) -> bool {
        // Of another text, not even a scheme is shown.
        self.to_string().contains("://")
    }

    /// Returns why the URL is not valid, and what to write if that is known, without any other part of it than the name of
    /// an option.
    pub(crate) fn mistake(&self) -> Option<(String, Option<String>)> {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        let scheme = scheme.to_ascii_lowercase().replace('+', "-");
        let hosts = rest.rsplit('@').next().and_then(|hosts| hosts.split(['/', '?', '#']).next());
        let of_scheme = SCHEMES.iter().find(|(unknown, _)| *unknown == scheme);
        let (cause, advice) = match of_scheme {
            Some((_, advice)) => ("this scheme is unknown", *advice),
            None if scheme.starts_with("redis")
                && hosts == Some("")
                && rest.starts_with('/')
                && !scheme.ends_with("unix") =>
            {
                ("it has no host", "write the path of a socket as unix:///PATH")
            }
            None if hosts.is_some_and(|hosts| hosts.contains(',')) => ("it names several servers", SEVERAL),
            None => {
                let Err(error) = self.0.as_str().into_connection_info() else { return self.unknown_option() };
                let text = error.to_string();
                // The rest is the kind of the error in Rust, and a detail, which quotes the URL.
                return Some((text.split(" - ").next().unwrap_or_default().trim_end().to_owned(), None));
            }
        };
        Some((cause.to_owned(), Some(advice.to_owned())))
    }

    /// Returns the mistake of an option that redis-rs ignores.
    fn unknown_option(&self) -> Option<(String, Option<String>)> {
        let (server, options) = self.0.split_once('?')?;
        let known = &OPTIONS[..if server.contains("unix:") { OPTIONS.len() } else { 1 }];
        let names = options.split('#').next()?.split('&').filter_map(|option| option.split('=').next());
        let name = names.filter(|name| !name.is_empty()).find(|name| !known.contains(name))?;
        // Another name can be a part of a password.
        let cause = match FOREIGN_OPTIONS.contains(&name) {
            true => format!("it has no option `{name}`"),
            false => "it has an unknown option".to_owned(),
        };
        let advice = match name {
            "db" | "database" => "write the database at the end, such as redis://127.0.0.1:6379/3",
            "timeout" => "use --timeout, or --deadline of `serve`",
            _ => "remove it; a login is written before the host, or use --user and --password-file",
        };
        Some((cause, Some(advice.to_owned())))
    }

    /// Returns the database of the URL, unless it is the first one.
    pub(crate) fn database(&self) -> Option<i64> {
        let info = self.0.as_str().into_connection_info().ok()?;
        Some(info.redis_settings().db()).filter(|database| *database != 0)
    }

    /// Returns the URL as it is displayed, with its port also if that is the default.
    pub(crate) fn with_port(&self) -> String {
        let shown = self.to_string();
        let has_host = shown.starts_with("redis://") || shown.starts_with("rediss://");
        let end = shown.rsplit(['/', ']']).next().unwrap_or_default();
        if has_host && !end.contains([':', '…']) { format!("{shown}:6379") } else { shown }
    }

    /// Returns the user and the password of the URL; none if it is not valid.
    pub(crate) fn login(&self) -> (Option<String>, Option<Password>) {
        let Ok(info) = self.0.as_str().into_connection_info() else { return (None, None) };
        let settings = info.redis_settings();
        (settings.username().map(str::to_owned), settings.password().map(Password::from))
    }

    /// Returns whether `Display` shows the whole URL.
    pub(crate) fn is_shown_whole(&self) -> bool {
        self.to_string() == self.0
    }

    /// Returns whether the URL, which is valid, contains a password, or text that may be one.
    pub(crate) fn may_have_password(&self) -> bool {
        let options = self.0.find(['?', '#']).map_or("", |start| &self.0[start..]);
        self.login().1.is_some() || options.contains("pass") || self.to_string().ends_with('…')
    }
}

/// A password. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(String);

impl Password {
    /// Returns the password itself.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Password {
    fn from(password: &str) -> Self {
        Self(password.to_owned())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl From<&str> for RedisUrl {
    fn from(url: &str) -> Self {
        let url = url.trim();
        // `unix:/path` is the same as `unix:///path`.
        match url.strip_prefix("unix:/") {
            Some(path) if !path.starts_with('/') => Self(format!("unix:///{path}")),
            _ => Self(url.to_owned()),
        }
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RedactedUrl::new(&self.0).fmt(f)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
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
        let shown = shown.join(" ");
        // An error may quote it with escaped characters.
        let quoted = format!("{url:?}");
        message = message.replace(&url, &shown).replace(quoted.trim_matches('"'), &shown);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_show_no_more_of_a_url_than_the_core_does() {
        for url in
            ["redis://ada:secret@h:6379/0?pass=secret", "unix:///s%3Fpass=secret", ":secret@h", "redis://:1"]
        {
            let shown = RedisUrl::from(url);
            assert_eq!(shown.to_string(), RedactedUrl::new(url).to_string());
            assert_eq!(format!("{shown:?}"), format!("\"{shown}\""));
        }
    }

    #[test]
    fn login_is_a_user_or_a_password() {
        for url in
            ["redis://ada:x@h", "redis://:x@h", "redis://ada@h", "unix:///s?pass=x", "unix:///s?user=ada"]
        {
            assert_ne!(RedisUrl::from(url).login(), (None, None), "{url}");
        }
        for url in ["redis://h:6379/0", "redis://h?pass=x", "unix:///s?db=1", "ada:x@h", ""] {
            assert_eq!(RedisUrl::from(url).login(), (None, None), "{url}");
        }
    }

    #[test]
    fn mistake_says_what_to_write_without_a_part_of_a_password() {
        for (url, cause, advice) in [
            ("redis://h?db=3", "no option `db`", "such as redis://127.0.0.1:6379/3"),
            ("redis://h?timeout=5", "no option `timeout`", "use --timeout"),
            ("redis://h?password=secret", "no option `password`", "--password-file"),
            ("redis://h?secret", "an unknown option", "remove it"),
            ("redis://h?protocol=resp3&secret=x", "an unknown option", "remove it"),
            ("redis:///run/secret", "no host", "unix:///PATH"),
            ("redis-sentinel://h:1,i:2/secret", "this scheme", "--sentinel NAME"),
            ("redis-cluster://h", "this scheme", "--cluster"),
            ("redis+tls://h", "this scheme", "rediss://"),
            ("redis://h:1,i:2", "several servers", "repeat --redis"),
            ("redis://h,i", "several servers", "--sentinel or --cluster"),
        ] {
            let (found, advised) = RedisUrl::from(url).mistake().unwrap();
            let advised = advised.unwrap();
            assert!(found.contains(cause) && advised.contains(advice), "{url}: {found}: {advised}");
            assert!(!format!("{found}{advised}").contains("secret"), "{url}: {found}: {advised}");
        }
        for url in [
            "redis://:a,b@h",
            "redis://h?protocol=resp3",
            "unix:///s?db=1&pass=x&user=y",
            "unix:/s",
            "redis://h ",
        ] {
            assert_eq!(RedisUrl::from(url).mistake(), None, "{url}");
        }
        for (url, shown) in [
            ("redis://a:x@h", "redis://h:6379"),
            ("redis://[::1]", "redis://[::1]:6379"),
            ("redis://h:1", "redis://h:1"),
            ("unix:/s", "unix:///s"),
        ] {
            assert_eq!(RedisUrl::from(url).with_port(), shown);
        }
    }

    #[test]
    fn password_is_recognized_in_each_part_of_a_url() {
        for url in [
            "redis://h",
            "redis://ada@h:6379/0",
            "unix:///s?db=1",
            "rediss://h#insecure",
            "unix:/s",
            "redis://h ",
        ] {
            assert!(!RedisUrl::from(url).may_have_password(), "{url}");
        }
        for url in ["redis://:x@h", "unix:///s?pass=x", "redis://:a/b@h", "redis://h?password=x"] {
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
        let url = "redis://:a\\\"b@h";
        assert_eq!(message(&format!("gate name {url:?}"), url), "gate name \"redis://h\"");
    }
}
