//! The denials of a key that are counted for a ban.

use std::time::Duration;

use redis::Value;

use super::access::unexpected_reply;
use crate::error::Error;
use crate::quota::algorithm::exact_number;

/// The denials of one key that are counted for a [ban](crate::Gate::ban).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedDenials {
    /// Their number.
    pub count: u64,
    /// The time until they count no longer.
    pub ends_in: Duration,
}

impl CountedDenials {
    /// Parses the reply of `inspect.lua` to one key of the kind `count`.
    pub(super) fn of_reply(reply: Value) -> Result<Option<Self>, Error> {
        let Value::Array(reply) = reply else { return Err(unexpected_reply()) };
        match &*reply {
            [Value::Int(_), Value::Int(-2), Value::BulkString(_)] => Ok(None),
            [Value::Int(now), Value::Int(_), Value::BulkString(text)] => {
                let parsed = Self::parse(&String::from_utf8_lossy(text), now.unsigned_abs());
                parsed.map(Some).ok_or_else(|| Error::from_script("STATE denials"))
            }
            [Value::Int(_), Value::BulkString(error)] => {
                Err(Error::from_script(&String::from_utf8_lossy(error)))
            }
            _ => Err(unexpected_reply()),
        }
    }

    /// Parses the count and its end, such as `3 until 1763680520000000`.
    fn parse(text: &str, now_us: u64) -> Option<Self> {
        let (count, ends_us) = text.split_once(" until ")?;
        let ends_in = Duration::from_micros(exact_number(ends_us)?.saturating_sub(now_us));
        Some(Self { count: exact_number(count)?, ends_in })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_parsed_with_its_end() {
        let denials = |count, us| Some(CountedDenials { count, ends_in: Duration::from_micros(us) });
        assert_eq!(CountedDenials::parse("3 until 1500", 1_000), denials(3, 500));
        assert_eq!(CountedDenials::parse("3 until 500", 1_000), denials(3, 0));
        for text in ["", "3", "x until 1", "-1 until 1", "3 until", "3 until x", "3 until 9007199254740993"] {
            assert_eq!(CountedDenials::parse(text, 0), None, "{text}");
        }
    }
}
