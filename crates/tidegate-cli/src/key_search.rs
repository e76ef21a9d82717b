//! Finds the states of a key that is given on the command line.

use std::ffi::OsStr;

use tidegate::admin::{Inspector, KeyStates};

use crate::args::AsStored;
use crate::failure::Failure;
use crate::redis_url::RedisUrl;
use crate::survey::Survey;

/// The states of one key, and a count of keys of other versions and of foreign keys.
pub(crate) struct KeySearch {
    pub(crate) states: KeyStates,
    pub(crate) survey: Survey,
}

/// Finds the states of a key at one gate or at all gates, by scanning all keys.
pub(crate) async fn find(
    inspector: &Inspector,
    gate: Option<&str>,
    key: &OsStr,
    as_stored: &AsStored,
) -> Result<KeySearch, Failure> {
    let mut survey = Survey::new(0);
    let written = stored_forms(inspector, key, as_stored)?;
    let states = inspector.find_key(gate, &written, |page| survey.count_others(page)).await?;
    Ok(KeySearch { states, survey })
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
