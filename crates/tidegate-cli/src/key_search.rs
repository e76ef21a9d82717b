//! Finds the states of a key that is given on the command line.

use std::ffi::OsStr;

use tidegate::admin::{Found, Inspector, Name};

use crate::args::AsStored;
use crate::failure::Failure;
use crate::redis_url::RedisUrl;
use crate::survey::Survey;

/// The maximum states of one key. A namespace has far fewer gates.
const MAX_STATES: usize = 10_000;

/// The states of one key.
pub(crate) struct KeySearch {
    pub(crate) found: Vec<Found>,
    /// The states that have holds. A state may have expired before its holds.
    pub(crate) with_holds: Vec<Name>,
    /// The states whose keys have denials counted for a ban. A state may have expired before its count.
    pub(crate) with_denials: Vec<Name>,
    /// Counts keys of other versions and foreign keys.
    pub(crate) survey: Survey,
}

impl KeySearch {
    /// Returns the states of the key, and those of which only holds or counted denials are left.
    pub(crate) fn names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.found.iter().map(|found| found.name.clone()).collect();
        for name in self.with_holds.iter().chain(&self.with_denials) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

/// Finds the states of a key at one gate or at all gates, by scanning all keys.
pub(crate) async fn find(
    inspector: &Inspector,
    gate: Option<&str>,
    key: &OsStr,
    as_stored: &AsStored,
) -> Result<KeySearch, Failure> {
    let (mut names, mut with_holds, mut with_denials): (Vec<Name>, Vec<Name>, Vec<Name>) = Default::default();
    let mut survey = Survey::new(0);
    for written in stored_forms(inspector, key, as_stored)? {
        let mut scan = inspector.scan_key(gate, &written);
        while let Some(page) = scan.next().await? {
            survey.count_others(&page);
            // The pattern also matches longer keys with the same end.
            let is_of_key =
                |name: &Name| name.written == written && gate.is_none_or(|gate| name.gate == gate);
            names.extend(page.names.into_iter().filter(is_of_key));
            with_holds.extend(page.with_holds.into_iter().filter(is_of_key));
            with_denials.extend(page.with_denials.into_iter().filter(is_of_key));
            if names.len().max(with_holds.len()).max(with_denials.len()) > MAX_STATES {
                return Err(Failure::usage(format!(
                    "this key has more than {MAX_STATES} states: add --gate"
                )));
            }
        }
    }
    for names in [&mut names, &mut with_holds, &mut with_denials] {
        names.sort_by(|a, b| a.redis_key.cmp(&b.redis_key));
        names.dedup();
    }
    let mut found = inspector.read(&names).await?;
    found.sort_by(|a, b| a.name.redis_key.cmp(&b.name.redis_key));
    Ok(KeySearch { found, with_holds, with_denials, survey })
}

/// Returns the possible stored forms of the key.
pub(crate) fn stored_forms(
    inspector: &Inspector,
    key: &OsStr,
    as_stored: &AsStored,
) -> Result<Vec<String>, Failure> {
    match (as_stored.stored, key.to_str()) {
        (false, _) => Ok(inspector.stored_forms(key.as_encoded_bytes())),
        (true, Some(key)) if key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(vec![key.to_owned()]),
        (true, _) => Err(Failure::usage(
            "invalid stored key: a byte that is not printable is stored as % and two hexadecimal digits",
        )),
    }
}

/// Returns the message for a key without state, with a hint if the key looks like a stored form.
pub(crate) fn no_state_message(
    inspector: &Inspector,
    gate: Option<&str>,
    key: &OsStr,
    as_stored: &AsStored,
) -> String {
    let at = gate.map(|gate| format!(" at {gate}")).unwrap_or_default();
    let is_maybe_stored = !as_stored.stored && key.as_encoded_bytes().contains(&b'%');
    let hint = if is_maybe_stored { "; if the key is in its stored form, add --stored" } else { "" };
    let (mut shown, mut hint) = (key.display().to_string(), hint);
    let url = RedisUrl::from(shown.as_str());
    if url.is_of_redis() {
        (shown, hint) = (url.to_string(), "; for the URL of the Redis, write --redis URL");
    }
    format!("no state of {shown}{at} in namespace {}{hint}", inspector.namespace())
}
