//! The limiter: one store, and the settings that its gates share.

pub(crate) mod acquire;
pub(crate) mod builder;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod gate;
#[cfg(feature = "regions")]
mod regions;
#[cfg(feature = "serde")]
pub(crate) mod settings;
pub(crate) mod take_up_to;

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::limiter::check::Check;
use crate::limiter::control::Control;
use crate::limiter::gate::Gate;
use crate::observe::health::Health;
use crate::observe::observer::Event;
use crate::observe::warning::RepeatedWarning;
use crate::pipeline::request::Request;
use crate::pipeline::{Pipeline, READY};
use crate::quota::Quota;
use crate::runtime::clock::Stopwatch;

/// Rate limits over one store. Cheap to clone; clones share everything.
///
/// # Runtimes
///
/// The connection is made when first needed and shared by all callers. It lives on a multi-thread tokio
/// runtime of the callers, where a round trip costs no switch of threads. If they have none, it lives on a
/// background thread of the limiter. When a multi-thread runtime ends or all its workers are blocked, the
/// connection counts as lost: after the [deadline](crate::Builder::deadline) if it was in use, after 1.25 s if it
/// was being made. The next call reconnects. Checks that waited for it get the failure policy.
///
/// Every call over Redis must be awaited on a tokio runtime whose I/O and timers are enabled, and panics elsewhere. An
/// [in-memory](Self::in_memory) limiter decides checks anywhere.
///
/// # Order
///
/// Concurrent checks have no order among each other: a check that was sent directly, or enqueued in another queue, can
/// overtake an earlier one. The first concurrent callers of a new limiter in particular are answered in any order, since
/// they share one attempt to connect. A check that begins after the result of another is decided after it. Callers of
/// one process that
/// [wait for a permit](crate::Acquire::max_wait) of one key are admitted in order of arrival, and the checks of
/// [`check_each`](Self::check_each) and [`Gate::check_many`] are decided in their order, except those of gates that
/// [charge units used](Gate::charge_used).
///
/// # Background work
///
/// The background thread starts with the first check and ends with the limiter. It probes an unavailable
/// Redis, follows operators' overrides, sends heartbeats, keeps [leases](crate::Gate::leased), and
/// reconciles units admitted during an outage. So a process may use several runtimes, one for each call, or
/// one that is polled only inside `block_on`: at most 2 s after Redis is back or an operator's change, all
/// decisions follow it. A multi-thread runtime that lives as long as the process is the fastest choice. An
/// [observer](crate::Builder::observer) that blocks holds up the background thread.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(crate) pipeline: Arc<Pipeline>,
}

/// # Using a limiter
impl Limiter {
    /// Returns a gate: a named quota, which a service keeps and calls. Gates with the same name and algorithm
    /// share their counts in all processes of the namespace, even if their limits differ. Of two that this method
    /// returned, that is reported as the warning `gate-redefined`, once for each name.
    ///
    /// Does not fail. If the name does not match `[a-z0-9_.-]{1,64}`, every check of the gate returns an
    /// error. [`try_gate`](Self::try_gate) returns that error here.
    #[must_use]
    pub fn gate(&self, name: &str, quota: Quota) -> Gate {
        let gate = Gate::new(&self.pipeline, name, quota);
        if let Ok(info) = gate.info() {
            self.pipeline.defined_gates.add(info, &self.pipeline.warnings);
        }
        gate
    }

    /// Returns a [`gate`](Self::gate) whose name or quota is known only at run time, such as that of a client's plan. So
    /// other gates can have its name and another quota.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the name is not `[a-z0-9_.-]{1,64}`.
    pub fn try_gate(&self, name: &str, quota: Quota) -> Result<Gate, Error> {
        let gate = Gate::new(&self.pipeline, name, quota);
        gate.info().map(|_| gate.clone())
    }

