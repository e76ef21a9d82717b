//! The most used keys and those that are denied now, read a part at a time for all readers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::Duration;

use tidegate::Error;
use tidegate::admin::top_keys::TopKeys;
use tidegate::admin::{Found, Inspector, Ranking};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until};

use super::catalog::{Denied, GateLimit};
use super::states::{is_full, limit_of};

/// The keys of each list.
pub(super) const LISTED: usize = 25;
/// Readers of a gate within this time share a reading. Readings of different gates begin as far apart, so that Redis reads at
/// most 10,000 keys a second for all readers, whatever gates they name.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// The maximum gates with rankings of their own. The one that was read least recently is forgotten.
const MAX_GATES: usize = 16;

/// The limits of gates, by gate.
type Limits = Arc<SyncMutex<HashMap<String, GateLimit>>>;

/// The rankings of all keys, and of some gates.
pub(super) struct Top {
    inspector: Inspector,
    limits: Limits,
    /// The least recently read first.
    rankings: SyncMutex<Vec<GateRankings>>,
    /// When the last reading of any gate began. A reader that waits for its turn, or reads, holds the lock.
    last_begun: Mutex<Option<Instant>>,
}

/// The rankings of a gate, or of all.
type GateRankings = (Option<String>, Arc<Mutex<Scanned>>);

struct Scanned {
    keys: TopKeys,
    read_at: Option<Instant>,
}

/// The rankings at one moment.
pub(super) struct Ranked {
    pub(super) denied: Vec<Found>,
    pub(super) most_used: Vec<Found>,
    /// The keys read in this round, and those of the last complete one.
    pub(super) keys_read: u64,
    pub(super) last_round: Option<u64>,
}

impl Top {
    pub(super) fn new(inspector: Inspector) -> Self {
        let (limits, rankings, last_begun) = Default::default();
        Self { inspector, limits, rankings, last_begun }
    }

    /// Reads the next part of the keys of a gate, or of all. `limits` are those of the gates that the rules or
    /// switches name.
    pub(super) async fn read(
        &self,
        gate: Option<&str>,
        limits: HashMap<String, GateLimit>,
    ) -> Result<Ranked, Error> {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        let scanned = self.scanned(gate);
        let mut scanned = scanned.lock().await;
        if scanned.read_at.is_none_or(|read_at| read_at.elapsed() >= SHARED_FOR) {
            let mut last_begun = self.last_begun.lock().await;
            if let Some(begun) = *last_begun {
                sleep_until(begun + SHARED_FOR).await;
            }
            // Before the reading, so that one whose reader has left counts, too.
            *last_begun = Some(Instant::now());
            scanned.keys.refresh().await?;
            scanned.read_at = Some(Instant::now());
        }
        let ranking = |index: usize| scanned.keys.rankings()[index].best().cloned().collect();
        Ok(Ranked {
            denied: ranking(0),
            most_used: ranking(1),
            keys_read: scanned.keys.keys_read(),
            last_round: scanned.keys.last_round(),
        })
    }

    fn scanned(&self, gate: Option<&str>) -> Arc<Mutex<Scanned>> {
        let mut rankings = self.rankings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = rankings.iter().position(|(of, _)| of.as_deref() == gate) {
            rankings[at..].rotate_left(1);
            return rankings[rankings.len() - 1].1.clone();
        }
        let limits = self.limits.clone();
        let by = vec![Ranking::by(LISTED, move |found| denied(found, &limits)), Ranking::most_used(LISTED)];
        let keys = TopKeys::new(self.inspector.clone(), gate.map(str::to_owned), by);
        let scanned = Arc::new(Mutex::new(Scanned { keys, read_at: None }));
        if rankings.len() == MAX_GATES {
            rankings.remove(0);
        }
        rankings.push((gate.map(str::to_owned), scanned.clone()));
        scanned
    }
}

/// Ranks the keys that are denied now: blocked keys, the longest block first, then those without a unit left or of a closed
/// gate, the last to be unused first. `None` for others, for keys whose limit is not known, and for gates that admit keys over
/// the limit.
fn denied(found: &Found, limits: &Limits) -> Option<f64> {
    const BLOCKED: f64 = 1e15;
    let usage = found.usage.as_ref().ok()?;
    let limits = limits.lock().unwrap_or_else(PoisonError::into_inner);
    let of_gate = limits.get(&found.name.gate);
    let denied = of_gate.map_or_else(Denied::default, |limit| limit.denied);
    if matches!(denied, Denied::Nothing(_)) {
        return None;
    }
    if let Some(left) = usage.blocked_for {
        return Some(BLOCKED + left.as_secs_f64());
    }
    let overridden = of_gate.and_then(|limit| limit.overridden.get(&found.name.written).copied());
    let limit = limit_of(usage, overridden, of_gate.and_then(|limit| limit.units));
    (denied == Denied::All || is_full(usage, limit)).then_some(usage.reset_after.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use tidegate::Limiter;

    use super::*;

    fn top() -> Top {
        // Nothing listens there.
        let limiter = Limiter::builder().url("redis://127.0.0.1:1").stderr_warnings(false).build().unwrap();
        Top::new(Inspector::new(&limiter).unwrap())
    }

    #[tokio::test]
    async fn readings_of_different_gates_share_one_throttle() {
        // Uses the real clock: a paused one would jump to the deadlines of the readings, which fail at once.
        let (top, start) = (top(), Instant::now());
        for gate in ["a", "b"] {
            assert!(top.read(Some(gate), HashMap::new()).await.is_err());
        }
        assert!(start.elapsed() >= SHARED_FOR);
    }

    #[tokio::test]
    async fn least_recently_read_gate_is_forgotten() {
        let top = top();
        let of = |gate: usize| top.scanned(Some(&gate.to_string()));
        let (first, second) = (of(0), of(1));
        (2..MAX_GATES).for_each(|gate| drop(of(gate)));
        assert!(Arc::ptr_eq(&of(0), &first));
        drop(of(MAX_GATES));
        assert!(Arc::ptr_eq(&of(0), &first) && !Arc::ptr_eq(&of(1), &second));
    }
}
