//! From the store's reply, or from a cached denial, to the decision; and what a reply leaves for later checks:
//! cached denials, and the last known state.

use super::components::Pipeline;
use super::group::{Folded, GroupDecision};
use crate::batch::Share;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::in_flight::{GroupAnswer, Polls};
use crate::local::deny_cache::SlotSnapshot;
use crate::local::fallback::Fallback;
use crate::pipeline::request::Request;
use crate::quota::reference::{Answer, Taken};
#[cfg(feature = "regions")]
use crate::regions;
use crate::store::{GateInfo, GroupItem, Outcome, Store};

impl Pipeline {
    /// Returns a cached denial that still holds.
    pub(super) fn cached_denial(&self, request: &Request<'_>) -> Option<Decision> {
        self.deny_cache.as_ref().filter(|_| request.cost > 0)?;
        self.find_denial(&request.item().ok()?)
    }

    #[inline]
    pub(super) fn find_denial(&self, item: &GroupItem) -> Option<Decision> {
        let deny_cache = self.deny_cache.as_ref().filter(|_| self.ensure_open().is_ok())?;
        let (answer, now_us) = deny_cache.find(item)?;
        Some(decision(&item.target.gate, answer, Source::DenyCache, now_us))
    }

    /// Returns the decision on one check of one key, and records the key's state.
    #[inline]
    pub(super) fn conclude_check(
        &self,
        request: &Request<'_>,
        snapshot: Option<SlotSnapshot>,
        share: Result<Share, Error>,
    ) -> Result<Decision, Error> {
        let n = u64::from(request.cost > 0);
        self.conclude(request, n, snapshot, share).map(|(_, decision)| decision)
    }

    /// Returns how many of the caller's `n` checks of one key were admitted, and the decision on them. Records the
    /// key's state.
    #[inline]
    pub(super) fn conclude(
        &self,
        request: &Request<'_>,
        n: u64,
        snapshot: Option<SlotSnapshot>,
        share: Result<Share, Error>,
    ) -> Result<(u64, Decision), Error> {
        let share = match share {
            Ok(share) => share,
            Err(error) => return self.fall_back(request, n, None, error),
        };
        let gate = request.gate.info()?;
        let check = (request.cost.max(1), request.max_delay_us(&gate.quota));
        let (granted, decision) = self.grant(gate, check, 0, n, &share);
        if let Some(fallback) = self.fallback.as_ref().filter(|_| share.index == 0) {
            // One caller of a merged call records for all of them: the state after the last check.
            let last = (share.n > n).then(|| Share { index: share.n - 1, ..share.clone() });
            let last = last.map(|last| self.decision(gate, check, 0, &last));
            let last = last.as_ref().unwrap_or(&decision);
            let may_be_known = || snapshot.is_none_or(|snapshot| fallback.may_know(snapshot.slot));
            if Fallback::is_worth_noting(last) || may_be_known() {
                fallback.note(&request.target()?, last, &share.outcome.before_with_ban(0));
            }
        }
        if let (Some(deny_cache), Some(snapshot)) = (&self.deny_cache, snapshot)
            && n > 0
        {
            // First the admission: where takes of one time are unlike, the denial of the same call counts as older.
            if granted > 0 && deny_cache.raise_latest_admission(snapshot, &share) {
                deny_cache.record_admission(&request.target()?, share.outcome.now_us);
            }
            if granted < n {
                deny_cache.remember(snapshot, request.item()?, &share);
            }
        }
        Ok((granted, decision))
    }

    /// Returns how often a group was admitted, one decision per check, and the units that it holds.
    pub(super) fn conclude_all(&self, mut group: Folded, n: u64, answer: GroupAnswer) -> GroupDecision {
        let GroupAnswer { share, held, deciders, behind } = answer;
        for (item, decider) in deciders {
            group.items[item].target.gate = decider;
        }
        self.record_admissions(&group.items, &share.outcome);
        self.note_states(&group.items, &share);
        // A group that would overtake callers is peeked at.
        let n = n.min(share.n);
        let decisions =
            group.items.iter().enumerate().map(|(at, item)| {
                self.grant(&item.target.gate, (item.cost, item.max_delay_us), at, n, &share).1
            });
        let mut decisions = group.of_each_check(decisions.collect());
        let is_behind = |check: &usize| behind.contains(&group.index_of[*check]);
        for check in (0..decisions.len()).filter(is_behind) {
            let decision = &mut decisions[check];
            decision.allowed = false;
            decision.retry_after_us = decision.retry_after_us.max(Polls::default().next());
        }
        let held = held.into_iter().filter_map(|(item, units)| Some((group.first_check_of(item)?, units)));
        let granted = share.outcome.k.saturating_sub(share.index).min(n);
        GroupDecision { held: held.collect(), ..GroupDecision::new(n, granted, decisions) }
    }

