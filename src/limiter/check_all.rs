//! Several checks in one atomic step: all are admitted, or none is.

use super::core::{check_cost, static_decision, with_context};
use super::{Core, OnFailure};
use crate::check::Check;
use crate::decision::{AllDecision, Decision, Source};
use crate::error::Error;
use crate::store::{Group, Item};
use crate::trace::Span;

/// A group is one call, regardless of its number of keys.
const MAX_CHECKS: usize = 128;

impl Core {
    pub(crate) async fn check_all(&self, checks: Vec<Check>) -> Result<AllDecision, Error> {
        let n = u64::from(checks.iter().any(|check| check.cost > 0));
        let span = Span::of_all(checks.len());
        let decided = self.take_all(checks, n).await;
        span.all_decided(&decided);
        decided
    }

    /// Returns the decision that [`check_all`](Self::check_all) would make, without charging.
    #[cfg(feature = "tower")]
    pub(crate) async fn peek_all(&self, checks: Vec<Check>) -> Result<AllDecision, Error> {
        self.take_all(checks, 0).await
    }

    async fn take_all(&self, checks: Vec<Check>, n: u64) -> Result<AllDecision, Error> {
        if checks.is_empty() {
            return Err(Error::config("check_all was given no checks"));
        }
        if let Some(other) = checks.iter().find(|check| !std::ptr::eq(&*check.gate.core, self)) {
            return Err(with_context(other.as_ref(), Error::config("this gate belongs to another limiter")));
        }
        if checks.len() > MAX_CHECKS {
            return Err(Error::config(format!(
                "check_all was given {} checks: one atomic step holds Redis for all others, so give it at most {MAX_CHECKS}",
                checks.len()
            )));
        }
        if self.has_overrides() {
            return Box::pin(self.take_all_with_overrides(checks, n)).await;
        }
        // A check of cost 0 binds only if all costs are 0.
        let binds: Vec<bool> = checks.iter().map(|check| n == 0 || check.cost > 0).collect();
        let (allowed, decisions) = self.take_together(checks, n).await?;
        Ok(all_decision(allowed, decisions, |at| binds[at]))
    }

    /// Takes all or nothing. Returns whether all are admitted, and one decision per check. Ignores operators'
    /// overrides.
    pub(super) async fn take_together(
        &self,
        checks: Vec<Check>,
        n: u64,
    ) -> Result<(bool, Vec<Decision>), Error> {
        let items = checks
            .iter()
            .map(|check| self.item(check.as_ref()).map_err(|error| with_context(check.as_ref(), error)));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        check_hash_tags(&checks, &items)?;
        let (folded, index_of) = fold(&checks, items)?;
        let group = Group { items: folded.iter().cloned().collect(), n };
        let deadline = self.deadline_of(checks.iter().filter_map(|check| check.deadline).min());
        let (allowed, decisions) = match self.take(group, deadline).await {
            Ok(share) => {
                self.charged(&folded, &share.outcome);
                let decisions = folded.iter().enumerate().map(|(at, item)| {
                    let wanted = (item.cost, item.max_delay_us);
                    self.decision(&item.target.gate, wanted, at, &share)
                });
                let decisions = decisions.collect::<Vec<_>>();
                let allowed = match n {
                    0 => decisions.iter().all(Decision::is_allowed),
                    _ => share.index < share.outcome.k,
                };
                (allowed, decisions)
            }
            Err(error) => {
                // An error of one key, such as corrupt state, names that key.
                let blamed = (!error.is_unavailable()).then(|| error.item());
                let blamed = blamed.and_then(|item| index_of.iter().position(|&index| index == item));
                let failed = blamed.map_or(&checks[..], |at| std::slice::from_ref(&checks[at]));
                // Collected before the first error returns, so that the observer is notified of each check.
                let policies: Vec<_> =
                    failed.iter().map(|check| self.on_failure(check.as_ref(), error.clone())).collect();
                let policies = policies.into_iter().collect::<Result<Vec<_>, _>>()?;
                self.all_without_store(&checks, (&folded, &index_of), n, &policies)?
            }
        };
        let decisions: Vec<Decision> = match decisions.len() == checks.len() {
            true => decisions,
            false => index_of.iter().map(|&index| decisions[index].clone()).collect(),
        };
        if n > 0 {
            // If denied, only the gates that denied are reported: the others admitted nothing.
            let reported =
                checks.iter().zip(&decisions).filter(|(_, decision)| allowed || !decision.is_allowed());
            reported.for_each(|(check, decision)| {
                self.notify_decided(decision);
                self.notify_denied(check.as_ref(), decision);
            });
        }
        Ok((allowed, decisions))
    }
}

