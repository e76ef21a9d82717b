//! The trace context of a request's client, as the W3C defines it.

use std::fmt::Write;

use http::HeaderMap;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// The length of a `traceparent` of version 00. Later versions can be longer.
const TRACEPARENT_BYTES: usize = 55;
/// The length up to which a `tracestate` must be passed on.
const MAX_TRACESTATE_BYTES: usize = 512;

/// The trace that a request belongs to, from its headers `traceparent` and `tracestate`; over gRPC, from the metadata
/// of these names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    traceparent: String,
    tracestate: String,
}

impl TraceContext {
    /// Reads the context of a request. Returns `None` if there is none, if it is not valid, or if there are several:
    /// the specification then starts a new trace. An invalid `tracestate` is left out.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let (Some(traceparent), None) = (parents.next(), parents.next()) else { return None };
        let traceparent = traceparent.to_str().ok().map(str::trim).filter(|text| is_valid(text))?;
        let traceparent = traceparent[..TRACEPARENT_BYTES].to_owned();
        let mut tracestate = String::new();
        for value in headers.get_all(TRACESTATE) {
            // Several headers are one list. A value that is not ASCII cannot be joined.
            let Ok(value) = value.to_str() else {
                return Some(Self { traceparent, tracestate: String::new() });
            };
            let comma = if tracestate.is_empty() { "" } else { "," };
            let _ = write!(tracestate, "{comma}{value}");
        }
        if tracestate.len() > MAX_TRACESTATE_BYTES {
            tracestate.clear();
        }
        Some(Self { traceparent, tracestate })
    }

    /// Returns the id of the trace: 32 hexadecimal digits in lower case, not all 0.
    #[must_use]
    pub fn trace_id(&self) -> &str {
        &self.traceparent[3..35]
    }

    /// Returns the id of the client's span: 16 hexadecimal digits in lower case, not all 0.
    #[must_use]
    pub fn parent_span_id(&self) -> &str {
        &self.traceparent[36..52]
    }

    /// Returns the flags: two hexadecimal digits, of which the lowest bit means that the client records the trace.
    #[must_use]
    pub fn trace_flags(&self) -> &str {
        &self.traceparent[53..]
    }

    /// Returns the `tracestate`, or an empty text.
    #[must_use]
    pub fn tracestate(&self) -> &str {
        &self.tracestate
    }
}

/// Returns whether this is a `traceparent` of version 00, or of a later version, which can add fields.
fn is_valid(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_id = |text: &str, digits: usize| {
        text.len() == digits && is_hex(text) && text.bytes().any(|byte| byte != b'0')
    };
    let mut fields = text.splitn(5, '-');
    let mut next = || fields.next().unwrap_or_default();
    let (version, trace_id, parent_id, flags) = (next(), next(), next(), next());
    let has_more = fields.next().is_some();
    version.len() == 2
        && is_hex(version)
        && version != "ff"
        && is_id(trace_id, 32)
        && is_id(parent_id, 16)
        && flags.len() == 2
        && is_hex(flags)
        && !(has_more && version == "00")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(values: &[(&'static str, &[u8])]) -> Option<TraceContext> {
        let value = |(name, value): &(&'static str, &[u8])| (*name, HeaderValue::from_bytes(value).unwrap());
        let mut headers = HeaderMap::new();
        for (name, value) in values.iter().map(value) {
            headers.append(name, value);
        }
        TraceContext::from_headers(&headers)
    }

    const VALID: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn valid_contexts_are_read() {
        let context = of(&[(TRACEPARENT, VALID)]).unwrap();
        assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!((context.parent_span_id(), context.trace_flags()), ("00f067aa0ba902b7", "01"));
        assert_eq!(context.tracestate(), "");
        let later = b"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03-more-fields";
        assert_eq!(of(&[(TRACEPARENT, later)]).unwrap().trace_flags(), "03");
        let listed = of(&[(TRACEPARENT, VALID), (TRACESTATE, b"a=1"), (TRACESTATE, b"b=2")]).unwrap();
        assert_eq!(listed.tracestate(), "a=1,b=2");
    }

    #[test]
    fn invalid_contexts_are_ignored() {
        for invalid in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(of(&[(TRACEPARENT, invalid.as_bytes())]), None, "{invalid}");
        }
        assert_eq!(of(&[(TRACEPARENT, b"\xff\xfe")]), None);
        assert_eq!(of(&[(TRACEPARENT, VALID), (TRACEPARENT, VALID)]), None, "two parents");
        assert_eq!(of(&[(TRACESTATE, b"a=1")]), None, "a state without a parent");
    }

    #[test]
    fn invalid_state_is_left_out() {
        for state in [&[b'a'; 513][..], b"a=\xff"] {
            assert_eq!(of(&[(TRACEPARENT, VALID), (TRACESTATE, state)]).unwrap().tracestate(), "");
        }
        assert_eq!(of(&[(TRACEPARENT, VALID), (TRACESTATE, &[b'a'; 512])]).unwrap().tracestate().len(), 512);
    }
}
