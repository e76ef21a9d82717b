//! The changes that operators make, for all of their tools: the command line, the JSON API and the console of the
//! service.

mod checks;
mod request;
mod writes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use self::checks::{CheckedChange, Refusal};
pub use self::request::{Action, Change, ChangedGate, GivenKey, quota_of};
use super::{AuditRecord, Inspector};
use crate::error::Error;
use crate::limiter::Limiter;

/// The maximum time of the searches of one change, unless [`Changes::max_search`] sets another.
const MAX_SEARCH: Duration = Duration::from_secs(60);

/// Makes the changes of operators, and records each in the audit log.
///
/// [`check`](Self::check) finds the states of the key in all their stored forms, and refuses a change that is probably
/// a mistake. [`apply`](Self::apply) writes a checked change. [`make`](Self::make) does both.
///
/// A search reads the names of all keys in the database with SCAN, for at most 60 s. A block, an unblock and a reset of
/// a key whose quota is known from the caller's rules do not wait for it: [`apply`](Self::apply) first writes the state
/// that the rule's quota names, then searches for other forms of the key. If that search fails, the change remains, and
/// [`Effect::incomplete`] says why.
#[derive(Clone, Debug)]
pub struct Changes {
    limiter: Limiter,
    /// `None` if the limiter has no Redis.
    inspector: Option<Inspector>,
    max_search: Duration,
    /// Whether the searches have ended: [`Changes::end_searches`].
    has_ended: Arc<watch::Sender<bool>>,
}

/// The operator who makes a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// The name of the operator's token or account.
    pub name: String,
    /// The operator's role.
    pub role: String,
    /// Why, in the operator's words.
    pub reason: String,
}

/// A change that was tried, and recorded.
#[derive(Clone, Debug)]
pub struct Made {
    /// The effect. After an error, a part of the change may have been made.
    pub effect: Result<Effect, Error>,
    /// The entry of the audit log.
    pub record: AuditRecord,
    /// Why Redis has not stored the entry, if it has not. A limiter without Redis stores none.
    pub audit_error: Option<Error>,
}

/// The effect of a change that was made without an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// In words, such as `blocked for 1h`. Does not contain the key.
    pub result: String,
    /// False if there was nothing to change, for example no block to lift.
    pub has_changed: bool,
    /// Why further forms of the key were not searched, or one of them is as before.
    pub incomplete: Option<String>,
    /// The Redis keys of the states that were blocked, unblocked or removed.
    pub redis_keys: BTreeSet<String>,
    /// The number of Redis keys that were removed: states with their holds and counted denials, or counts alone.
    pub removed: u64,
}

impl Changes {
    /// Makes changes of the state of this limiter, which may be in memory.
    #[must_use]
    pub fn new(limiter: &Limiter) -> Self {
        let (limiter, inspector) = (limiter.clone(), Inspector::new(limiter).ok());
        Self { limiter, inspector, max_search: MAX_SEARCH, has_ended: Arc::default() }
    }

    /// Sets the maximum time of the searches of one change, instead of 60 s.
    #[must_use]
    pub fn max_search(self, max_search: Duration) -> Self {
        Self { max_search, ..self }
    }

    /// Ends all searches: those of [`check`](Self::check), and those for further forms of a key. No further form that was
    /// found is written either, so that the changes that were written are recorded now. Call it before the process ends.
    /// Clones share it.
    pub fn end_searches(&self) {
        self.has_ended.send_replace(true);
    }

    /// Writes a checked change, and records it in the audit log with its result.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped, the change may be made in part, and is not recorded. To end it early,
    /// call [`end_searches`](Self::end_searches).
    pub async fn apply(&self, checked: CheckedChange, author: &Author) -> Made {
        let record = self.record(&checked.change, author);
        self.add_to_log(record, self.write(checked).await).await
    }

    /// Adds a change with its result to the audit log.
    async fn add_to_log(&self, mut record: AuditRecord, effect: Result<Effect, Error>) -> Made {
        record.result = match &effect {
            Ok(effect) => effect.result.clone(),
            Err(error) => format!("failed: {error}"),
        };
        let audit_error = match &self.inspector {
            Some(inspector) => inspector.record_audit(&record).await.err(),
            None => None,
        };
        Made { effect, record, audit_error }
    }

    /// Checks a change, and applies it. If Redis fails during the check, the failed change is recorded too.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), except if Redis failed: then nothing was changed, and nothing is recorded.
    ///
    /// # Cancel safety
    ///
    /// As [`apply`](Self::apply).
    pub async fn make(&self, change: Change, author: &Author) -> Result<Made, Refusal> {
        let record = self.record(&change, author);
        match self.check(change).await {
            Ok(checked) => Ok(self.apply(checked, author).await),
            Err(Refusal::Failed(error)) if !error.is_config() => {
                Ok(self.add_to_log(record, Err(error)).await)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Returns the entry of a change for the audit log, without its result.
    fn record(&self, Change { gate, action, .. }: &Change, author: &Author) -> AuditRecord {
        let keyspace = self.limiter.pipeline.keyspace();
        AuditRecord {
            operator: author.name.clone(),
            role: author.role.clone(),
            verb: action.verb().to_owned(),
            gate: gate.name.clone(),
            key: action.key().map(|key| key.recorded(keyspace)).unwrap_or_default(),
            detail: action.detail(),
            reason: author.reason.clone(),
            result: String::new(),
        }
    }
}

impl Effect {
    /// Returns the effect of a change that was made.
    fn changed(result: impl Into<String>) -> Self {
        Self { result: result.into(), has_changed: true, ..Self::default() }
    }

    /// Returns the value of a write to a further form of the key. If the write failed, returns `None` and keeps the reason,
    /// provided that the change was made by an earlier write.
    fn further<T>(&mut self, is_made: bool, written: Result<T, Error>) -> Result<Option<T>, Error> {
        match written {
            Err(error) if is_made => {
                self.incomplete.get_or_insert_with(|| format!("another form is as before: {error}"));
                Ok(None)
            }
            written => written.map(Some),
        }
    }

    /// Returns the effect of a change that had nothing to do.
    fn nothing(result: impl Into<String>) -> Self {
        Self { has_changed: false, ..Self::changed(result) }
    }
}
