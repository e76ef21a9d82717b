//! Texts that show enough of a secret to recognize it, but not to use it.
//!
//! Errors, `Debug` and warnings show keys and URLs only in these forms. The module `admin`, which is for operators,
//! shows whole keys.

use std::fmt;

/// A key as texts show it: its length, and its first two bytes if the key has eight bytes or more.
///
/// ```
/// use tidegate::redact::RedactedKey;
///
/// assert_eq!(RedactedKey::new(b"user:42:secret").to_string(), r#""us…" (14 bytes)"#);
/// assert_eq!(RedactedKey::new(b"ann").to_string(), r#""…" (3 bytes)"#);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RedactedKey {
    /// Two bytes of the key, or none.
    shown: Option<[u8; 2]>,
    len: usize,
}

impl RedactedKey {
    /// Keys below this length are not shown at all: two bytes would be a large part of them.
    const MIN_LEN: usize = 8;

    /// Returns what may be shown of a key. Keeps none of its other bytes.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        let shown = key.first_chunk().copied().filter(|_| key.len() >= Self::MIN_LEN);
        Self { shown, len: key.len() }
    }
}

impl fmt::Display for RedactedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.shown.as_ref().map_or(&[][..], |shown| shown);
        write!(f, "\"{}…\" ({} bytes)", shown.escape_ascii(), self.len)
    }
}

/// As it is displayed.
impl fmt::Debug for RedactedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As it is displayed.
#[cfg(feature = "serde")]
impl serde::Serialize for RedactedKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The URL of a Redis as texts show it: scheme, host and port, or scheme and path of a Unix socket. Never the
/// user, password, database, query or fragment.
///
/// Of a URL that does not follow the grammar it shows no more than the scheme: a password that is not
/// percent-encoded can end up anywhere in it. The same holds without a host, and for the path of a socket with
/// other characters than ASCII letters, digits, `/`, `.`, `_` and `-`.
///
/// ```
/// use tidegate::redact::RedactedUrl;
///
/// let shown = |url: &str| RedactedUrl::new(url).to_string();
/// assert_eq!(shown("redis://ann:secret@10.0.0.1:6379/3?protocol=resp3"), "redis://10.0.0.1:6379");
/// assert_eq!(shown("unix:///run/redis.sock?pass=secret"), "unix:///run/redis.sock");
/// assert_eq!(shown("redis://ann:sec/ret@10.0.0.1:6379"), "redis://…");
/// assert_eq!(shown("redis://ann%3Asecret%40db:6379"), "redis://…");
/// assert_eq!(shown("redis://:1234"), "redis://…");
/// assert_eq!(shown("unix:///run/redis.sock%3Fpass=secret"), "unix://…");
/// assert_eq!(shown("ann:secret@10.0.0.1"), "…");
/// ```
#[derive(Clone, Copy)]
pub struct RedactedUrl<'a> {
    scheme: &'static str,
    /// Host and port, or a path.
    address: Option<&'a str>,
    is_ambiguous: bool,
}

/// The schemes that a Redis URL can have. Any other text before `://` may be a part of a password.
const SCHEMES: [&str; 7] = ["redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"];

impl<'a> RedactedUrl<'a> {
    /// Returns what may be shown of a URL, which need not be valid.
    #[must_use]
    pub fn new(url: &'a str) -> Self {
        let scheme = |known: &&&str| url.get(..known.len()).is_some_and(|it| it.eq_ignore_ascii_case(known));
        let is_followed = |known: &&&str| url[known.len()..].starts_with("://");
        let Some(scheme) = SCHEMES.iter().filter(scheme).find(is_followed) else {
            return Self { scheme: "", address: None, is_ambiguous: false };
        };
        let rest = &url[scheme.len() + 3..];
        let is_unix = scheme.ends_with("unix");
        let end = rest.find(['?', '#']).unwrap_or(rest.len());
        let path = rest[..end].find('/').unwrap_or(end);
        let (authority, path, tail) = (&rest[..path], &rest[path..end], &rest[end..]);
        let host = authority.rsplit('@').next().unwrap_or_default();
        // An `@` behind the authority was meant as its end, unless it is in the query of a socket, which has no
        // authority. A percent-encoded one in the host was meant as the end of user and password.
        let is_ambiguous = path.contains('@')
            || (!is_unix && (tail.contains('@') || (host.contains('%') && !host.starts_with('['))));
        let address = match is_unix {
            true => Some(path).filter(|path| authority.is_empty() && is_socket_path(path)),
            false => Some(host).filter(|host| is_host_and_port(host)),
        };
        Self { scheme, address: address.filter(|_| !is_ambiguous), is_ambiguous }
    }

    /// Returns whether the host or the text behind it can be a part of user and password: an `@` follows it, or
    /// it is percent-encoded.
    pub(crate) const fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }
}

/// Returns whether this is a host name or an address, and a port in digits if any.
fn is_host_and_port(text: &str) -> bool {
    let in_name = |letter: char| letter.is_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let in_address = |letter: char| letter.is_ascii_hexdigit() || letter == ':';
    let (is_host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address.chars().all(in_address), port),
        None => {
            let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (!name.is_empty() && name.chars().all(in_name), port)
        }
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok() || port.is_empty();
    is_host && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
}

/// Returns whether the path of a socket is not empty, and contains nothing that may be meant as a query.
fn is_socket_path(path: &str) -> bool {
    let in_path = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'.' | b'_' | b'-');
    !path.is_empty() && path.bytes().all(in_path)
}

impl fmt::Display for RedactedUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.scheme.is_empty() { "" } else { "://" };
        write!(f, "{}{separator}{}", self.scheme, self.address.unwrap_or("…"))
    }
}

/// As it is displayed.
impl fmt::Debug for RedactedUrl<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
