//! The connection, or the attempt to connect that all callers wait for.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::connect::CONNECT_TIMEOUT;
use super::deadline::{CONNECTION, Deadline};
use super::link::Link;
use super::source::ConnectionSource;
use crate::error::Error;
use crate::runtime::background::Background;

/// An attempt ends after [`CONNECT_TIMEOUT`], unless its runtime does not run it because its workers are
/// blocked. From then on it is ignored.
const ABANDONED_AFTER: Duration = CONNECT_TIMEOUT.saturating_add(Duration::from_millis(250));

/// The connection slot: at most one attempt, and a pause between two.
pub(super) struct ConnectionSlot {
    state: Mutex<SlotState>,
    /// The number of connections made.
    connections: Arc<AtomicU64>,
}

#[derive(Default)]
struct SlotState {
    attempt: Option<Arc<Attempt>>,
    pause: Backoff,
    /// The reason why there is no connection: the error of calls during a pause.
    why: Option<Error>,
    /// Whether the last attempt could not reach the server, or the server stopped answering.
    is_in_doubt: bool,
    is_closed: bool,
}

/// A connection, or an attempt in progress.
pub(super) struct Attempt {
    started: Instant,
    /// `None` while it is in progress.
    result: watch::Receiver<Option<Result<Link, Error>>>,
    /// The number of answers that have arrived.
    answers: AtomicU64,
    /// The server's time when the attempt started, in µs since 1970; 0 if it is not known. Another connection may
    /// lead to a server with another clock.
    server_us: AtomicU64,
    /// The error of all calls that were in flight when the connection ended.
    lost: OnceLock<Error>,
}

impl ConnectionSlot {
    pub(super) fn new(connections: Arc<AtomicU64>) -> Self {
        Self { state: Mutex::default(), connections }
    }

