//! The connection, or the attempt to connect that all callers wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::from::{From, PATIENCE};
use super::link::Link;
use super::pause::Pause;
use super::{CONNECTION, Deadline};
use crate::background::Background;
use crate::error::Error;

/// An attempt ends after [`PATIENCE`] by itself, unless its runtime does not run it because its
/// workers are blocked. From then on it counts as none.
const ABANDONED_AFTER: Duration = PATIENCE.saturating_add(Duration::from_millis(250));

/// At most one attempt, and a pause between two.
#[derive(Default)]
pub(super) struct Held(Mutex<State>);

#[derive(Default)]
struct State {
    attempt: Option<Arc<Attempt>>,
    pause: Pause,
    /// Why there is no connection: the error of calls during a pause.
    why: Option<Error>,
    /// Whether the server could not be reached when that was last tried, or fell silent.
    is_in_doubt: bool,
    is_closed: bool,
}

/// A connection in the making, or made.
pub(super) struct Attempt {
    started: Instant,
    /// `None` while it is in progress.
    result: watch::Receiver<Option<Result<Link, Error>>>,
    /// How many answers have arrived.
    answers: AtomicU64,
}

impl Held {
    /// The current attempt, or a new one if that has failed. It is a task of its own, so that
    /// callers with a deadline shorter than it takes do not start over, and there is only one
    /// however many callers wait.
    ///
    /// During a pause, returns the error of the last attempt at once: waiting would not improve
    /// what a caller gets without Redis.
    pub(super) fn attempt(&self, from: &From, background: &Background) -> Result<Arc<Attempt>, Error> {
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
                // Its runtime has ended or does not run it, which says nothing about the server.
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
                let attempt = Arc::new(Attempt::begin(from.clone(), background, was_abandoned));
                state.attempt = Some(attempt.clone());
                Ok(attempt)
            }
        }
    }

    /// The connection was lost, or could not be used: the next call makes a new
    /// one. After one that was *of use* it does so at once.
    pub(super) fn give_up(&self, attempt: &Arc<Attempt>, why: Error, was_of_use: bool) {
        let mut state = self.lock();
        if !state.attempt.as_ref().is_some_and(|held| Arc::ptr_eq(held, attempt)) {
            return;
        }
        state.attempt = None;
        // What has been of use and says nothing will hardly say more to a new connection.
        state.is_in_doubt = !was_of_use || why.is_timeout();
        state.why = Some(why);
        if was_of_use {
            state.pause.reset();
        }
    }

    /// For good.
    pub(super) fn close(&self) {
        *self.lock() = State { is_closed: true, ..State::default() };
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// After an attempt that its runtime did not run, the next runs on the background thread.
    fn begin(from: From, background: &Background, was_abandoned: bool) -> Self {
        let (sender, result) = watch::channel(None);
        let started = Instant::now();
        let connecting = async move {
            // Covers all steps: a server can also fall silent after the handshake.
            let connected = tokio::time::timeout(PATIENCE, from.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err(Error::unavailable(from.silence())));
            // Fails if the limiter was dropped.
            let _ = sender.send(Some(connected));
        };
        match was_abandoned {
            true => drop(background.spawn(connecting)),
            false => background.spawn_connection(connecting),
        }
        Self { started, result, answers: AtomicU64::new(0) }
    }

    fn is_running(&self) -> bool {
        self.result.has_changed().is_ok() && self.started.elapsed() < ABANDONED_AFTER
    }

    /// Waits for the result. `None` if its runtime does not run it: the caller starts another.
    pub(super) async fn connected(&self, deadline: Deadline) -> Option<Result<Link, Error>> {
        if let Some(result) = &*self.result.borrow() {
            return Some(result.clone());
        }
        let mut result = self.result.clone();
        let abandoned_at = self.started + ABANDONED_AFTER;
        let ends = deadline.at.min(abandoned_at);
        match tokio::time::timeout_at(ends, result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => Some(result.clone().unwrap_or_else(|| Err(Error::runtime_ended()))),
            Ok(Err(_)) => Some(Err(Error::runtime_ended())),
            Err(_) if deadline.at <= abandoned_at => Some(Err(deadline.passed(CONNECTION))),
            Err(_) => None,
        }
    }

    /// How many answers have arrived.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(super) fn count_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}