impl Core {
    /// Decides without the store. Failure policies admit or deny some checks; this process decides the
    /// others, all or nothing.
    fn all_without_store(
        &self,
        checks: &[Check],
        (folded, index_of): (&[Item], &[usize]),
        n: u64,
        policies: &[OnFailure],
    ) -> Result<(bool, Vec<Decision>), Error> {
        let of_item = |item: usize| index_of.iter().position(|&index| index == item).unwrap_or(0);
        let is_local = |item: &usize| policies[of_item(*item)] == OnFailure::Local;
        let locals: Vec<usize> = (0..folded.len()).filter(is_local).collect();
        let items: Vec<Item> = locals.iter().map(|&item| folded[item].clone()).collect();
        // If a policy denies, the group is denied, so it charges nothing.
        let is_refused = policies.contains(&OnFailure::Closed);
        let n = if is_refused { 0 } else { n };
        let (passes, decisions) = match items.is_empty() {
            true => (true, Vec::new()),
            false => self.local(&items, n)?,
        };
        let decisions =
            checks.iter().zip(policies).zip(index_of).map(|((check, policy), index)| match policy {
                OnFailure::Local => {
                    let at = locals.iter().position(|local| local == index).unwrap_or(0);
                    Ok(decisions[at].clone())
                }
                OnFailure::Open => static_decision(check.as_ref(), true, Source::Open),
                _ => static_decision(check.as_ref(), false, Source::Closed),
            });
        let passes = match n {
            0 => decisions.clone().all(|decision| decision.is_ok_and(|it: Decision| it.is_allowed())),
            _ => passes,
        };
        Ok((passes, decisions.collect::<Result<_, _>>()?))
    }
}

/// Combines decisions; `binds` selects those that can bind.
pub(super) fn all_decision(
    allowed: bool,
    decisions: Vec<Decision>,
    binds: impl Fn(usize) -> bool,
) -> AllDecision {
    let charges: Vec<usize> = (0..decisions.len()).filter(|&at| binds(at)).collect();
    let retry_after = charges.iter().map(|&at| decisions[at].retry_after()).max().unwrap_or_default();
    AllDecision { allowed, binding: binding(&charges, &decisions, allowed), retry_after, decisions }
}

/// Checks that all keys share a cluster slot, as a script requires.
fn check_hash_tags(checks: &[Check], items: &[Item]) -> Result<(), Error> {
    let apart = items.iter().position(|item| item.target.hash_tag != items[0].target.hash_tag);
    apart.map_or(Ok(()), |apart| {
        let text = "its key lies in another slot of the Redis Cluster than that of the first check, and one atomic step cannot reach both: check for the same key, or let one sit beside the other (Check::colocate_with); in a file of rules, say `charge: each`";
        Err(with_context(checks[apart].as_ref(), Error::config(text)))
    })
}

/// Sums the costs per Redis key. Returns one item per Redis key, and the index of its item for each check.
fn fold(checks: &[Check], items: Vec<Item>) -> Result<(Vec<Item>, Vec<usize>), Error> {
    let mut folded: Vec<Item> = Vec::with_capacity(items.len());
    let mut index_of = Vec::with_capacity(items.len());
    for (check, item) in checks.iter().zip(items) {
        let same = folded.iter().position(|other| other.target.redis_key == item.target.redis_key);
        let Some(index) = same else {
            index_of.push(folded.len());
            folded.push(item);
            continue;
        };
        let other = &mut folded[index];
        if other.target.gate.quota != item.target.gate.quota {
            let text = "check_all was given one key under two quotas of the same gate name: give each gate its own name";
            return Err(with_context(check.as_ref(), Error::config(text)));
        }
        other.cost = other.cost.saturating_add(item.cost);
        check_cost(other.cost, &item.target.gate.quota)
            .map_err(|error| with_context(check.as_ref(), error))?;
        other.max_delay_us = match (other.max_delay_us, item.max_delay_us) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        index_of.push(index);
    }
    Ok((folded, index_of))
}

/// Returns the binding decision. If denied: the longest wait. If allowed: the smallest share left. The first
/// one among equals.
fn binding(charges: &[usize], decisions: &[Decision], allowed: bool) -> usize {
    let tighter = |a: &Decision, b: &Decision| match allowed {
        true => u128::from(a.remaining) * u128::from(b.limit) < u128::from(b.remaining) * u128::from(a.limit),
        false => a.retry_after_us > b.retry_after_us,
    };
    let tightest = |best, at| if tighter(&decisions[at], &decisions[best]) { at } else { best };
    charges.iter().copied().reduce(tightest).unwrap_or(0)
}