    /// Notes the states after a take of several keys, for the fallback to start from.
    fn note_states(&self, items: &[GroupItem], share: &Share) {
        let Some(fallback) = self.fallback.as_ref().filter(|_| share.index == 0) else { return };
        let last = Share { index: share.n.saturating_sub(1), ..share.clone() };
        // The fallback does not decide permits.
        let decided = |(_, item): &(usize, &GroupItem)| !item.target.gate.quota.is_in_flight();
        for (at, item) in items.iter().enumerate().filter(decided) {
            let last = self.decision(&item.target.gate, (item.cost, item.max_delay_us), at, &last);
            fallback.note(&item.target, &last, &share.outcome.before_with_ban(at));
        }
    }

    /// Removes earlier cached denials of the admitted keys. Called for admissions that
    /// [`conclude`](Self::conclude) does not process.
    pub(super) fn record_admissions(&self, items: &[GroupItem], outcome: &Outcome) {
        if let Some(deny_cache) = self.deny_cache.as_ref().filter(|_| outcome.k > 0) {
            let charged = items.iter().filter(|item| item.cost > 0);
            charged.for_each(|item| deny_cache.record_admission(&item.target, outcome.now_us));
        }
    }

    /// Returns the decision on a caller's check by the group's item at index `at`, of which `cost` units were wanted.
    pub(super) fn decision(
        &self,
        gate: &GateInfo,
        check: (u64, Option<u64>),
        at: usize,
        share: &Share,
    ) -> Decision {
        self.grant(gate, check, at, 1, share).1
    }

    /// Returns how many of a caller's `wanted` checks were admitted, and the decision on them by the group's item at
    /// index `at`. For a single item, the store's count of admitted checks decides, since it charged those.
    #[inline]
    fn grant(
        &self,
        gate: &GateInfo,
        (cost, max_delay): (u64, Option<u64>),
        at: usize,
        wanted: u64,
        share: &Share,
    ) -> (u64, Decision) {
        let Share { outcome, n, index, .. } = share;
        let (quota, k, before, now) = (&gate.quota, outcome.k, outcome.before[at], outcome.now_us);
        // A repeated reservation was charged before: its answer is that of a peek, but it is admitted.
        let is_repeated = outcome.repeated.contains(&at);
        let n = if is_repeated { 0 } else { *n };
        let taken = Taken { quota, cost, max_delay, n, k, before, now };
        #[cfg(feature = "regions")]
        if let Some(taken) = outcome.replicated.get(at) {
            return replicated_grant(gate, taken, (*index, wanted), outcome);
        }
        let (granted, mut answer) = taken.grant(*index, wanted.max(1));
        let is_alone = outcome.before.len() == 1;
        // The last of the denials began a ban. None of the denied callers can be admitted before its end.
        if let Some(lasts_us) = outcome.ban_of(at).filter(|_| index.saturating_add(wanted) > k) {
            answer = answer.blocked_for(lasts_us);
        }
        answer.allowed = if n > 0 && is_alone { *index < k } else { is_repeated || taken.affords(*index) };
        let source = if matches!(*self.store, Store::Redis(_)) { Source::Redis } else { Source::Memory };
        let algorithm = quota.kind().algorithm();
        let stamp_us = algorithm.stamp(before.raw, now);
        let is_peek = n == 0 || cost == 0;
        let is_within_limit = is_peek
            && before.blocked_until_us <= now
            && algorithm.room(quota.limit() + 1, before.raw, now) > 0;
        (granted, Decision { stamp_us, is_within_limit, ..decision(gate, answer, source, now) })
    }
}

/// Does the same for a gate whose charges other regions hear of.
#[cfg(feature = "regions")]
fn replicated_grant(
    gate: &GateInfo,
    taken: &regions::reference::Taken,
    (index, wanted): (u64, u64),
    outcome: &Outcome,
) -> (u64, Decision) {
    let (granted, mut answer) = taken.grant(index, wanted.max(1));
    let is_peek = taken.checks.n == 0;
    if outcome.replicated.len() > 1 || is_peek {
        answer.allowed = taken.affords(index);
    }
    let (algorithm, raw) = (gate.quota.kind().algorithm(), taken.before.raw);
    let is_within_limit = is_peek
        && taken.before.blocked_until_us <= outcome.now_us
        && algorithm.room(gate.quota.limit() + 1, raw, taken.at_us) > 0;
    let stamp_us = algorithm.stamp(raw, taken.at_us);
    let decision = decision(gate, answer, Source::Redis, outcome.now_us);
    (granted, Decision { stamp_us, is_within_limit, ..decision })
}

#[inline]
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
        is_within_limit: false,
        is_blocked: answer.is_blocked,
    }
}