    /// Decides several checks in one atomic step: all are admitted and charged, or none is. Two checks of the
    /// same key and gate count as one check with the sum of their costs. A gate in shadow mode denies nothing:
    /// it is checked on its own at the same time, and charged even if another gate denies.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory();
    /// let user = limiter.gate("posts.user", Quota::token_bucket(1, Rate::per_second(1)));
    /// let all = limiter.gate("posts.all", Quota::token_bucket(10_000, Rate::per_second(10_000)));
    ///
    /// let decision = limiter.check_all([user.key("user:42"), all.key("")]).await?;
    /// assert!(decision.is_allowed());
    /// let decision = limiter.check_all([user.key("user:42"), all.key("")]).await?;
    /// assert_eq!((decision.binding_index(), decision.binding().gate()), (0, "posts.user"));
    /// println!("{decision}"); // denied by check 0 (gate "posts.user", key "…" (7 bytes)), retry after …
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Gate::check`]; [`Error::is_config`] if there is no check or more than 128, if a gate belongs to
    /// another limiter, if two gates of one name have different quotas, or if keys are in different slots of
    /// a Redis Cluster ([`Check::colocate_with`]).
    pub async fn check_all<C: Borrow<Check>>(
        &self,
        checks: impl IntoIterator<Item = C>,
    ) -> Result<AllDecision, Error> {
        let checks: SmallVec<[C; 2]> = checks.into_iter().collect();
        self.pipeline.check_all(self.requests(&checks)?).await
    }

    /// Returns the decision that [`check_all`](Self::check_all) would make, without charging.
    ///
    /// # Errors
    ///
    /// As [`check_all`](Self::check_all).
    pub async fn peek_all<C: Borrow<Check>>(
        &self,
        checks: impl IntoIterator<Item = C>,
    ) -> Result<AllDecision, Error> {
        let checks: Vec<C> = checks.into_iter().collect();
        self.pipeline.peek_all(self.requests(&checks)?).await
    }

    /// Decides several checks in as few round trips as possible, in order and independently of each other. Each
    /// can have its own gate, cost and options. Spends no [leased](Gate::leased) units. A check that fails does not
    /// fail the others; but if a gate belongs to another limiter, or a check's deadline is zero, no check is made,
    /// and each result is that error.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory();
    /// let mail = limiter.gate("mail", Quota::token_bucket(3, Rate::per_minute(3)));
    /// let recipients = [("ann", 2), ("bob", 1), ("ann", 2)];
    /// let decided = limiter.check_each(recipients.map(|(name, n)| mail.key(name).cost(n))).await;
    /// let admitted: Vec<bool> = decided.iter().flatten().map(|decision| decision.is_allowed()).collect();
    /// assert_eq!(admitted, [true, true, false]);
    /// # Ok(()) }
    /// ```
    pub async fn check_each<C: Borrow<Check>>(
        &self,
        checks: impl IntoIterator<Item = C>,
    ) -> Vec<Result<Decision, Error>> {
        let checks: Vec<C> = checks.into_iter().collect();
        match self.requests(&checks) {
            Ok(requests) => self.pipeline.check_each(requests).await,
            Err(error) => checks.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Returns the requests of valid checks that belong to this limiter.
    pub(crate) fn requests<'a, C: Borrow<Check>>(&self, checks: &'a [C]) -> Result<Vec<Request<'a>>, Error> {
        // Not collected, since a list of results begins with room for four.
        let mut requests = Vec::with_capacity(checks.len());
        for check in checks.iter().map(Borrow::borrow) {
            if !Arc::ptr_eq(&check.pipeline, &self.pipeline) {
                return Err(check
                    .request
                    .with_context(Error::config("this gate belongs to another limiter")));
            }
            check.validate()?;
            requests.push(check.request.borrowed());
        }
        Ok(requests)
    }

