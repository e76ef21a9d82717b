//! Searches for the states of a key, and for the forms of a gate's keys, in a time that is bounded.

use std::time::Duration;

use tidegate::Error;
use tidegate::admin::{Inspector, KeyStates};
use tokio::time::timeout;

use super::failed::Failed;
use super::kinds::Key;

/// The maximum time of a search, which reads the names of all keys in the database.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a search has no result. Searches change nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum SearchFailed {
    #[error("the database has too many keys to search them within {SEARCH_TIMEOUT:?}")]
    TimedOut,
    #[error("{0}")]
    Limiter(#[from] Error),
}

impl From<SearchFailed> for Failed {
    fn from(failed: SearchFailed) -> Self {
        match failed {
            SearchFailed::TimedOut => Self::no_effect(format!("{failed}; nothing changed")),
            SearchFailed::Limiter(error) => Self::Limiter(error),
        }
    }
}

/// Finds all states of the key at this gate.
pub(super) async fn find(inspector: &Inspector, gate: &str, key: &Key) -> Result<KeyStates, SearchFailed> {
    let written = stored_forms(inspector, key);
    within_timeout(inspector.find_key(Some(gate), &written, |_| {})).await
}

/// Returns the possible forms of the key in Redis.
pub(super) fn stored_forms(inspector: &Inspector, key: &Key) -> Vec<String> {
    match key {
        Key::Clear(key) => inspector.stored_forms(key.as_bytes()),
        Key::Stored(key) => vec![key.clone()],
    }
}

/// Ends a search that takes too long.
pub(super) async fn within_timeout<T>(
    search: impl Future<Output = Result<T, Error>>,
) -> Result<T, SearchFailed> {
    match timeout(SEARCH_TIMEOUT, search).await {
        Ok(found) => Ok(found?),
        Err(_) => Err(SearchFailed::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn search_ends_in_time_and_says_that_nothing_changed() {
        let failed = within_timeout(pending::<Result<(), Error>>()).await.unwrap_err();
        assert_eq!(failed.to_string(), "the database has too many keys to search them within 60s");
        let Failed::Before(problem) = failed.into() else { panic!("a search has changed something") };
        assert!(problem.detail.ends_with("within 60s; nothing changed"), "{}", problem.detail);
    }
}
