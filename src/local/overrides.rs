//! Operators' overrides for the whole fleet: a gate's mode, and the quota of a single key. The store keeps
//! them. Each process reads them twice a second and decides by the last reading, so that no check waits for
//! it. A process without checks for ten seconds does not read; its next check waits for a reading.

mod known;
mod snapshot;
mod text;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout_at};

use self::known::{KnownOverrides, OverrideCounts};
use self::snapshot::Snapshot;
use self::text::OverrideEntry;
pub use self::text::{Override, Switch};
use crate::connection::Deadline;
use crate::error::Error;
use crate::local::breaker::Breaker;
use crate::observe::observer::{Event, EventSink};
use crate::observe::warning::{RepeatedWarning, WarningSink};
use crate::quota::Quota;
use crate::runtime::background::{Background, Job, JobSlot};
use crate::runtime::clock::Clock;
use crate::runtime::sharded_arc::ShardedArc;
use crate::store::{GateInfo, MAX_OVERRIDE_BYTES, MAX_OVERRIDES, OverrideText, Store};

/// The pause between two readings, shortened by up to 10 % at random.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest reading of this process: with the pause, it follows an override within 2 s also if Redis is slow.
const READING: Duration = Duration::from_secs(1);
/// A process without checks for this long does not read.
const IDLE: Duration = Duration::from_secs(10);
/// The maximum pause while the store rejects reads.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The overrides that apply to one key.
pub(crate) struct KeyOverrides {
    /// The mode that its gate is switched to.
    pub(crate) switch: Option<Switch>,
    /// The gate whose quota decides instead.
    pub(crate) gate: Option<Arc<ShardedArc<GateInfo>>>,
}

/// The overrides of one limiter. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Overrides(Arc<OverridesInner>);

struct OverridesInner {
    store: Arc<Store>,
    /// `None` if the store cannot fail, and only this process writes to it.
    breaker: Option<Arc<Breaker>>,
    clock: Clock,
    operator_deadline: Duration,
    events: EventSink,
    warnings: WarningSink,
    left_out: RepeatedWarning,
    unreadable: RepeatedWarning,
    /// Their key in the store.
    key: String,
    /// The last reading.
    snapshot: Snapshot<KnownOverrides>,
    /// Serializes readings, so that an older one does not replace a newer one. Holds the counts reported
    /// last.
    reading: Mutex<OverrideCounts>,
    background: Arc<Background>,
    is_followed: bool,
    following: JobSlot,
    /// A check waits for a reading; or the limiter was dropped.
    wanted: Arc<Notify>,
    /// A reading has ended that checks may wait for.
    ended: Notify,
}

/// What they are made with.
pub(crate) struct OverrideSettings {
    pub(crate) store: Arc<Store>,
    pub(crate) breaker: Option<Arc<Breaker>>,
    pub(crate) clock: Clock,
    pub(crate) operator_deadline: Duration,
    pub(crate) events: EventSink,
    pub(crate) warnings: WarningSink,
    pub(crate) key: String,
    pub(crate) background: Arc<Background>,
    /// Whether to follow the overrides in the store.
    pub(crate) follow: bool,
}

impl Overrides {
    pub(crate) fn new(settings: OverrideSettings) -> Self {
        let OverrideSettings {
            store,
            breaker,
            clock,
            operator_deadline,
            events,
            warnings,
            key,
            background,
            follow,
        } = settings;
        Self(Arc::new(OverridesInner {
            is_followed: follow && breaker.is_some(),
            following: JobSlot::default(),
            wanted: Arc::default(),
            ended: Notify::new(),
            background,
            store,
            breaker,
            clock,
            operator_deadline,
            events,
            warnings,
            left_out: RepeatedWarning::new("overrides-left-out"),
            unreadable: RepeatedWarning::new("overrides-unreadable"),
            key,
            snapshot: Snapshot::default(),
            reading: Mutex::default(),
        }))
    }

