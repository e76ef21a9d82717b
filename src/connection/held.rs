//! The connection that is held, or the attempt at one that all who need it wait
//! for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::from::{From, PATIENCE};
use super::link::Link;
use super::pause::Pause;
use super::{CONNECTION, Deadline};
use crate::error::Error;

/// At most one attempt, and a pause between two.
#[derive(Default)]
pub(super) struct Held(Mutex<State>);

#[derive(Default)]
struct State {
    attempt: Option<Arc<Attempt>>,
    pause: Pause,
    /// Why there is no connection, for whoever asks during a pause.
    why: Option<Error>,
    /// Whether the server could not be reached when that was last tried, or fell silent.
    is_in_doubt: bool,
    is_closed: bool,
}

/// A connection in the making, or made.
pub(super) struct Attempt {
    /// `None` as long as it goes on.
    result: watch::Receiver<Option<Result<Link, Error>>>,
    /// How many have come.
    answers: AtomicU64,
}

impl Held {
    /// The attempt that is held, or a new one where that has failed. It is a task
    /// of its own: not begun anew by each caller whose deadline is shorter than
    /// it takes, and only one however many wait.
    ///
    /// During a pause the error of what failed before, at once: what a caller
    /// gets without Redis does not become better by waiting for it.
    pub(super) fn attempt(&self, from: &From) -> Result<Arc<Attempt>, Error> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.is_closed {
            return Err(Error::shut_down());
        }
        if let Some(attempt) = &state.attempt {
            match &*attempt.result.borrow() {
                Some(Err(error)) => (state.why, state.is_in_doubt) = (Some(error.clone()), true),
                Some(Ok(_)) => {
                    state.is_in_doubt = false;
                    return Ok(attempt.clone());
                }
                None if attempt.result.has_changed().is_ok() => return Ok(attempt.clone()),
                // Its task has ended with its runtime, and says nothing of the server.
                None => state.pause.reset(),
            }
        }
        match &state.why {
            Some(why) if state.pause.is_on() => Err(why.clone()),
            _ => {
                state.pause.begin();
                let attempt = Arc::new(Attempt::begin(from.clone()));
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
    fn begin(from: From) -> Self {
        let (sender, result) = watch::channel(None);
        tokio::spawn(async move {
            // Over all of it: a server can also fall silent after the handshake.
            let connected = tokio::time::timeout(PATIENCE, from.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err(Error::unavailable(from.silence())));
            // Nobody may be left who wants to know.
            let _ = sender.send(Some(connected));
        });
        Self { result, answers: AtomicU64::new(0) }
    }

    pub(super) async fn connected(&self, deadline: Deadline) -> Result<Link, Error> {
        if let Some(result) = &*self.result.borrow() {
            return result.clone();
        }
        let mut result = self.result.clone();
        match tokio::time::timeout_at(deadline.at, result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone().unwrap_or_else(|| Err(Error::runtime_ended())),
            Ok(Err(_)) => Err(Error::runtime_ended()),
            Err(_) => Err(deadline.passed(CONNECTION)),
        }
    }

    /// How many answers have come.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(super) fn count_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}
