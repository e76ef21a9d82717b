//! Acquires of one key of an in-flight limit. They pass the overrides, then the permits of this process in
//! place of the leases, the deny cache and the fallback; breaker, batch and store as checks do.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::components::Pipeline;
use super::overrides::Resolved;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::in_flight::{AcquireAnswer, AcquireTerms, AdaptiveTerms, Permit, TimeLimits, UnitsGuard};
use crate::local::on_failure::OnFailure;
use crate::local::overrides::Switch;
use crate::observe::trace::Span;
use crate::pipeline::request::{GateSpec, Request, check_cost};
use crate::store::Target;

/// How often a caller that waits looks for changed overrides: as often as they are read.
const OVERRIDES_READ: Duration = Duration::from_millis(500);

/// A decision, and the units that an admission holds. Some admissions hold none.
pub(super) type Held = (Decision, Option<UnitsGuard>);

impl Pipeline {
    /// Acquires units, and waits for them for at most `max_wait`.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: &Request<'_>,
        max_wait: Duration,
    ) -> Result<(Decision, Option<Permit>), Error> {
        let span = Span::of_check(request.cost);
        let acquired = self.acquire_in_time(request, max_wait).await;
        span.decided(acquired.as_ref().map(|(decision, _)| decision));
        let (decision, held) = acquired?;
        let permit = decision.is_allowed().then(|| Permit::new(held, request.cost));
        Ok((decision, permit))
    }

    pub(super) async fn acquire_in_time(
        &self,
        request: &Request<'_>,
        max_wait: Duration,
    ) -> Result<Held, Error> {
        let waited = self.stopwatch();
        loop {
            let left = max_wait.saturating_sub(waited.elapsed());
            let request = &self.follow(request.borrowed()).await;
            let (resolved, acquired) = match self.resolve(request.borrowed()) {
                Resolved::Switched(resolved, decided) => (resolved, decided.map(|decision| (decision, None))),
                Resolved::Check(resolved) => match self.acquire_resolved(request, &resolved, left).await {
                    Some(acquired) => (resolved, acquired),
                    // An operator has changed the gate's mode or the key's quota.
                    None => continue,
                },
            };
            let (decision, held) = match acquired {
                Ok((decision, held)) => (Ok(decision), held),
                Err(error) => (Err(error), None),
            };
            match &decision {
                // A caller that waits for a closed gate gets one decision, so it is reported once.
                Ok(closed)
                    if !closed.is_allowed()
                        && closed.source() == Source::Switch
                        && closed.retry_after() <= left =>
                {
                    self.sleep(closed.retry_after()).await;
                }
                _ => return Ok((self.report(&resolved, decision)?, held)),
            }
        }
    }

    /// Acquires with the settings that are in force for this key. Returns `None` if those of the `original`
    /// request have changed while the caller waited.
    async fn acquire_resolved(
        &self,
        original: &Request<'_>,
        request: &Request<'_>,
        max_wait: Duration,
    ) -> Option<Result<Held, Error>> {
        let (target, terms) = match self.terms(request) {
            Ok(terms) => terms,
            Err(error) => return Some(Err(request.with_context(error))),
        };
        if let Some(is_allowed) = self.store.fixed_decision() {
            let source = if is_allowed { Source::Open } else { Source::Closed };
            return Some(request.fixed_decision(is_allowed, source).map(|decision| (decision, None)));
        }
        self.ensure_background_jobs();
        // In shadow mode, one decision is enough.
        let waits = max_wait > Duration::ZERO && !request.gate.is_shadow;
        let since_us = self.now_if_measured().filter(|_| !waits);
        let limits = self.time_limits(request, waits.then_some(max_wait));
        if let Some(adaptive) = &terms.adaptive {
            adaptive.key.ensure_current(self.deadline_of(request.deadline)).await;
        }
        let mut waiting = match self.permits.enqueue(&target, terms, limits) {
            Ok(waiting) => waiting,
            Err(error) => return Some(self.decide_without_room(request, error)),
        };
        if !waits {
            let (answer, held) = waiting.answer().await;
            self.notify_waited(since_us);
            return Some(self.conclude_acquire(request, answer, held));
        }
        loop {
            match select(pin!(waiting.answer()), pin!(self.sleep(OVERRIDES_READ))).await {
                Either::Left(((answer, held), _)) => {
                    return Some(self.conclude_acquire(request, answer, held));
                }
                Either::Right(_) if self.has_changed(original, request) => return None,
                Either::Right(_) => {}
            }
        }
    }

    /// Decides by the failure policy where this process has no room for another caller or key. It cannot count the units,
    /// so it knows no share of the limit.
    fn decide_without_room(&self, request: &Request<'_>, error: Error) -> Result<Held, Error> {
        let answer = match request.gate.on_failure {
            policy @ (OnFailure::Open | OnFailure::Closed) => {
                AcquireAnswer::Undecided { policy, error, grant: None, remaining: 0, retry_us: 0 }
            }
            _ => AcquireAnswer::Failed(error),
        };
        self.conclude_acquire(request, answer, None)
    }

    /// Returns the key and the terms of an acquire.
    pub(super) fn terms(&self, request: &Request<'_>) -> Result<(Target, AcquireTerms), Error> {
        self.ensure_open()?;
        let target = request.target()?;
        let on_failure = self.on_failure(request);
        let terms = AcquireTerms::new(&target.gate, request.cost, on_failure, request.gate.on_lapse);
        let Some(mut terms) = terms else {
            return Err(Error::config("only an in-flight limit has permits: call `check` on this gate"));
        };
        if request.cost == 0 {
            return Err(Error::config(
                "an acquire needs a cost of at least 1: call `peek` to read the state",
            ));
        }
        check_cost(request.cost, &target.gate.quota)?;
        // Shadow mode admits beyond every limit, so a lower one would change nothing.
        if let Some(adaptive) = request.gate.adaptive.filter(|_| !request.gate.is_shadow) {
            let whole = request.whole_limit.unwrap_or(terms.limit);
            let key = self.adaptive.key(&target, adaptive.bounds(whole));
            terms.adaptive = Some(AdaptiveTerms { key, whole });
        }
        Ok((target, terms))
    }

    /// See [`Gate::adaptive_limit`](crate::Gate::adaptive_limit).
    pub(crate) fn adaptive_limit(&self, gate: &Arc<GateSpec>, key: &[u8]) -> Option<u64> {
        gate.adaptive?;
        let effective = self.effective(gate, key);
        self.adaptive.known(&Request::new(&effective, key, 0).target().ok()?)
    }

    fn time_limits(&self, request: &Request<'_>, max_wait: Option<Duration>) -> TimeLimits {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let now_us = self.permits.local_us();
        let deadline_us = micros(self.longest(request.deadline));
        TimeLimits {
            decide_by_us: now_us.saturating_add(deadline_us),
            until_us: max_wait.map(|max_wait| now_us.saturating_add(micros(max_wait))),
            deadline_us,
        }
    }

    fn has_changed(&self, original: &Request<'_>, request: &Request<'_>) -> bool {
        let effective = self.effective(&original.gate, &original.key);
        let (Ok(now), Ok(then)) = (effective.info(), request.gate.info()) else { return false };
        let is_switched = matches!(self.switch(&now.name), Some(Switch::Open | Switch::Closed));
        is_switched
            || now.quota.at_most(original.at_most) != then.quota
            || effective.is_shadow != request.gate.is_shadow
    }

    fn conclude_acquire(
        &self,
        request: &Request<'_>,
        answer: AcquireAnswer,
        held: Option<UnitsGuard>,
    ) -> Result<Held, Error> {
        let info = request.gate.info()?;
        let decision = match answer {
            AcquireAnswer::Decided { gate, share, retry_us, .. } => {
                let mut decision = self.decision(&gate, (request.cost, None), 0, &share);
                decision.allowed = held.is_some();
                if !decision.allowed {
                    let hint_us = Some(decision.retry_after_us).filter(|&hint_us| hint_us > 0);
                    decision.retry_after_us =
                        hint_us.map_or(retry_us, |hint_us| hint_us.min(retry_us)).max(1);
                }
                decision
            }
            AcquireAnswer::Undecided { policy, error, remaining, retry_us, .. } => {
                self.notify_failed(info, || request.with_context(error));
                match policy {
                    OnFailure::Local => self.local_decision(request, held.is_some(), remaining, retry_us)?,
                    OnFailure::Open => request.fixed_decision(true, Source::Open)?,
                    _ => request.fixed_decision(false, Source::Closed)?,
                }
            }
            AcquireAnswer::Failed(error) => {
                let error = request.with_context(error);
                self.notify_failed(info, || error.clone());
                return Err(error);
            }
        };
        Ok((decision, held))
    }

    /// Returns a decision within this process's share of the limit.
    pub(super) fn local_decision(
        &self,
        request: &Request<'_>,
        is_allowed: bool,
        remaining: u64,
        retry_us: u64,
    ) -> Result<Decision, Error> {
        let now_us = self.clock.now_us();
        let decision = request.fixed_decision(is_allowed, Source::Local)?;
        let retry_after_us = if is_allowed { 0 } else { retry_us.max(1) };
        Ok(Decision {
            remaining,
            retry_after_us,
            reset_after_us: retry_after_us,
            now_us,
            stamp_us: now_us,
            ..decision
        })
    }
}