    /// Starts the job that reads the overrides twice a second, unless it is running.
    #[inline]
    pub(crate) fn ensure_followed(&self) {
        if self.0.is_followed {
            let following = || Following(Arc::downgrade(&self.0));
            self.0.following.ensure_running(&self.0.background, following);
        }
    }

    /// Returns whether a check has nothing to do: no override is active, and the follower need not learn of
    /// the check. Almost always true, which is the fast path: one load.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.0.snapshot.is_calm()
    }

    /// Notes a check, so that the process continues to read. Returns whether the reading is old: then the
    /// process reads now, and a check that can wait does so with [`renewed`](Self::renewed).
    pub(crate) fn note_check(&self) -> bool {
        let is_old = self.0.snapshot.note_check();
        if is_old {
            self.ensure_followed();
            self.0.wanted.notify_one();
        }
        is_old
    }

    /// Waits until an old reading was replaced, or the attempt has failed: then the last known overrides stay in
    /// force. The follower reads, for all checks at once, so a dropped future cancels nothing.
    pub(crate) async fn renewed(&self, deadline: Deadline) {
        let is_shut_down = || self.0.breaker.as_ref().is_some_and(|breaker| breaker.is_shut_down());
        loop {
            // Registered before the word is read, so that no end is missed.
            let mut ended = std::pin::pin!(self.0.ended.notified());
            ended.as_mut().enable();
            if !self.0.snapshot.is_old() || is_shut_down() {
                return;
            }
            self.note_check();
            if timeout_at(deadline.at, ended).await.is_err() {
                return;
            }
        }
    }

    /// Returns whether any override is active.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.0.snapshot.is_any()
    }

    /// Returns the mode that a gate is switched to.
    pub(crate) fn switch(&self, gate: &str) -> Option<Switch> {
        self.0.snapshot.known().switch(gate, self.0.clock.local_us())
    }

    /// Returns the overrides of one key, all from the same reading; `info` makes the gate that decides
    /// instead when first needed.
    pub(crate) fn of_key(
        &self,
        gate: &GateInfo,
        key: &[u8],
        info: impl Fn(Quota) -> Result<GateInfo, Error>,
    ) -> KeyOverrides {
        let (known, now_us) = (self.0.snapshot.known(), self.0.clock.local_us());
        let instead = known.overriding(&gate.name, || gate.prefix.encoded(key), now_us);
        KeyOverrides {
            switch: known.switch(&gate.name, now_us),
            gate: instead.and_then(|instead| instead.gate_info(info)),
        }
    }

    /// Sets the switch of a gate; `None` removes it.
    pub(crate) async fn set_switch(
        &self,
        gate: &str,
        switch: Option<Switch>,
        lasts: Option<Duration>,
    ) -> Result<(), Error> {
        self.0.set(text::of_switch(gate), switch.map(|switch| switch.to_string()), lasts).await
    }

    /// Sets the quota of a key, given as written in the store; `None` removes it.
    pub(crate) async fn set_override(
        &self,
        gate: &str,
        key: &str,
        quota: Option<Quota>,
        lasts: Option<Duration>,
    ) -> Result<(), Error> {
        self.0.set(text::of_override(gate, key), quota.map(|quota| text::quota(&quota)), lasts).await
    }

    /// Applies the overrides in the store now, even if this process does not follow them.
    #[cfg(feature = "admin")]
    pub(crate) async fn read(&self) -> Result<(), Error> {
        self.0.read(self.0.operator_deadline).await
    }

    /// Returns the overrides in the store: overrides by gate and key, then switches by gate.
    pub(crate) async fn all(&self) -> Result<Vec<Override>, Error> {
        let mut standing =
            self.0.store.overrides(&self.0.key, "", Deadline::new(self.0.operator_deadline)).await?;
        standing.fields.sort();
        let entries = standing.fields.iter().filter_map(|(field, text)| OverrideEntry::parse(field, text));
        Ok(entries.filter_map(|entry| entry.active(standing.now_us)).collect())
    }
}

