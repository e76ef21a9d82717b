//! Finds the most denied keys: opt in, sampled, in bounded memory.

mod space_saving;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::space_saving::DeniedKey;
use self::space_saving::SpaceSaving;
use crate::observe::observer::Observer;
use crate::runtime::clock::Clock;
use crate::runtime::sync::{Mutex, lock};

/// Finds the keys that are denied most. It is an observer; keep a clone to read the result.
///
/// Keys appear as written in Redis. If they are stored as an HMAC there
/// ([`KeyMode::Hmac`](crate::KeyMode::Hmac)), they are shown as an HMAC here. In the clear they may be
/// personal data. For this reason the observer is opt in, and no metric has a key as a label.
///
/// It samples one denial in a configured number; the others cost a few ns. It keeps a fixed number of keys.
/// With n keys kept, a key with more than one n-th of all denials is always among them. Counts are halved
/// every [`period`](Self::period), so that old denials fade. With the feature `tracing`, the first ten keys
/// are then written as events.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use std::time::Duration;
/// use tidegate::{Limiter, MostDenied, Quota};
///
/// let most_denied = MostDenied::new(100).one_in(1);
/// let limiter = Limiter::builder().in_memory().observer(most_denied.clone()).build()?;
/// let login = limiter.gate("login", Quota::fixed_window(1, Duration::from_secs(60)));
/// for _ in 0..4 {
///     let _ = login.check("ada").await?;
/// }
/// assert_eq!(most_denied.top(10)[0].to_string(), "3 tidegate:2:login:fixed_window/60s:ada");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MostDenied {
    one_in: u32,
    period: Duration,
    state: Arc<Mutex<TopKeys>>,
}

struct TopKeys {
    keys: SpaceSaving,
    /// When counts were last halved, by this process's clock.
    halved_us: u64,
}

/// More keys would make each sample slow.
const MAX_KEYS: usize = 1_000;
/// The number of keys written as events.
#[cfg(feature = "tracing")]
const MAX_EVENTS: usize = 10;

impl MostDenied {
    /// Returns an observer that keeps `keys` keys, 1 to 1,000. It samples one denial in 64, and halves its
    /// counts once a minute.
    #[must_use]
    pub fn new(keys: usize) -> Self {
        let keys = SpaceSaving::new(keys.clamp(1, MAX_KEYS));
        let state = TopKeys { keys, halved_us: Clock::System.local_us() };
        Self { one_in: 64, period: Duration::from_secs(60), state: Arc::new(Mutex::new(state)) }
    }

    /// Sets the sampling rate to one denial in `denials`. 1 samples every denial.
    #[must_use]
    pub fn one_in(mut self, denials: u32) -> Self {
        self.one_in = denials.max(1);
        self
    }

    /// Sets how often counts are halved and, with the feature `tracing`, written.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Returns at most `max_keys` keys, most denied first.
    #[must_use]
    pub fn top(&self, max_keys: usize) -> Vec<DeniedKey> {
        lock(&self.state).keys.top(max_keys)
    }

    fn sample(&self, key: &dyn fmt::Display) {
        // Does not wait for the lock: a denial that is skipped here only lowers the sampling rate.
        let Ok(mut state) = self.state.try_lock() else { return };
        let now_us = Clock::System.local_us();
        if u128::from(now_us.saturating_sub(state.halved_us)) >= self.period.as_micros() {
            state.halved_us = now_us;
            #[cfg(feature = "tracing")]
            for DeniedKey { key, denials, error } in state.keys.top(MAX_EVENTS) {
                tracing::info!(target: "tidegate", key, denials, error, "denied most");
            }
            state.keys.halve();
        }
        state.keys.add(key.to_string(), self.one_in.into());
    }
}

impl Observer for MostDenied {
    fn denied(&self, _: &str, key: &dyn fmt::Display) {
        if fastrand::u32(..self.one_in) == 0 {
            self.sample(key);
        }
    }
}

/// Keys may be personal data.
impl fmt::Debug for MostDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MostDenied")
            .field("one_in", &self.one_in)
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}