    /// Returns the current attempt, or starts a new one if that has failed. The attempt is a task of its own,
    /// so that callers with a shorter deadline do not restart it, and all waiting callers share one attempt.
    ///
    /// During a pause, returns the error of the last attempt at once: waiting would not improve the result
    /// for a caller without Redis.
    pub(super) fn attempt(
        &self,
        source: &ConnectionSource,
        background: &Background,
    ) -> Result<Arc<Attempt>, Error> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.is_closed {
            return Err(Error::shut_down());
        }
        let mut was_abandoned = false;
        if let Some(attempt) = &state.attempt {
            match &*attempt.result.borrow() {
                Some(Err(error)) => (state.why, state.is_in_doubt) = (Some(error.clone()), true),
                Some(Ok(_)) => {
                    state.is_in_doubt = false;
                    return Ok(attempt.clone());
                }
                None if attempt.is_running() => return Ok(attempt.clone()),
                // Its runtime has ended or does not run it, which does not mean that the server failed.
                None => {
                    state.pause.reset();
                    was_abandoned = true;
                }
            }
        }
        match &state.why {
            Some(why) if state.pause.is_on() => Err(why.clone()),
            _ => {
                state.pause.begin();
                let attempt =
                    Arc::new(Attempt::begin(source.clone(), background, was_abandoned, &self.connections));
                state.attempt = Some(attempt.clone());
                Ok(attempt)
            }
        }
    }

    /// Drops a connection that has ended. Unlike [`give_up`](Self::give_up), the next call also reconnects without a
    /// pause if this is the first one in a row without an answer: the server had accepted it.
    pub(super) fn end(&self, attempt: &Arc<Attempt>, why: Error, was_working: bool) {
        let mut state = self.lock();
        if state.is_current(attempt) {
            state.give_up(why, was_working);
            state.pause.end_first();
        }
    }

    /// Drops an unusable connection: the next call reconnects, without a pause if answers had arrived on it.
    pub(super) fn give_up(&self, attempt: &Arc<Attempt>, why: Error, was_working: bool) {
        let mut state = self.lock();
        if state.is_current(attempt) {
            state.give_up(why, was_working);
        }
    }

    /// Closes the slot permanently.
    pub(super) fn close(&self) {
        *self.lock() = SlotState { is_closed: true, ..SlotState::default() };
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.lock().attempt.as_ref().is_some_and(|attempt| matches!(&*attempt.result.borrow(), Some(Ok(_))))
    }

    #[cfg(feature = "cluster")]
    pub(super) fn is_in_doubt(&self) -> bool {
        let state = self.lock();
        match state.attempt.as_ref().and_then(|attempt| attempt.result.borrow().as_ref().map(Result::is_err))
        {
            Some(has_failed) => has_failed,
            None => state.is_in_doubt,
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotState {
    fn is_current(&self, attempt: &Arc<Attempt>) -> bool {
        self.attempt.as_ref().is_some_and(|current| Arc::ptr_eq(current, attempt))
    }

    fn give_up(&mut self, why: Error, was_working: bool) {
        self.attempt = None;
        // If a working connection timed out, a new connection will probably not get an answer either.
        self.is_in_doubt = !was_working || why.is_timeout();
        self.why = Some(why);
        if was_working {
            self.pause.reset();
        }
    }
}

impl Attempt {
    /// Starts an attempt. After an attempt that its runtime did not run, uses the background thread.
    fn begin(
        source: ConnectionSource,
        background: &Background,
        was_abandoned: bool,
        connections: &Arc<AtomicU64>,
    ) -> Self {
        let (sender, result) = watch::channel(None);
        let connections = connections.clone();
        let started = Instant::now();
        let connecting = async move {
            // Covers all steps: a server can also fall silent after the handshake.
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, source.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err(Error::unavailable(source.silence())));
            connections.fetch_add(u64::from(connected.is_ok()), Ordering::Relaxed);
            // Fails if the limiter was dropped.
            let _ = sender.send(Some(connected));
        };
        match was_abandoned {
            true => drop(background.spawn(connecting)),
            false => background.spawn_connection(connecting),
        }
        let (answers, server_us) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { started, result, answers, server_us, lost: OnceLock::new() }
    }

    fn is_running(&self) -> bool {
        self.result.has_changed().is_ok() && self.started.elapsed() < ABANDONED_AFTER
    }

    /// Waits for the result. Returns `None` if its runtime does not run the attempt: the caller then starts
    /// another.
    pub(super) async fn connected(&self, deadline: Deadline) -> Option<Result<Link, Error>> {
        if let Some(result) = &*self.result.borrow() {
            return Some(result.clone());
        }
        let mut result = self.result.clone();
        let abandoned_at = self.started + ABANDONED_AFTER;
        let ends = deadline.at.min(abandoned_at);
        match tokio::time::timeout_at(ends, result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone(),
            _ if deadline.at <= Instant::now() => Some(Err(deadline.passed(CONNECTION))),
            // Its runtime has ended, or does not run it.
            _ => None,
        }
    }

    /// Returns the number of answers that have arrived.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Returns the error of a call that was lost with the connection, which all these calls share.
    pub(super) fn lost_call(&self, words: String) -> Error {
        self.lost.get_or_init(|| Error::lost_call(words)).clone()
    }

    pub(super) fn count_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the server's time in the reply to a command that was sent at `sent`. The server read its clock later, so
    /// the time derived from this is never too early, unless a clock is set or this machine is suspended.
    pub(super) fn learn_server_time(&self, server_us: Option<u64>, sent: Instant) {
        let since_started = sent.saturating_duration_since(self.started).as_micros() as u64;
        if let Some(server_us) = server_us {
            self.server_us.store(server_us.saturating_sub(since_started), Ordering::Relaxed);
        }
    }

    /// Returns the server's time at this instant, if it is known.
    pub(super) fn server_us_at(&self, at: Instant) -> Option<u64> {
        let started_us = self.server_us.load(Ordering::Relaxed);
        let since_started = at.saturating_duration_since(self.started).as_micros() as u64;
        (started_us > 0).then_some(started_us + since_started)
    }
}

// The exponential backoff between connection attempts.

/// The time from the start of the first attempt to the start of the second. It doubles with each further
/// attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Short compared to the time in which an operator notices that Redis is available again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Grows with each attempt until one succeeds. Jitter spreads the attempts of a fleet after a shared failure,
/// so that the instances do not all reconnect at the same moment.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
    ends: Option<Instant>,
}

