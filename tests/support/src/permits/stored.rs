//! Parses the state that the scripts store.

use super::state::{Entry, Leases, Level, Permits};

pub(super) fn leases(fields: &[String]) -> Option<Leases> {
    fields.chunks(2).map(|pair| Some((pair[0].clone(), pair[1].parse().ok()?))).collect()
}

/// Parses the hash of an in-flight limit: section 4 of its design.
pub(super) fn permits(fields: &[String]) -> Option<Permits> {
    let mut permits = Permits::default();
    let mut has_sum = false;
    for pair in fields.chunks(2) {
        let text = &*pair[1];
        match &*pair[0] {
            "held" => {
                let (text, blocked) = text.split_once(" blocked until ").unwrap_or((text, "0"));
                let (text, sure_until) = text.split_once(" sure until ")?;
                let (text, at) = text.split_once(" at ")?;
                let (held, limit) = text.split_once('/')?;
                permits.held = held.parse().ok()?;
                permits.sure_until_us = sure_until.parse().ok()?;
                permits.blocked_until_us = blocked.parse().ok()?;
                let _: (u64, u64) = (limit.parse().ok()?, at.parse().ok()?);
                has_sum = true;
            }
            name => {
                let (units, number) = text.split_once(" #")?;
                let entry = Entry { units: units.parse().ok()?, number: number.parse().ok()? };
                permits.entries.insert(name.to_owned(), entry);
            }
        }
    }
    has_sum.then_some(permits)
}

/// Parses `ticks/per of capacity, rate/us at us`.
pub(super) fn level(fields: &[String]) -> Option<Level> {
    let (ticks, rest) = fields[1].split_once('/')?;
    let at_us = rest.split_once("/us at ")?.1.parse().ok()?;
    Some(Level { ticks: ticks.parse().ok()?, at_us })
}
