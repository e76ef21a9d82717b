//! Texts that show enough of a secret to recognize it, but not to use it, and that show what could be mistaken for other
//! text.
//!
//! Errors, `Debug` and warnings show keys and URLs only in these forms. The module `admin`, which is for operators,
//! shows whole keys.

use std::borrow::Cow;
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

/// Escapes characters that control a terminal, are invisible, or change the text direction. HTML needs its own escaping
/// after it.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_unsafe(character) { out.extend(character.escape_unicode()) } else { out.push(character) }
    }
    Cow::Owned(out)
}

fn is_unsafe(character: char) -> bool {
    // Spaces of other widths look like a space, or like nothing.
    character.is_control()
        || (character.is_whitespace() && character != ' ')
        || matches!(character,
            // Format and bidi characters.
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{8e2}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
            // Letters without a shape: fillers, joiners and variation selectors.
            | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}'
            | '\u{fe00}'..='\u{fe0f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        for (text, expected) in [
            ("user:42", "user:42"),
            ("josé 🦀", "josé 🦀"),
            ("\x1b[31m", "\\u{1b}[31m"),
            ("a\nb\r\t\0", "a\\u{a}b\\u{d}\\u{9}\\u{0}"),
            ("\u{7f}\u{9b}0m", "\\u{7f}\\u{9b}0m"),
            ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
            ("a\u{200b}b", "a\\u{200b}b"),
        ] {
            assert_eq!(visible(text), expected);
        }
    }

    #[test]
    fn invisible_and_bidi_letters_are_escaped() {
        let unsafe_letters = "\u{ad}\u{61c}\u{34f}\u{115f}\u{17b4}\u{180b}\u{200b}\u{200d}\u{200e}\u{2028}\u{202a}\u{202e}\
                              \u{2060}\u{2066}\u{2069}\u{2800}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{fff9}\u{e0001}\u{e0100}\
                              \u{a0}\u{2003}\u{3000}";
        for letter in unsafe_letters.chars() {
            assert_eq!(visible(&letter.to_string()), letter.escape_unicode().to_string());
        }
    }
}
