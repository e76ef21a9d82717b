//! Clocks for the in-memory store and for leases and caches of this process: the machine's clock, or one that
//! a test moves.
//!
//! With Redis the server's clock decides.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::runtime::sync::{Mutex, lock};

/// A clock that stays fixed until a test moves it.
///
/// Waiting ([`until_allowed`](crate::Gate::until_allowed)) on a limiter with this clock ends when the clock
/// is moved far enough, so tests need not sleep. The background jobs of such a limiter run on the caller's
/// runtime, so that a test on a current-thread runtime is deterministic.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use std::time::Duration;
/// use tidegate::{Limiter, ManualClock, Quota, Rate};
///
/// let clock = ManualClock::new();
/// let gate = Limiter::in_memory_with(clock.clone()).gate("login", Quota::token_bucket(1, Rate::per_second(1)));
///
/// assert!(gate.check("user:42").await?.is_allowed());
/// assert!(!gate.check("user:42").await?.is_allowed());
/// clock.advance(Duration::from_secs(1));
/// assert!(gate.check("user:42").await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    now_us: Mutex<u64>,
    moved: Notify,
}

impl ManualClock {
    /// Returns a clock at 2020-01-01 00:00:00 UTC, which begins a minute, an hour and a day of every
    /// clock-aligned window.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Duration::from_secs(1_577_836_800))
    }

    /// Returns a clock at `since_1970`, to the microsecond, and at most the year 2255: later times would not
    /// be exact.
    #[must_use]
    pub fn at(since_1970: Duration) -> Self {
        let now_us = Mutex::new(micros(since_1970));
        Self(Arc::new(Manual { now_us, moved: Notify::new() }))
    }

    /// Moves the clock forward and wakes waiting tasks.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().saturating_add(by));
    }

    /// Sets the clock to `since_1970`, also backwards.
    pub fn set(&self, since_1970: Duration) {
        *lock(&self.0.now_us) = micros(since_1970);
        self.0.moved.notify_waiters();
    }

    /// Returns the clock's time since 1970.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.now_us())
    }

    fn now_us(&self) -> u64 {
        *lock(&self.0.now_us)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Measures time on the clock of a limiter, from [`Limiter::stopwatch`](crate::Limiter::stopwatch). Never runs
/// backwards, except if a test moves the clock.
#[derive(Debug)]
pub struct Stopwatch(Start);

#[derive(Debug)]
enum Start {
    System(Instant),
    Manual(ManualClock, Duration),
}

impl Stopwatch {
    /// Returns the time since it was made.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Start::System(start) => start.elapsed(),
            Start::Manual(clock, start) => clock.now().saturating_sub(*start),
        }
    }
}

/// The clock of a store.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    System,
    Manual(ManualClock),
}

impl Clock {
    /// Returns microseconds since 1970.
    #[inline]
    pub(crate) fn now_us(&self) -> u64 {
        match self {
            Self::System => system_now_us(),
            Self::Manual(clock) => clock.now_us(),
        }
    }

    /// Returns the local time in microseconds, for leases and caches of this process: since the first call,
    /// and always forward, except when a test moves the clock.
    ///
    /// The first call may take some time, in which it compares the processor's counter with the system's
    /// clock: see [`warm_up`](Self::warm_up).
    #[inline]
    pub(crate) fn local_us(&self) -> u64 {
        static START: LazyLock<quanta::Instant> = LazyLock::new(quanta::Instant::now);
        match self {
            Self::System => {
                let since = START.elapsed();
                since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())
            }
            Self::Manual(clock) => clock.now_us(),
        }
    }

    /// Makes the first call of [`local_us`](Self::local_us) where no decision waits for it. It took 0.6 ms
    /// when measured, and takes at most 0.2 s.
    pub(crate) fn warm_up(&self) {
        self.local_us();
    }

    pub(crate) fn stopwatch(&self) -> Stopwatch {
        Stopwatch(match self {
            Self::System => Start::System(Instant::now()),
            Self::Manual(clock) => Start::Manual(clock.clone(), clock.now()),
        })
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        match self {
            Self::System => tokio::time::sleep(duration).await,
            Self::Manual(clock) => {
                let until = clock.now().saturating_add(duration);
                loop {
                    // Registered before the clock is read, so that no move is missed.
                    let moved = clock.0.moved.notified();
                    if clock.now() >= until {
                        return;
                    }
                    moved.await;
                }
            }
        }
    }
}

fn micros(since_1970: Duration) -> u64 {
    since_1970.as_micros().min(1 << 53) as u64
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads this machine's clock")]
#[inline]
fn system_now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
