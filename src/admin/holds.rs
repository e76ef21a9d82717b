//! The open holds of a key.

use std::time::Duration;

use redis::Value;

use super::unexpected_reply;
use crate::error::Error;
use crate::quota::algorithm::exact_number;
use crate::quota::reference::holds::AtEnd;

/// The maximum holds of one key that are read.
pub(super) const MAX_HOLDS: usize = 100;

/// The holds of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHolds {
    /// How many there are, including those that have ended and that no call has removed.
    pub count: u64,
    /// Those that end first, at most 100.
    pub first: Vec<FoundHold>,
}

/// One hold of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundHold {
    /// The id of the reservation. Bytes that are not UTF-8 are replaced.
    pub id: String,
    /// The units that it holds.
    pub units: u64,
    /// What happens at its end. [`AtEnd::Forget`] is a hold that has ended: its units were refunded, or stay
    /// charged.
    pub at_end: AtEnd,
    /// The time until it ends; zero if it has ended and no call has removed it.
    pub ends_in: Duration,
}

impl KeyHolds {
    /// Parses the reply of `inspect_holds.lua`.
    pub(super) fn of_reply(reply: Value) -> Result<Self, Error> {
        let reply = match reply {
            Value::Array(reply) => reply,
            Value::BulkString(error) => return Err(Error::from_script(&String::from_utf8_lossy(&error))),
            _ => return Err(unexpected_reply()),
        };
        let [Value::Int(now), Value::Int(count), members @ ..] = &*reply else {
            return Err(unexpected_reply());
        };
        let hold = |pair: &[Value]| {
            let [Value::BulkString(member), Value::BulkString(score)] = pair else {
                return Err(unexpected_reply());
            };
            let found = FoundHold::parse(member, score, now.unsigned_abs());
            found.ok_or_else(|| Error::from_script("STATE holds"))
        };
        let first = members.chunks(2).map(hold).collect::<Result<_, _>>()?;
        Ok(Self { count: count.unsigned_abs(), first })
    }
}

impl FoundHold {
    /// Parses `id:units:ttl:what` and the end of a hold.
    fn parse(member: &[u8], score: &[u8], now_us: u64) -> Option<Self> {
        let member = String::from_utf8_lossy(member);
        let mut parts = member.rsplitn(4, ':');
        let at_end = match parts.next()? {
            "keep" => AtEnd::Keep,
            "back" => AtEnd::Refund,
            "late" => AtEnd::Forget,
            _ => return None,
        };
        exact_number(parts.next()?)?;
        let units = exact_number(parts.next()?)?;
        let ends_us = exact_number(std::str::from_utf8(score).ok()?)?;
        let ends_in = Duration::from_micros(ends_us.saturating_sub(now_us));
        Some(Self { id: parts.next()?.to_owned(), units, at_end, ends_in })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(member: &str, score: &str) -> Option<FoundHold> {
        FoundHold::parse(member.as_bytes(), score.as_bytes(), 1_000)
    }

    #[test]
    fn members_are_parsed_from_their_end() {
        let hold = |id: &str, at_end, ends_in_us| FoundHold {
            id: id.to_owned(),
            units: 7,
            at_end,
            ends_in: Duration::from_micros(ends_in_us),
        };
        assert_eq!(parse("a:7:60000000:keep", "1001"), Some(hold("a", AtEnd::Keep, 1)));
        assert_eq!(parse("a:1:2:back:7:1:back", "999"), Some(hold("a:1:2:back", AtEnd::Refund, 0)));
        assert_eq!(parse(":7:1:late", "9007199254740992"), Some(hold("", AtEnd::Forget, (1 << 53) - 1_000)));
    }

    #[test]
    fn members_that_are_never_written_are_not_holds() {
        for (member, score) in [
            ("", "1"),
            ("a", "1"),
            ("7:1:keep", "1"),
            ("a:7:1:kept", "1"),
            ("a:-7:1:keep", "1"),
            ("a:7:+1:keep", "1"),
            ("a:7:1:keep", "1.5"),
            ("a:7:1:keep", "inf"),
            ("a:9007199254740993:1:keep", "1"),
        ] {
            assert_eq!(parse(member, score), None, "{member} {score}");
        }
    }
}
