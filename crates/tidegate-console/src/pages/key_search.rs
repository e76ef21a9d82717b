//! Finds the states of one key at all gates, in bounded time.

use std::time::Duration;

use tidegate::Error;
use tidegate::admin::{CountedDenials, Found, Inspector, Name};
use tidegate_rules::RulesLimiter;
use tokio::time::{Instant, timeout_at};

/// The maximum time of the search.
const MAX_DURATION: Duration = Duration::from_secs(3);
/// The maximum states that are shown.
const MAX_STATES: usize = 500;

/// The states of a key.
pub(super) struct KeySearch {
    /// By gate.
    pub(super) found: Vec<Found>,
    /// The denials that are counted for bans, by gate.
    pub(super) denials: Vec<(String, CountedDenials)>,
    /// Why denials may be missing, although the search was in time.
    pub(super) denials_error: Option<Error>,
    /// Whether all keys of the namespace were searched, and all denials read, in time.
    pub(super) is_complete: bool,
}

impl KeySearch {
    /// Finds the states of a key, by its forms in Redis. `key` is the key itself, if it is known. If the search takes too
    /// long, reads those of the rules' gates.
    pub(super) async fn new(
        inspector: &Inspector,
        rules: &RulesLimiter,
        key: Option<&[u8]>,
        written: &[String],
    ) -> Result<Self, Error> {
        let ends = Instant::now() + MAX_DURATION;
        let searched = timeout_at(ends, inspector.find_key(None, written)).await;
        let mut is_complete = searched.is_ok();
        let (mut found, with_denials) = match searched {
            Ok(states) => states.map(|states| (states.found, states.with_denials))?,
            Err(_) => {
                let names = key.map(|key| names_of_rules(inspector, rules, key)).unwrap_or_default();
                (inspector.read(&names).await?, names)
            }
        };
        found.truncate(MAX_STATES);
        let (mut denials, mut denials_error) = (Vec::new(), None);
        for name in with_denials.iter().take(MAX_STATES) {
            match timeout_at(ends, inspector.denials(name)).await {
                Ok(Ok(counted)) => denials.extend(counted.map(|counted| (name.gate.clone(), counted))),
                // Another program has written the key.
                Ok(Err(error)) if error.is_corrupt_state() => {}
                Ok(Err(error)) => {
                    denials_error = Some(error);
                    break;
                }
                Err(_) => {
                    is_complete = false;
                    break;
                }
            }
        }
        Ok(Self { found, denials, denials_error, is_complete })
    }
}

/// Returns the names of the states that the rules' gates have for a key.
fn names_of_rules(inspector: &Inspector, rules: &RulesLimiter, key: &[u8]) -> Vec<Name> {
    let name = |rule: &tidegate_rules::Rule| {
        let gate = rules.limiter().try_gate(&rule.gate_name(), rule.quota()?).ok()?;
        inspector.parse(&gate.redis_key(key).ok()?)
    };
    rules.rules().iter().filter_map(name).collect()
}
