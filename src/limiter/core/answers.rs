//! Decisions, as returned to callers and reported to the observer.

use std::fmt;
use std::sync::Arc;

use super::{Core, with_context};
use crate::algorithm::{Answer, Taken};
use crate::batch::Share;
use crate::check::CheckRef;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::fallback::{ChargeStamp, LocalOutcome};
use crate::limiter::OnFailure;
use crate::store::{GateInfo, Item, Store, Target};

/// The wait of a denial that does not depend on the units used.
pub(crate) const CLOSED_RETRY_US: u64 = 1_000_000;

impl Core {
    /// Returns a caller's decision by the group's item at index `at`, of which `cost` units were wanted. For
    /// a single item, the store's count of admitted checks decides, since it charged those.
    pub(in crate::limiter) fn decision(
        &self,
        gate: &GateInfo,
        (cost, max_delay): (u64, Option<u64>),
        at: usize,
        share: &Share,
    ) -> Decision {
        let Share { outcome, n, index, .. } = share;
        let (quota, k, before, now) = (&gate.quota, outcome.k, outcome.before[at], outcome.now_us);
        let taken = Taken { quota, cost, max_delay, n: *n, k, before, now };
        let mut answer = taken.answer(*index);
        let is_alone = outcome.before.len() == 1;
        answer.allowed = if *n > 0 && is_alone { *index < k } else { taken.affords(*index) };
        let source = if matches!(*self.store, Store::Redis(_)) { Source::Redis } else { Source::Memory };
        let stamp_us = quota.kind().algorithm().stamp(before.raw, now);
        Decision { stamp_us, ..decision(gate, answer, source, now) }
    }

    /// Returns the decision of the failure policy on a check that the store did not answer. `item` saves
    /// making the check's item again.
    pub(in crate::limiter) fn fallback_decision(
        &self,
        check: CheckRef<'_>,
        item: Option<Item>,
        error: Error,
    ) -> Result<Decision, Error> {
        match self.on_failure(check, error)? {
            OnFailure::Local => {
                let item = item.map_or_else(|| self.item(check), Ok)?;
                let n = u64::from(check.cost > 0);
                Ok(self.local(&[Item { cost: item.cost.max(1), ..item }], n)?.1.remove(0))
            }
            OnFailure::Open => static_decision(check, true, Source::Open),
            _ => static_decision(check, false, Source::Closed),
        }
    }

    /// Returns the failure policy to apply, or the error if none applies.
    pub(in crate::limiter) fn on_failure(
        &self,
        check: CheckRef<'_>,
        error: Error,
    ) -> Result<OnFailure, Error> {
        let is_double = matches!(*self.store, Store::Always { .. });
        if self.observer.is_some() && !is_double {
            self.notify_failed(&check.gate.info()?.name, &with_context(check, error.clone()));
        }
        let on_failure = match *self.store {
            Store::Always { allowed } if allowed => OnFailure::Open,
            Store::Always { .. } => OnFailure::Closed,
            _ => check.gate.on_failure,
        };
        match on_failure {
            OnFailure::Error => Err(with_context(check, error)),
            OnFailure::Local if self.fallback.is_none() => Err(with_context(check, error)),
            on_failure if error.is_unavailable() => Ok(on_failure),
            _ => Err(with_context(check, error)),
        }
    }

    /// Decides a group within this process's shares, all or nothing. Returns whether all passed, and
    /// one decision for each item.
    pub(in crate::limiter) fn local(&self, items: &[Item], n: u64) -> Result<(bool, Vec<Decision>), Error> {
        let Some(fallback) = &self.fallback else { return Err(Error::unavailable("there is no fallback")) };
        let LocalOutcome { passes, answers, now_us } = fallback.take(items, n);
        let answered = items.iter().zip(answers);
        let decisions = answered.map(|(item, (answer, stamp_us))| Decision {
            stamp_us,
            ..decision(&item.target.gate, answer, Source::Local, now_us)
        });
        Ok((passes, decisions.collect()))
    }

    /// Returns the stamp by which units that the fallback just admitted can be given back.
    pub(crate) fn local_stamp(&self, check: CheckRef<'_>) -> Option<ChargeStamp> {
        let target = Target::new(check.gate.info().ok()?, check.key, check.colocate_with);
        self.fallback.as_ref()?.stamp(&target)
    }

    /// Gives back units that the fallback admitted with the stamp `admitted_us`. Returns the stamp of
    /// Redis's charge for them, if it was charged: then they have to be given back there.
    pub(crate) fn give_back_locally(
        &self,
        check: CheckRef<'_>,
        stamp: Option<&ChargeStamp>,
        units: u64,
        admitted_us: u64,
    ) -> Option<u64> {
        let target = Target::new(check.gate.info().ok()?, check.key, check.colocate_with);
        self.fallback.as_ref()?.give_back(&target, stamp?, units, admitted_us)
    }

    pub(crate) fn notify_decided(&self, decision: &Decision) {
        if let Some(observer) = &self.observer {
            observer.decided(decision);
        }
    }

    /// Reports a denied key, also if only shadow mode admitted the check.
    pub(in crate::limiter) fn notify_denied(&self, check: CheckRef<'_>, decision: &Decision) {
        if let (Some(observer), Ok(info)) = (&self.observer, check.gate.info())
            && (decision.shadow || !decision.allowed)
            && decision.source != Source::Switch
        {
            observer.denied(&info.name, &InRedis(info, check));
        }
    }

    #[cfg(feature = "rules")]
    pub(crate) fn notify_loaded(&self, rules: usize) {
        if let Some(observer) = &self.observer {
            observer.loaded(rules);
        }
    }

    #[cfg(feature = "rules")]
    pub(crate) fn notify_reloaded(&self, reloaded: Result<usize, &Error>) {
        if let Some(observer) = &self.observer {
            observer.reloaded(reloaded);
        }
    }

    pub(super) fn notify_failed(&self, gate: &str, error: &Error) {
        if let Some(observer) = &self.observer {
            observer.failed(gate, error);
        }
    }
}

/// Returns a decision that does not depend on the units used.
pub(in crate::limiter) fn static_decision(
    check: CheckRef<'_>,
    allowed: bool,
    source: Source,
) -> Result<Decision, Error> {
    let info = check.gate.info()?;
    let wait_us = if allowed { 0 } else { CLOSED_RETRY_US };
    Ok(Decision {
        gate: info.name,
        allowed,
        limit: info.quota.limit(),
        remaining: if allowed { info.quota.limit() } else { 0 },
        retry_after_us: wait_us,
        reset_after_us: wait_us,
        delay_us: 0,
        source,
        shadow: false,
        now_us: 0,
        stamp_us: 0,
    })
}

/// A key as it is written in Redis, formatted only when it is displayed.
struct InRedis<'a>(&'a Arc<GateInfo>, CheckRef<'a>);

impl fmt::Display for InRedis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Target::new(self.0, self.1.key, self.1.colocate_with).redis_key)
    }
}

pub(super) fn decision(gate: &GateInfo, answer: Answer, source: Source, now_us: u64) -> Decision {
    Decision {
        gate: gate.name,
        allowed: answer.allowed,
        limit: gate.quota.limit(),
        remaining: answer.remaining,
        retry_after_us: answer.retry_after_us,
        reset_after_us: answer.reset_after_us,
        delay_us: answer.delay_us,
        source,
        shadow: false,
        now_us,
        stamp_us: now_us,
    }
}