    /// Returns the longest time that a decision may take, from [`Builder::deadline`](crate::Builder::deadline).
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.pipeline.deadline()
    }

    /// Returns the operators' interface: a gate's switch and a key's quota, for all processes of the
    /// namespace.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::new(&self.pipeline)
    }

    /// Tests Redis with a peek: it responds, accepts the credentials, and permits scripts and reads. Writes
    /// nothing, so it cannot detect that Redis would reject a charge, as [`ready_to_charge`](Self::ready_to_charge)
    /// does. Retries for 5 s while Redis does not answer: a service
    /// should not fail to start because Redis is slow for a moment, or starts beside it.
    ///
    /// Call it when a service starts. A limiter connects on its first check, and the default failure policy
    /// decides if it cannot: a wrong address is then only a [warning](crate::Warning), and each process has
    /// limits of its own.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis does not answer in this time, or at once if it rejects the peek or the
    /// credentials. The text begins with the address, without credentials:
    /// `redis://10.0.0.1:6379: Redis is unavailable: Connection refused (os error 111)`.
    pub async fn ready(&self) -> Result<(), Error> {
        self.ready_within(READY).await
    }

    /// Does the same as [`ready`](Self::ready), and retries for `patience`. With the limiter's
    /// [deadline](Self::deadline), takes no longer than a check may.
    ///
    /// # Errors
    ///
    /// As [`ready`](Self::ready).
    pub async fn ready_within(&self, patience: Duration) -> Result<(), Error> {
        self.pipeline.ready(patience).await
    }

    /// Does the same as [`ready_within`](Self::ready_within) with charges, by a fixed window and by a token bucket, of keys that
    /// expire within a tenth of a second. It finds what a peek cannot: a replica, a full memory, or a Redis user who may
    /// read and not write. [`health`](Self::health) lists all permissions that are missing.
    ///
    /// # Errors
    ///
    /// As [`ready`](Self::ready).
    pub async fn ready_to_charge(&self, patience: Duration) -> Result<(), Error> {
        self.pipeline.ready_to_charge(patience).await
    }

    /// Returns the state of the circuit breaker, the number of processes, the server's version, and warnings:
    /// an eviction policy, permissions that the Redis user lacks, a region that is cut off or has other settings.
    ///
    /// Sends INFO (permission `+info`) and a script, also while the breaker is open. Waits for the [deadline of
    /// operators](crate::Builder::operator_deadline) at most.
    pub async fn health(&self) -> Health {
        self.pipeline.health().await
    }

    /// Gives leases back, reconciles units admitted during an outage, then closes the connection. Reports all
    /// [permits](crate::Permit) as released, also those of work in progress, so finish the work first. Takes at
    /// most 6 s, and about 1 s if Redis does not answer; units that could not be reconciled are reported to
    /// the [observer](crate::Builder::observer) as a failure of their gate. Checks in flight get their answer
    /// or an error. Later checks get an error ([`Error::is_shut_down`]), regardless of
    /// [`OnFailure`](crate::OnFailure).
    pub async fn shutdown(&self) {
        self.pipeline.shutdown().await;
    }
}

/// # For layers in front of services
impl Limiter {
    /// Returns whether both are clones of one limiter.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pipeline, &other.pipeline)
    }

    /// Notifies the observer of an event outside of the limiter. Rules that were rejected are also reported as
    /// [warnings](Self::warn) are.
    pub fn notify(&self, event: &Event<'_>) {
        let Event::RulesReloaded(Err(error)) = event else { return self.pipeline.events.notify(event) };
        let line = format_args!("rules not reloaded, the previous ones stay in force: {error}");
        self.pipeline.warnings.report(event, &line);
    }

    /// Reports a mistake in the setup of the process to the observer, to `tracing` and, if neither
    /// [reports](crate::Observer::reports_warnings) it, to standard error: at once, then at most once a second with the number of occurrences.
    pub fn warn(&self, warning: &RepeatedWarning, message: impl FnOnce() -> String) {
        self.pipeline.warnings.warn(warning, message);
    }

    /// Sleeps on the limiter's clock: with an in-memory limiter of a [`ManualClock`](crate::ManualClock), until
    /// a test has moved it.
    pub async fn sleep(&self, duration: Duration) {
        self.pipeline.sleep(duration).await;
    }

    /// Returns a stopwatch on the clock of [`sleep`](Self::sleep).
    #[must_use]
    pub fn stopwatch(&self) -> Stopwatch {
        self.pipeline.stopwatch()
    }
}

impl Gate {
    /// Returns the gate's limiter.
    #[must_use]
    pub fn limiter(&self) -> Limiter {
        Limiter { pipeline: self.pipeline.clone() }
    }
}

impl Check {
    /// Returns the limiter of the check's gate.
    #[must_use]
    pub fn limiter(&self) -> Limiter {
        Limiter { pipeline: self.pipeline.clone() }
    }
}
