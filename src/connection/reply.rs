//! Replies that show the state of the server behind the connection.

use redis::{ErrorKind, RedisError, RedisResult, ServerError, Value};

/// A server that replies one of these has done nothing, and stays unusable: it became a replica, lost its
/// primary, loads its data as a restarting replica does, or no longer accepts the login. The same address may
/// lead to another server by now, which only a new connection reaches.
const UNUSABLE: [&str; 5] = ["READONLY", "MASTERDOWN", "LOADING", "NOAUTH", "UNBLOCKED"];

/// Returns the server's error message if it is one of these. Within a script, it is a string in place of a
/// row.
pub(super) fn unusable_server(reply: &RedisResult<Value>) -> Option<String> {
    let found = |text: &[u8]| has_unusable_code(text).then(|| String::from_utf8_lossy(text).into_owned());
    match reply {
        Ok(Value::Array(values)) => values.iter().find_map(|value| match value {
            Value::BulkString(text) => found(text),
            _ => None,
        }),
        Ok(Value::BulkString(text)) => found(text),
        Ok(_) => None,
        Err(error) => {
            let code = error.code().unwrap_or_default();
            UNUSABLE.contains(&code).then(|| words(error))
        }
    }
}

/// Returns whether this can be the reply to one of tidegate's commands. Otherwise replies may be shifted:
/// this one may belong to another command (a PING), and so may all later ones.
pub(super) fn is_plausible(reply: &RedisResult<Value>) -> bool {
    matches!(
        reply,
        Err(_) | Ok(Value::Int(_) | Value::Array(_) | Value::BulkString(_) | Value::VerbatimString { .. })
    )
}

/// Returns the server's time in the reply of a bounded script, in µs since 1970.
pub(super) fn server_us(reply: &RedisResult<Value>) -> Option<u64> {
    match reply {
        Ok(Value::Array(values)) => match values.first() {
            Some(Value::Int(now_us @ 0..)) => Some(now_us.unsigned_abs()),
            _ => None,
        },
        Ok(reply) => late_us(reply),
        Err(_) => None,
    }
}

/// Returns whether a bounded script refused the call because its bound has passed.
pub(super) fn is_late(reply: &Value) -> bool {
    late_us(reply).is_some()
}

fn late_us(reply: &Value) -> Option<u64> {
    let Value::BulkString(text) = reply else { return None };
    std::str::from_utf8(text.strip_prefix(b"LATE ")?).ok()?.parse().ok()
}

pub(super) fn is_unusable(error: &ServerError) -> bool {
    UNUSABLE.contains(&error.code())
}

/// Returns the text of an error. For an error of the server, this is the server's message.
///
/// redis-rs displays some errors with the `Debug` output of their kind (`… - InvalidClientConfig`). That part
/// is removed: it does not help a reader.
pub(crate) fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        // redis-rs describes the state of its parser, over several lines.
        (None, _) if error.kind() == ErrorKind::Parse => {
            "Parse error: the reply is not RESP, or holds a number beyond 64 bits: is this a Redis?"
                .to_owned()
        }
        (None, _) => error.to_string().replacen(&format!(" - {:?}", error.kind()), "", 1),
    }
}

/// Matches `READONLY You can't …`, or `2 READONLY …` for the second item of a group.
fn has_unusable_code(text: &[u8]) -> bool {
    let mut words = text.split(|&byte| byte == b' ').map(|word| word.strip_prefix(b"-").unwrap_or(word));
    let first = words.next().unwrap_or_default();
    let code = match first.iter().all(u8::is_ascii_digit) {
        true => words.next().unwrap_or_default(),
        false => first,
    };
    UNUSABLE.iter().any(|known| known.as_bytes() == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> RedisResult<Value> {
        Ok(Value::Array(vec![Value::Int(1), Value::BulkString(text.into()), Value::Int(2)]))
    }

    #[test]
    fn the_text_of_an_error_holds_no_debug_output() {
        let server = |text: &str| {
            let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
            reply.extract_error().unwrap_err()
        };
        let closed = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        for (error, expected) in [
            (
                (ErrorKind::InvalidClientConfig, "No address found for host").into(),
                "No address found for host",
            ),
            ((ErrorKind::Client, "Bad setting", "timeout".to_owned()).into(), "Bad setting: timeout"),
            ((ErrorKind::Io, "Connection lost").into(), "Connection lost"),
            (closed.into(), "broken pipe"),
            (server("READONLY You can't write"), "READONLY You can't write"),
            (server("CUSTOM of a module"), "CUSTOM of a module"),
            (server("ERR"), "ERR"),
        ] {
            let error: RedisError = error;
            assert_eq!(words(&error), expected);
        }
    }

    #[test]
    fn an_unusable_server_is_distinguished_from_a_failed_key() {
        for text in ["READONLY You can't write", "-READONLY You can't write", "12 MASTERDOWN Link", "LOADING"]
        {
            assert_eq!(unusable_server(&row(text)).as_deref(), Some(text));
            assert!(unusable_server(&Ok(Value::BulkString(text.into()))).is_some(), "{text}");
        }
        for text in
            ["STATE level", "WRONGTYPE Operation", "2 OOM command", "", "12", "ERR READONLY", "READONLYX"]
        {
            assert_eq!(unusable_server(&row(text)), None, "{text}");
        }
        assert_eq!(unusable_server(&Ok(Value::Int(1))), None);
    }
}
