//! Keys that are given on the command line, and their states.

use std::ffi::OsStr;

use tidegate::admin::{CheckedChange, GivenKey};

use crate::args::AsStored;
use crate::failure::Failure;
use crate::redis_url::RedisUrl;
use crate::survey::Survey;

impl AsStored {
    /// Returns the key that these arguments mean.
    pub(crate) fn key(&self, key: &OsStr) -> Result<GivenKey, Failure> {
        match self.stored {
            false => Ok(GivenKey::Plain(key.as_encoded_bytes().to_vec())),
            true => Ok(GivenKey::stored(&key.to_string_lossy())?),
        }
    }
}

/// Returns what helps if a key has no state: it looks like a stored form, or like the URL of a Redis.
pub(crate) fn hint(key: &OsStr, as_stored: &AsStored) -> &'static str {
    if RedisUrl::from(&*key.to_string_lossy()).is_of_redis() {
        return "; for the URL of the Redis, write --redis URL";
    }
    match !as_stored.stored && key.as_encoded_bytes().contains(&b'%') {
        true => "; if the key is in its stored form, add --stored",
        false => "",
    }
}

/// Returns notes on the keys of other versions, and on foreign keys, that the search of a change has found.
pub(crate) fn notes(checked: &CheckedChange) -> Vec<String> {
    let mut survey = Survey::new(0);
    if let Some(states) = &checked.states {
        survey.count_others(&states.others);
    }
    survey.notes()
}
