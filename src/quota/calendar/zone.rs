//! Time zones as small values: each is read once, and kept until the process ends.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::LazyLock;

use jiff::tz::{TimeZone, db};

use crate::error::Error;
use crate::runtime::sync::{Mutex, lock};

/// No name in the database is longer.
const MAX_NAME_BYTES: usize = 64;

/// A time zone with its name in the database.
#[derive(Clone, Copy)]
pub(super) struct Zone(&'static Entry);

#[derive(Debug)]
struct Entry {
    name: &'static str,
    time_zone: TimeZone,
}

static UTC: Entry = Entry { name: "UTC", time_zone: TimeZone::UTC };

/// The zones in use, by their names: at most as many as the database has.
static ZONES: LazyLock<Mutex<HashMap<&'static str, Zone>>> = LazyLock::new(Mutex::default);

impl Zone {
    pub(super) const UTC: Self = Self(&UTC);

    /// Finds a zone. Upper and lower case are the same.
    ///
    /// # Errors
    ///
    /// With the most similar name of all, which takes milliseconds.
    pub(super) fn of_name(name: &str) -> Result<Self, Error> {
        Self::find(name).ok_or_else(|| unknown(name))
    }

    pub(super) fn find(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case(UTC.name) {
            return Some(Self::UTC);
        }
        if let Some(zone) = lock(&ZONES).get(name) {
            return Some(*zone);
        }
        // A name is a part of Redis keys, and jiff looks for a file of this name.
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'+' | b'-' | b'/');
        let is_name = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_letter);
        let time_zone = if is_name { db().get(name).ok()? } else { return None };
        // The name as the database writes it, so that the zone has one name in Redis keys.
        let written = time_zone.iana_name()?.to_owned();
        let mut zones = lock(&ZONES);
        if let Some(zone) = zones.get(&*written) {
            return Some(*zone);
        }
        let name = &*String::leak(written);
        let zone = Self(Box::leak(Box::new(Entry { name, time_zone })));
        zones.insert(name, zone);
        Some(zone)
    }

    pub(super) const fn name(self) -> &'static str {
        self.0.name
    }

    pub(super) const fn time_zone(self) -> &'static TimeZone {
        &self.0.time_zone
    }
}

fn unknown(name: &str) -> Error {
    if db().available().next().is_none() {
        return Error::config(
            "no time zone database: install `tzdata`, or enable the feature `tzdb-bundle-always` of the crate `jiff`",
        );
    }
    // The time is the product of both lengths.
    let word = name.chars().take(MAX_NAME_BYTES).collect::<String>().to_lowercase();
    let names = db().available().map(|zone| zone.to_string());
    let near = names.map(|zone| (strsim::damerau_levenshtein(&word, &zone.to_lowercase()), zone)).min();
    let near = near.filter(|(distance, zone)| *distance <= 1 + zone.len() / 4);
    let hint = near.map_or_else(
        || "use a name of the IANA database, such as `Europe/Berlin`".to_owned(),
        |(_, zone)| format!("did you mean `{zone}`?"),
    );
    let name: String = name.chars().take(MAX_NAME_BYTES).collect();
    Error::config(format!("no time zone `{}`: {hint}", name.escape_debug()))
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialOrd for Zone {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Zone {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(other.0.name)
    }
}
