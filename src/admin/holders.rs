//! Reads which processes hold units of an in-flight limit.

use std::time::Duration;

use redis::Value;

use super::unexpected_reply;
use crate::error::Error;
use crate::quota::algorithm::exact_number;

/// The maximum holders that are returned: each is a lookup in Redis.
pub(super) const MAX_HOLDERS: usize = 1_000;

/// The processes that hold units of a key: see [`Inspector::holders`](super::Inspector::holders).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// The processes with units: those with most units first, at most 1,000.
    pub holders: Vec<Holder>,
    /// The number of further processes with units.
    pub more: u64,
}

/// A process that holds units of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The name of the process's lease, such as `web-1.3f2a/10000`. The number is the length of the lease in
    /// ms.
    pub name: String,
    /// The units that it holds.
    pub units: u64,
    /// The time until its lease ends without a renewal. `None` if it has ended: the units do not count.
    pub lease_ends_in: Option<Duration>,
}

impl Holders {
    /// Parses the reply of `inspect_holders.lua`.
    pub(super) fn of_reply(reply: &Value) -> Result<Self, Error> {
        let Value::Array(reply) = reply else { return Err(unexpected_reply()) };
        let [Value::Int(now), Value::Int(count), rows @ ..] = reply.as_slice() else {
            return Err(unexpected_reply());
        };
        let (now, count) = (now.unsigned_abs(), count.unsigned_abs());
        let mut holders = Vec::with_capacity(rows.len() / 3);
        for row in rows.chunks(3) {
            let [Value::BulkString(name), Value::BulkString(field), Value::BulkString(end)] = row else {
                return Err(unexpected_reply());
            };
            let [name, field, end] = [name, field, end].map(|text| String::from_utf8_lossy(text));
            holders.push(holder(&name, &field, &end, now)?);
        }
        let more = count.saturating_sub(holders.len() as u64);
        holders.sort_by(|a, b| b.units.cmp(&a.units).then_with(|| a.name.cmp(&b.name)));
        Ok(Self { holders, more })
    }
}

/// Parses a field such as `4 #17`, and the score of a lease.
fn holder(name: &str, field: &str, end: &str, now: u64) -> Result<Holder, Error> {
    let units = field.split_once(" #").and_then(|(units, number)| {
        exact_number(number)?;
        exact_number(units)
    });
    let units = units.ok_or_else(|| Error::from_script("STATE holder"))?;
    let end_us = match end {
        "" => 0,
        end => exact_number(end).ok_or_else(|| Error::from_script("STATE lease"))?,
    };
    let left = end_us.checked_sub(now).filter(|left| *left > 0);
    Ok(Holder { name: name.to_owned(), units, lease_ends_in: left.map(Duration::from_micros) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_is_its_units_and_the_rest_of_its_lease() {
        let read = |field, end| holder("web/10000", field, end, 1_000);
        let found = read("4 #17", "2500").unwrap();
        assert_eq!((found.units, found.lease_ends_in), (4, Some(Duration::from_micros(1_500))));
        assert_eq!(read("4 #17", "1000").unwrap().lease_ends_in, None, "ended at this microsecond");
        assert_eq!(read("4 #17", "").unwrap().lease_ends_in, None);
        for (field, end) in [("", ""), ("4", ""), ("4 #", ""), ("-4 #1", ""), ("4 #x", ""), ("4 #1", "soon")]
        {
            assert!(read(field, end).unwrap_err().is_corrupt_state(), "{field:?} {end:?}");
        }
    }
}