impl OverridesInner {
    /// Writes an override, or removes it if `text` is `None`. Succeeds once the store has done so.
    async fn set(&self, field: String, text: Option<String>, lasts: Option<Duration>) -> Result<(), Error> {
        let lasts_us = lasts.map(|lasts| u64::try_from(lasts.as_micros()).unwrap_or(u64::MAX).max(1));
        let entry = OverrideText { field, text, lasts_us };
        self.store.set_override(&self.key, &entry, Deadline::new(self.operator_deadline)).await?;
        // Lets this process decide by it at once. If the read fails, the follower reads it later.
        let _ = self.read(self.operator_deadline).await;
        Ok(())
    }

    /// Reads the overrides and applies changes.
    async fn read(&self, deadline: Duration) -> Result<(), Error> {
        let mut reported = self.reading.lock().await;
        let known = self.snapshot.known();
        let standing = self.store.overrides(&self.key, known.changed(), Deadline::new(deadline)).await?;
        if standing.left_out > 0 {
            self.warnings.warn(&self.left_out, || {
                format!(
                    "{} overrides in {} are not followed: a process reads at most {MAX_OVERRIDES} overrides of \
                     at most {MAX_OVERRIDE_BYTES} bytes: remove the fields that tidegate did not write",
                    standing.left_out, self.key
                )
            });
        }
        let now_us = self.clock.local_us();
        let new =
            (standing.changed != known.changed()).then(|| Arc::new(KnownOverrides::of(&standing, now_us)));
        let counts = new.as_ref().unwrap_or(&known).counts(now_us);
        self.snapshot.apply(new, counts != OverrideCounts::default());
        if counts != *reported {
            let OverrideCounts { switches, overrides } = counts;
            self.events.notify(&Event::OverridesChanged { switches, overrides });
        }
        *reported = counts;
        Ok(())
    }
}

/// Reads the overrides until the limiter is dropped or shut down.
struct Following(Weak<OverridesInner>);

impl Following {
    fn shared(&self) -> Option<Arc<OverridesInner>> {
        self.0.upgrade().filter(|shared| !shared.breaker.as_ref().is_some_and(|it| it.is_shut_down()))
    }

    /// Waits for the next check, or the end of the limiter. A notification may be one of an earlier check.
    async fn until_check(&self, wanted: &Notify) {
        while self.shared().is_some_and(|shared| shared.snapshot.is_unseen()) {
            wanted.notified().await;
        }
    }
}

impl Drop for OverridesInner {
    fn drop(&mut self) {
        self.wanted.notify_one();
    }
}

impl Job for Following {
    async fn run(&self) {
        let (mut pause, mut last_check) = (PAUSE, Instant::now());
        while let Some(shared) = self.shared() {
            // Also while the circuit breaker is open: a Redis that is too slow for checks can have a switch for this
            // case. A failure changes nothing: the last reading stays valid.
            pause = match shared.read(READING).await {
                // A shutdown closes the connection.
                Err(error) if !error.is_unanswered() && !error.is_shut_down() => {
                    shared.warnings.warn(&shared.unreadable, || {
                        let error = error.at(shared.store.address().unwrap_or_default());
                        format!("operators' switches and overrides are not followed: {error}")
                    });
                    (pause * 2).min(MAX_PAUSE)
                }
                _ => PAUSE,
            };
            shared.snapshot.renew();
            shared.ended.notify_waiters();
            if shared.snapshot.take_check() {
                last_check = Instant::now();
            }
            let is_idle = last_check.elapsed() >= IDLE && shared.snapshot.grow_old();
            let wanted = shared.wanted.clone();
            drop(shared);
            if is_idle {
                self.until_check(&wanted).await;
                continue;
            }
            tokio::time::sleep(pause.mul_f64(1.0 - fastrand::f64() / 10.0)).await;
        }
    }

    fn is_needed(&self) -> bool {
        false
    }
}

impl std::fmt::Debug for Overrides {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Overrides").field("is_any", &self.is_any()).finish_non_exhaustive()
    }
}