impl Backoff {
    pub(super) fn is_on(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() < ends)
    }

    /// Records that an attempt begins now.
    pub(crate) fn begin(&mut self) {
        let now = Instant::now();
        // If a connection has lasted since, its end is unrelated to the earlier failures: restarts the
        // backoff.
        if self.ends.is_some_and(|ends| now > ends + LONGEST_PAUSE) {
            self.attempts = 0;
        }
        let length = FIRST_PAUSE.saturating_mul(1 << self.attempts.min(10)).min(LONGEST_PAUSE);
        self.ends = Some(now + jittered(length));
        self.attempts += 1;
    }

    /// Ends the pause after the first attempt: a second one can begin at once.
    pub(super) fn end_first(&mut self) {
        if self.attempts == 1 {
            self.ends = None;
        }
    }

    /// Waits for the end of the pause.
    #[cfg(feature = "regions")]
    pub(crate) async fn wait(&self) {
        if let Some(ends) = self.ends {
            tokio::time::sleep_until(ends).await;
        }
    }

    /// Records that the attempt succeeded.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Returns a random duration between half of `length` and all of it.
fn jittered(length: Duration) -> Duration {
    // Each `RandomState` has its own keys, which is random enough and needs no further dependency.
    let random = RandomState::new().hash_one(()) >> 32;
    let half = length / 2;
    half + half.mul_f64(random as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;
    use tokio::runtime::Builder;

    use super::*;
    use crate::connection::connect::Login;
    use crate::connection::source::Expected;

    #[tokio::test(start_paused = true)]
    async fn backoff_doubles_up_to_a_second_and_restarts_after_a_success() {
        let mut backoff = Backoff::default();
        assert!(!backoff.is_on());
        for expected_ms in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
            backoff.begin();
            let start = Instant::now();
            while backoff.is_on() {
                tokio::time::advance(Duration::from_micros(100)).await;
            }
            let lasted = start.elapsed().as_micros() as u64;
            assert!(
                (expected_ms * 500..=expected_ms * 1000 + 100).contains(&lasted),
                "{lasted} us of {expected_ms} ms"
            );
        }
        backoff.reset();
        assert!(!backoff.is_on());
        backoff.begin();
        tokio::time::advance(FIRST_PAUSE).await;
        assert!(!backoff.is_on());
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_pause_can_be_ended() {
        let mut backoff = Backoff::default();
        for is_on in [false, true, true] {
            backoff.begin();
            backoff.end_first();
            assert_eq!(backoff.is_on(), is_on);
        }
    }

    #[test]
    fn attempt_whose_runtime_has_ended_is_replaced_for_its_callers() {
        // Accepts connections, and is silent.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", silent.local_addr().unwrap());
        let source = ConnectionSource::Server(
            Box::new(url.into_connection_info().unwrap()),
            Login::OfUrl,
            Expected::Any,
        );
        let (slot, background) = (ConnectionSlot::new(Arc::default()), Background::default());
        let deadline = Deadline { at: Instant::now() + 2 * ABANDONED_AFTER, after: 2 * ABANDONED_AFTER };
        let (first, second) = (Builder::new_multi_thread(), Builder::new_current_thread());
        let [first, second] = [first, second].map(|mut builder| builder.enable_all().build().unwrap());
        let attempt = first.block_on(async { slot.attempt(&source, &background) }).unwrap();
        drop(first);
        assert!(attempt.started.elapsed() < ABANDONED_AFTER);
        second.block_on(async {
            assert!(attempt.connected(deadline).await.is_none());
            let next = slot.attempt(&source, &background).unwrap();
            assert!(!Arc::ptr_eq(&attempt, &next) && next.is_running());
        });
    }

    #[test]
    fn pauses_are_jittered() {
        let lengths: std::collections::HashSet<_> = (0..100).map(|_| jittered(LONGEST_PAUSE)).collect();
        assert!(lengths.len() > 90, "{}", lengths.len());
    }
}
