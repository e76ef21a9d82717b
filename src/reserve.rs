//! Reservations: units charged by an estimate, and settled later.
//!
//! A [`Reservation`] is a check whose process settles it. A [`HeldReservation`] is settled by any process: [`Reserve`]
//! decides a group as `check_all` does, and the store keeps the charges as holds, which end after their ttl. The
//! [`Token`] lists the charges, so that [`settling`] needs neither the gates nor this process.

mod format;
mod held_reservation;
mod ids;
mod reservation;
mod settling;
mod token;

use std::borrow::Borrow;
use std::pin::Pin;
use std::time::Duration;

use self::format::check_ttl_ms;
pub use self::held_reservation::HeldReservation;
pub use self::reservation::Reservation;
pub use self::token::Token;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::limiter::check::Check;
use crate::pipeline::request::Request;
use crate::quota::settlement::Settlement;

/// # Reservations that any process can settle
impl Limiter {
    /// Reserves the costs of several checks in one atomic step: all are admitted and charged now, or none is. Later
    /// [`commit`](Self::commit) charges the numbers that were really used, or [`cancel`](Self::cancel) nothing: for
    /// work whose cost is known only at its end, such as the tokens of a language model.
    ///
    /// Await the returned [`Reserve`], or set its options first. The store keeps each charge as a *hold*. A hold that no
    /// process settles ends after [`Reserve::ttl`]. The [`Token`] of an admitted reservation settles it from
    /// any process with the same namespace, even after this one has crashed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota, Rate};
    ///
    /// let limiter = Limiter::in_memory();
    /// let requests = limiter.gate("llm.requests", Quota::token_bucket(60, Rate::per_minute(60)));
    /// let tokens = limiter.gate("llm.tokens", Quota::token_bucket(10_000, Rate::per_minute(10_000)));
    ///
    /// let checks = [requests.key("tenant:7"), tokens.key("tenant:7").cost(2_000)];
    /// let reserved = limiter.reserve(checks).ttl(Duration::from_secs(120)).await?;
    /// if let Some(token) = reserved.token() {
    ///     // … the answer used 740 tokens
    ///     limiter.commit(token, [1, 740]).await?;
    /// }
    /// assert_eq!(tokens.peek("tenant:7").await?.remaining(), 9_260);
    /// # Ok(()) }
    /// ```
    ///
    /// [`Gate::reserve`](crate::Gate::reserve) is the cheaper form for one gate: it costs no more than a check, but only the process that
    /// reserved can settle, at most once, and nothing ends it.
    ///
    /// # Errors
    ///
    /// As [`check_all`](Self::check_all); [`Error::is_config`] also for an invalid [ttl](Reserve::ttl).
    pub fn reserve<C: Borrow<Check>>(&self, checks: impl IntoIterator<Item = C>) -> Reserve {
        let checks: Vec<C> = checks.into_iter().collect();
        let requests = self.requests(&checks);
        let requests = requests.map(|requests| requests.into_iter().map(Request::into_owned).collect());
        Reserve {
            limiter: self.clone(),
            requests,
            ttl: Duration::from_secs(60),
            is_refunded: false,
            id: None,
        }
    }

