//! The values that the headers report, and their text.

use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use smallvec::SmallVec;
use tidegate::{AllDecision, Decision};

use crate::policy::Policy;

/// The values to report to a client.
pub(crate) struct HeaderValues<'a> {
    pub(crate) decision: &'a AllDecision,
    pub(crate) policies: &'a [Policy],
    /// The retry time of a denied request; `None` for an admitted one.
    pub(crate) wait: Option<Duration>,
}

impl HeaderValues<'_> {
    /// Returns the indices of the limits to report: all that can deny. A client must not slow down for a
    /// limit in shadow mode.
    pub(super) fn reported(&self) -> impl Iterator<Item = usize> {
        (0..self.policies.len()).filter(move |&at| !self.policies[at].is_shadow)
    }

    /// Returns the indices of the limits to report that have a window: not those of in-flight limits.
    pub(super) fn with_window(&self) -> impl Iterator<Item = usize> {
        self.reported().filter(move |&at| self.policies[at].window_s.is_some())
    }

    /// Returns the index of the limit to report where only one can be reported: of those with a window, the one that
    /// binds. `None` if no limit with a window can deny.
    pub(super) fn reported_limit(&self) -> Option<usize> {
        self.with_window().reduce(|a, b| self.tighter(a, b))
    }

    /// Returns the index of the limit that binds rather than the other one; of equal ones, the first.
    pub(super) fn tighter(&self, first: usize, second: usize) -> usize {
        let (binding, decisions) = (self.decision.binding_index(), self.decision.each_alone());
        match self.wait {
            Some(_) if first == binding || second == binding => binding,
            // Of an admitted request, the charge of the response may have changed which one binds.
            _ if decisions[second].is_tighter_than(&decisions[first]) => second,
            _ => first,
        }
    }

    /// Returns the reset time of a limit in seconds. If no unit is available, it is the time until one is.
    pub(super) fn reset(&self, at: usize) -> u64 {
        let decision = &self.decision.each_alone()[at];
        match self.wait {
            Some(wait) if at == self.decision.binding_index() => wait.as_secs(),
            Some(_) if !decision.is_allowed() => ceil_seconds(decision.retry_after()).max(1),
            _ if decision.remaining() == 0 => ceil_seconds(decision.retry_after()).max(1),
            _ => ceil_seconds(decision.reset_after()),
        }
    }

    /// Writes the policies of draft 7, such as `100;w=60, 1000;w=3600`, the reported limit first. Each number of
    /// units may occur only once.
    pub(super) fn write_unnamed_policies(&self, reported: usize, fields: &mut Fields) {
        let mut listed = Vec::new();
        for at in std::iter::once(reported).chain(self.with_window().filter(|at| *at != reported)) {
            let (limit, window_s) = (self.decision.each_alone()[at].limit(), self.policies[at].window_s);
            if let Some(window_s) = window_s
                && !listed.contains(&limit)
            {
                let comma = if listed.is_empty() { "" } else { ", " };
                fields.push(comma).push_number(limit).push(";w=").push_number(window_s);
                listed.push(limit);
            }
        }
    }
}

impl Policy {
    pub(crate) fn name<'a>(&'a self, decision: &'a Decision) -> &'a str {
        self.name.as_deref().unwrap_or_else(|| decision.gate())
    }
}

/// Headers that are moved to a larger map one by one: a map that grows moves all its room.
const FEW: usize = 4;

pub(super) fn ceil_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Returns a byte sequence of RFC 9651: base64 with padding, between colons.
pub(super) fn byte_sequence(bytes: &[u8]) -> String {
    format!(":{}:", BASE64_STANDARD.encode(bytes))
}

/// Returns whether the byte stands for itself in a string of RFC 9651, and in percent-encoding.
const fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\' | b'%')
}

/// Displays a string of RFC 9651, which is ASCII. Other bytes, and `%` itself, are percent-encoded.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        // Most names are written in one piece.
        for part in self.0.as_bytes().chunk_by(|a, b| is_plain(*a) && is_plain(*b)) {
            match (part, std::str::from_utf8(part)) {
                ([first, ..], Ok(text)) if is_plain(*first) => f.write_str(text)?,
                ([b'"' | b'\\'], Ok(text)) => write!(f, "\\{text}")?,
                (bytes, _) => bytes.iter().try_for_each(|byte| write!(f, "%{byte:02X}"))?,
            }
        }
        f.write_char('"')
    }
}

/// The text of the values of one response. Mostly it fits in place, so that it is allocated once, when it is complete.
struct Text {
    inline: [u8; 160],
    /// All of the text, once it is longer than `inline`.
    long: Vec<u8>,
    len: usize,
}

impl Text {
    fn push(&mut self, text: &[u8]) {
        let end = self.len + text.len();
        match self.inline.get_mut(self.len..end) {
            Some(free) => free.copy_from_slice(text),
            None => {
                if self.long.is_empty() {
                    self.long.extend_from_slice(&self.inline[..self.len]);
                }
                self.long.extend_from_slice(text);
            }
        }
        self.len = end;
    }
}

impl Default for Text {
    fn default() -> Self {
        Self { inline: [0; 160], long: Vec::new(), len: 0 }
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.inline.get(..self.len).unwrap_or(&self.long)
    }
}

/// Headers whose values are being written. All values of a response share one allocation.
#[derive(Default)]
pub(super) struct Fields {
    text: Text,
    /// The names of the fields, where their values end, and whether a field is added to those of inner layers.
    ends: SmallVec<[(HeaderName, usize, bool); 5]>,
}

impl Fields {
    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        self.text.push(text.as_bytes());
        self
    }

    pub(super) fn push_number(&mut self, number: u64) -> &mut Self {
        self.push(itoa::Buffer::new().format(number))
    }

    /// Writes a string of RFC 9651: see [`Quoted`].
    pub(super) fn push_quoted(&mut self, text: &str) -> &mut Self {
        if text.bytes().all(is_plain) {
            return self.push("\"").push(text).push("\"");
        }
        self.push(&Quoted(text).to_string())
    }

    /// Ends the value of a field that is the only one of its name.
    pub(super) fn end_single(&mut self, name: HeaderName) {
        self.ends.push((name, self.text.len, false));
    }

    /// Ends the value of a field that lists limits, beside those of inner layers.
    pub(super) fn end_list(&mut self, name: HeaderName) {
        self.ends.push((name, self.text.len, true));
    }

    pub(super) fn write(self, headers: &mut HeaderMap) {
        if self.ends.is_empty() {
            return;
        }
        // The server adds Content-Length and Date.
        let count = headers.len() + self.ends.len() + 2;
        if headers.capacity() < count && headers.len() <= FEW {
            let few = std::mem::replace(headers, HeaderMap::with_capacity(count));
            headers.extend(few);
        }
        headers.reserve(self.ends.len() + 2);
        let text = Bytes::from_owner(self.text);
        let mut start = 0;
        for (name, end, is_list) in self.ends {
            // Numbers and escaped names are always valid header values.
            if let Ok(value) = HeaderValue::from_maybe_shared(text.slice(start..end)) {
                match is_list {
                    true => drop(headers.append(name, value)),
                    false => drop(headers.insert(name, value)),
                }
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sequence_is_padded_base64_between_colons() {
        for (bytes, text) in [(&b""[..], "::"), (b"fo", ":Zm8=:"), (&[0xfb, 0xef, 0xff], ":++//:")] {
            assert_eq!(byte_sequence(bytes), text);
        }
    }
}
