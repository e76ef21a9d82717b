//! Finds the states of one key at all gates, in bounded time.

use std::time::Duration;

use tidegate::Error;
use tidegate::admin::{CountedDenials, Found, Inspector, Name};
use tidegate_rules::RulesLimiter;
use tokio::time::Instant;

/// After this time, the scan ends. The gates of the rules are read before it, without a scan.
const MAX_DURATION: Duration = Duration::from_secs(3);
/// The maximum states that are read.
const MAX_STATES: usize = 500;

/// The states of a key.
pub(super) struct KeySearch {
    /// By gate.
    pub(super) found: Vec<Found>,
    /// The denials that are counted for bans, by gate.
    pub(super) denials: Vec<(String, CountedDenials)>,
    /// Whether all keys of the namespace were searched.
    pub(super) is_complete: bool,
}

impl KeySearch {
    /// Finds the states of a key, by its forms in Redis. `key` is the key itself, if it is known.
    pub(super) async fn new(
        inspector: &Inspector,
        rules: &RulesLimiter,
        key: Option<&[u8]>,
        written: &[String],
    ) -> Result<Self, Error> {
        let mut names = key.map(|key| names_of_rules(inspector, rules, key)).unwrap_or_default();
        let mut with_denials: Vec<Name> = names.clone();
        let (start, mut is_complete) = (Instant::now(), true);
        'forms: for written in written {
            let mut scan = inspector.scan_key(None, written);
            while let Some(page) = scan.next().await? {
                // The pattern also matches longer keys with the same end.
                names.extend(page.names.into_iter().filter(|name| name.written == *written));
                with_denials.extend(page.with_denials.into_iter().filter(|name| name.written == *written));
                if start.elapsed() > MAX_DURATION || names.len() > MAX_STATES {
                    is_complete = false;
                    break 'forms;
                }
            }
        }
        for names in [&mut names, &mut with_denials] {
            names.sort_by(|a, b| a.redis_key.cmp(&b.redis_key));
            names.dedup();
            names.truncate(MAX_STATES);
        }
        let mut found = inspector.read(&names).await?;
        found.sort_by(|a, b| a.name.redis_key.cmp(&b.name.redis_key));
        let mut denials = Vec::new();
        for name in with_denials.iter().take(MAX_STATES) {
            // Another program may have written the key.
            if let Ok(Some(counted)) = inspector.denials(name).await {
                denials.push((name.gate.clone(), counted));
            }
        }
        Ok(Self { found, denials, is_complete })
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