    /// Charges each check of a reservation its actual units, given in the order of the checks: returns the rest, or
    /// charges the difference without a check (as debt beyond the limit). Units that no longer count, because their
    /// window has passed, are not returned.
    ///
    /// Can be called by any process of the namespace, any number of times: one call counts for each check. Returns
    /// the state in which each check's hold was found.
    ///
    /// If Redis does not answer by the deadline, the result is [`Settlement::Queued`]: this process settles in the
    /// background as soon as Redis answers, for twice the [ttl](Reserve::ttl). So callers need not retry.
    ///
    /// A reservation that was admitted while Redis was unavailable has no hold. The process that made it settles
    /// it once, as [`Reservation::commit`](crate::Reservation::commit) does. After an error that Redis is unavailable, it
    /// can be settled again, but a refund whose reply was lost is not repeated. In any other process, each call charges the
    /// actual units of [`OnFailure::Open`](crate::OnFailure::Open), or those above the reserved units of [`OnFailure::Local`](crate::OnFailure::Local), if the
    /// token is [signed](crate::Builder::reservation_secret). Without a secret, it changes nothing there.
    ///
    /// # Errors
    ///
    /// - [`Error::is_config`] if the count of numbers is not that of the checks, or if the token's
    ///   [signature](crate::Builder::reservation_secret) is missing or wrong: nothing was settled
    /// - [`Error::is_unavailable`] if too many settles wait for Redis already, or for a reservation without a hold:
    ///   the reserved units stay charged until the hold ends
    /// - [`Error::is_corrupt_state`] if the key of a check holds something else in Redis. The other checks are settled.
    /// - [`Error::is_shut_down`]
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, the settle goes on in the background.
    pub async fn commit(
        &self,
        token: &Token,
        actuals: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<Settlement>, Error> {
        settling::settle(&self.pipeline, token, actuals.into_iter().collect()).await
    }

    /// Returns all reserved units that still count: a [`commit`](Self::commit) of zeros.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    ///
    /// # Cancel safety
    ///
    /// As [`commit`](Self::commit).
    pub async fn cancel(&self, token: &Token) -> Result<Vec<Settlement>, Error> {
        settling::settle(&self.pipeline, token, vec![0; token.checks()]).await
    }
}

/// A reservation to be made: returned by [`Limiter::reserve`], made when it is awaited.
///
/// # Cancel safety
///
/// If the future is dropped, the reservation may have been made. Its units are held until its
/// [ttl](Self::ttl) has passed. Reserve again with the same [id](Self::id) to get its token.
#[must_use = "nothing is reserved until this is awaited"]
#[derive(Clone)]
pub struct Reserve {
    limiter: Limiter,
    requests: Result<Vec<Request<'static>>, Error>,
    ttl: Duration,
    is_refunded: bool,
    id: Option<Vec<u8>>,
}

impl Reserve {
    /// Sets after which time a hold that no process has settled ends: 1 s to 24 h, in whole milliseconds. Use the
    /// time of the longest work: a commit after the end does not return units. The server's clock decides.
    ///
    /// Default: 60 s.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Makes the units stay charged when a hold ends. A later commit, within another ttl, charges only the actual units
    /// above the estimate ([`Settlement::Late`]).
    ///
    /// For quotas that refill within the ttl, such as tokens per minute, this is the same as
    /// [`back`](Self::back): the units no longer count by then.
    ///
    /// This is the default.
    pub const fn keep(mut self) -> Self {
        self.is_refunded = false;
        self
    }

    /// Makes the units return when a hold ends, as far as they still count. A later commit, within another ttl, charges the
    /// actual units without a check ([`Settlement::Late`]).
    ///
    /// For windows much longer than the ttl, such as budgets per day or month. The next reservation or settle of the key
    /// returns the units, and checks of gates with [`Gate::holds`](crate::Gate::holds) do. Until then, other checks are
    /// decided too strictly.
    pub const fn back(mut self) -> Self {
        self.is_refunded = true;
        self
    }

    /// Sets the identity of the reservation, so that it can be repeated after an error or a crash: a repetition with
    /// the same id, keys, costs, ttl and kind of end finds the open holds, charges nothing, and returns an equal token.
    /// After the reservation was settled or has ended, a repetition is a new one. Do not repeat an id of which a settle was
    /// sent: a retried or [queued](Settlement::Queued) settle would take effect on the new reservation.
    ///
    /// While Redis is unavailable, a repetition is charged again by [`OnFailure::Local`](crate::OnFailure::Local).
    ///
    /// The reservation can be settled by a third party that can guess the id, the keys and the costs: then set
    /// [`Builder::reservation_secret`](crate::Builder::reservation_secret).
    ///
    /// All callers that know the id share the reservation, and one settle counts. So do not use an id that a client
    /// chooses, unless the work is also done once per id: many concurrent requests with one id would be charged once.
    ///
    /// Default: a random id.
    pub fn id(mut self, id: impl AsRef<[u8]>) -> Self {
        self.id = Some(id.as_ref().to_vec());
        self
    }

    async fn send(self) -> Result<HeldReservation, Error> {
        let requests = self.requests?;
        if let Some(request) = requests.iter().find(|request| request.gate.ban.is_some()) {
            let error = Error::config(
                "a reservation that any process can settle does not count denials for a ban: use `Gate::reserve`, or a gate without the ban",
            );
            return Err(request.with_context(error));
        }
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        if check_ttl_ms(ttl_ms).is_err() {
            return Err(Error::config(format!("`ttl` of a reservation is {:?}: use 1 s to 24 h", self.ttl)));
        }
        let id = match self.id {
            Some(id) => held_reservation::derived_id(&id, &requests, ttl_ms, self.is_refunded)?,
            None => ids::random(),
        };
        held_reservation::reserve(&self.limiter.pipeline, requests, (id, ttl_ms, self.is_refunded)).await
    }
}

/// Shows neither keys nor the id.
impl std::fmt::Debug for Reserve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reserve")
            .field("checks", &self.requests.as_ref().map(Vec::len))
            .field("ttl", &self.ttl)
            .field("is_refunded", &self.is_refunded)
            .finish_non_exhaustive()
    }
}

impl IntoFuture for Reserve {
    type Output = Result<HeldReservation, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
