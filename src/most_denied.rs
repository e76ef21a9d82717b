//! Which keys are denied most: opt in, sampled, in little memory.

mod space_saving;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::space_saving::SpaceSaving;
use crate::clock::Clock;
use crate::observer::Observer;

/// Finds the keys that are denied most: an observer, of which a clone is kept to ask.
///
/// Keys are as they stand in Redis: kept as an HMAC there
/// ([`KeyMode::Hmac`](crate::KeyMode::Hmac)), they are nothing else here. In the clear they may be personal data.
/// That is why this is opt in, and why no metric has a key for a label.
///
/// Of so many denials one is looked at, chosen by chance; the others cost a few ns. So many keys are
/// remembered as it is made with, however many are denied: a key with more than that part of all denials
/// is always among them. Every [`period`](Self::period) the counts are halved, so that what is past fades; and with the feature
/// `tracing` the first ten are written as events.
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
    state: Arc<Mutex<State>>,
}

struct State {
    keys: SpaceSaving,
    /// By this process's clock.
    halved_us: u64,
}

/// A key that is denied often, from [`MostDenied::top`]. Displayed as its denials and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedKey {
    /// As it stands in Redis, with the gate's name.
    pub key: String,
    /// About how often it was denied lately.
    pub denials: u64,
    /// By how much that may be too many: of what others were counted before it took their place.
    pub error: u64,
}

/// More would make each look at a denial slow.
const MOST_KEYS: usize = 1_000;
/// Written as events.
#[cfg(feature = "tracing")]
const WRITTEN: usize = 10;

impl MostDenied {
    /// Remembers so many keys, 1 to 1,000; looks at one denial in 64; halves its counts once a minute.
    #[must_use]
    pub fn new(keys: usize) -> Self {
        let keys = SpaceSaving::new(keys.clamp(1, MOST_KEYS));
        let state = State { keys, halved_us: Clock::System.local_us() };
        Self { one_in: 64, period: Duration::from_secs(60), state: Arc::new(Mutex::new(state)) }
    }

    /// Looks at one denial in so many. 1 looks at each.
    #[must_use]
    pub fn one_in(mut self, denials: u32) -> Self {
        self.one_in = denials.max(1);
        self
    }

    /// How often counts are halved, and with the feature `tracing` written.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// The keys that are denied most, at most so many, the first the most.
    #[must_use]
    pub fn top(&self, most: usize) -> Vec<DeniedKey> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).keys.top(most)
    }

    fn look_at(&self, key: &dyn fmt::Display) {
        // Who is denied waits for nobody: what is missed is one more that was not chosen.
        let Ok(mut state) = self.state.try_lock() else { return };
        let now_us = Clock::System.local_us();
        if u128::from(now_us.saturating_sub(state.halved_us)) >= self.period.as_micros() {
            state.halved_us = now_us;
            #[cfg(feature = "tracing")]
            for DeniedKey { key, denials, error } in state.keys.top(WRITTEN) {
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
            self.look_at(key);
        }
    }
}

impl fmt::Display for DeniedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.denials, self.key)
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
