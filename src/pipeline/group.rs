//! Several checks in one atomic step: the group that the store decides, and the decision on all.

use smallvec::SmallVec;

use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::error::redact::RedactedKey;
use crate::in_flight::UnitsGuard;
use crate::pipeline::request::{Request, check_cost, check_is_charged};
use crate::quota::reference::holds::NewHold;
use crate::quota::{MAX_UNITS, Quota};
use crate::store::GroupItem;

/// A group is one call, regardless of its number of keys.
const MAX_CHECKS: usize = 128;

/// Returns an error for no checks, and for more than one atomic step may have.
pub(super) fn check_number(checks: usize) -> Result<(), Error> {
    match checks {
        0 => Err(Error::config("no checks were given")),
        1..=MAX_CHECKS => Ok(()),
        _ => Err(Error::config(format!(
            "{checks} checks were given: one atomic step holds Redis for all others, so give it at most {MAX_CHECKS}"
        ))),
    }
}

/// Returns the indices of the checks that a switch decided, and that charge. A group of `n` 0 only peeks.
pub(super) fn switched(requests: &[Request<'_>], decisions: &[Option<Decision>], n: u64) -> Vec<usize> {
    let is_switched = |&at: &usize| n > 0 && requests[at].cost > 0 && decisions[at].is_some();
    (0..requests.len()).filter(is_switched).collect()
}

/// What a group takes units for.
#[derive(Clone, Copy)]
pub(super) enum Verb<'h> {
    /// To use them. Gates that charge units used do so.
    Check,
    /// To use them later, as often as there are units.
    TakeUpTo,
    /// To keep them as this hold. It is taken once.
    Reserve(&'h NewHold),
    /// To use them, and to hold those of in-flight limits. It is taken once.
    Acquire,
}

/// A group of checks that was decided.
pub(super) struct DecidedGroup<'a> {
    /// How often the group was admitted and charged; 0 for a peek.
    pub(super) granted: u64,
    pub(super) decision: AllDecision,
    /// The requests with the settings that decided.
    pub(super) requests: Vec<Request<'a>>,
    /// The units that it holds of in-flight limits, by check.
    pub(super) held: Vec<(usize, UnitsGuard)>,
}

/// The decision on checks that are taken together, n times.
pub(super) struct GroupDecision {
    /// How often the group was admitted and charged; 0 for a peek.
    pub(super) granted: u64,
    /// Whether the group was admitted at least once; of a peek, whether each check would be admitted.
    pub(super) is_allowed: bool,
    /// Whether the units left admitted it less often than n times.
    pub(super) is_restricted: bool,
    /// One per check.
    pub(super) decisions: Vec<Decision>,
    /// The units that the group holds of in-flight limits, by check.
    pub(super) held: Vec<(usize, UnitsGuard)>,
}

impl GroupDecision {
    pub(super) fn new(n: u64, granted: u64, decisions: Vec<Decision>) -> Self {
        let is_allowed = if n > 0 { granted > 0 } else { decisions.iter().all(Decision::is_allowed) };
        Self { granted, is_allowed, is_restricted: granted < n, decisions, held: Vec::new() }
    }

    /// Returns the decision on the first check.
    pub(super) fn into_first(mut self) -> Decision {
        self.decisions.swap_remove(0)
    }
}

/// Checks with their costs summed per Redis key.
pub(super) struct Folded {
    /// One for each Redis key.
    pub(super) items: SmallVec<[GroupItem; 2]>,
    /// For each check the index of its item.
    pub(super) index_of: SmallVec<[usize; 2]>,
}

impl Folded {
    /// `n`: the number of times that the group is taken; 0 peeks.
    pub(super) fn new(requests: &[&Request<'_>], n: u64, verb: Verb<'_>) -> Result<Self, Error> {
        let item = |request: &Request<'_>| {
            let item = request.item_to_acquire()?;
            // Only a charge at an in-flight limit needs an owner. But no script peeks at several keys of which some have one.
            let is_peek = requests.len() == 1 && n.min(request.cost) == 0;
            if !is_peek && !matches!(verb, Verb::Acquire) {
                check_is_charged(&item.target.gate.quota)?;
            }
            Ok(item)
        };
        let items = requests.iter().map(|request| item(request).map_err(|error| request.with_context(error)));
        let items = items.collect::<Result<SmallVec<[_; 2]>, _>>()?;
        check_hash_tags(requests, &items)?;
        check_replicated(requests, &items, verb)?;
        let mut folded = Self { items: SmallVec::new(), index_of: SmallVec::new() };
        for (request, item) in requests.iter().zip(items) {
            folded.add(item).map_err(|error| request.with_context(error))?;
        }
        Ok(folded)
    }

    fn add(&mut self, item: GroupItem) -> Result<(), Error> {
        let Some(index) = self.items.iter().position(|other| other.target == item.target) else {
            self.index_of.push(self.items.len());
            self.items.push(item);
            return Ok(());
        };
        let other = &mut self.items[index];
        if other.target.gate.quota != item.target.gate.quota {
            return Err(Error::config(
                "one key was given under two quotas of the same gate name: give each gate its own name",
            ));
        }
        other.cost = other.cost.saturating_add(item.cost);
        check_cost(other.cost, &item.target.gate.quota)?;
        // Gates of one name may have different settings: their denials count if one of them has a ban.
        if other.companion.is_none() || (other.ban().is_none() && item.ban().is_some()) {
            other.companion = item.companion;
        }
        other.max_delay_us = match (other.max_delay_us, item.max_delay_us) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.index_of.push(index);
        Ok(())
    }

    /// Returns how many of `n` takes of the group are sent: see [`sent`].
    pub(super) fn sent(&self, n: u64) -> u64 {
        self.items.iter().fold(n, |n, item| sent(&item.target.gate.quota, item.cost, n))
    }

    pub(super) fn first_check_of(&self, item: usize) -> Option<usize> {
        self.index_of.iter().position(|&index| index == item)
    }

    /// Returns one decision per check from one per item.
    pub(super) fn of_each_check(&self, decisions: Vec<Decision>) -> Vec<Decision> {
        match self.items.len() == self.index_of.len() {
            true => decisions,
            false => self.index_of.iter().map(|&index| decisions[index].clone()).collect(),
        }
    }
}

/// Returns the largest number of `n` checks of this cost that the limit can ever admit at once.
pub(super) fn most(quota: &Quota, cost: u64, n: u64) -> u64 {
    quota.limit().checked_div(cost).map_or(n, |most| n.min(most))
}

/// Returns how many of `n` checks of this cost are sent. More would not change the decision, and may exceed the numbers
/// that scripts compute exactly: at most the limit is admitted, and a quota that counts denied checks charges at most its
/// limit for them.
pub(super) fn sent(quota: &Quota, cost: u64, n: u64) -> u64 {
    n.min(2 * most(quota, cost, MAX_UNITS) + 1)
}

/// Checks that all keys share a cluster slot, as a script requires.
fn check_hash_tags(requests: &[&Request<'_>], items: &[GroupItem]) -> Result<(), Error> {
    let apart = items.iter().position(|item| item.target.hash_tag != items[0].target.hash_tag);
    apart.map_or(Ok(()), |apart| {
        let text = "its key lies in another slot of the Redis Cluster than that of the first check, and one atomic step cannot reach both: check for the same key, or let one sit beside the other (Check::colocate_with); in a file of rules, say `charge: each`";
        Err(requests[apart].with_context(Error::config(text)))
    })
}

/// Checks that one script can decide all gates: that of replicated gates, or that of the others.
fn check_replicated(requests: &[&Request<'_>], items: &[GroupItem], verb: Verb<'_>) -> Result<(), Error> {
    let is_replicated = |item: &GroupItem| item.target.gate.is_replicated();
    let Some(at) = items.iter().position(is_replicated) else { return Ok(()) };
    let text = if matches!(verb, Verb::Reserve(_)) {
        "a replicated gate keeps no holds of reservations: reserve its units by `Gate::reserve`"
    } else if !items.iter().all(is_replicated) {
        "one atomic step cannot decide a replicated gate together with others: check the two kinds one after the other"
    } else {
        return Ok(());
    };
    Err(requests[at].with_context(Error::config(text)))
}

/// Combines the decisions on these requests; `binds` selects those that can bind.
pub(super) fn decision(
    allowed: bool,
    requests: &[Request<'_>],
    decisions: Vec<Decision>,
    binds: impl Fn(usize) -> bool,
) -> AllDecision {
    let charges = || (0..decisions.len()).filter(|&at| binds(at));
    let retry_after = charges().map(|at| decisions[at].retry_after()).max().unwrap_or_default();
    let binding = binding(charges(), &decisions, allowed);
    let binding_key = requests.get(binding).map(|request| RedactedKey::new(&request.key));
    AllDecision { allowed, binding, binding_key, retry_after, decisions: decisions.into() }
}

/// Returns the binding decision. If denied: the longest wait. If allowed: the smallest share left. The first
/// one among equals.
fn binding(charges: impl Iterator<Item = usize>, decisions: &[Decision], allowed: bool) -> usize {
    let tighter = |a: &Decision, b: &Decision| match allowed {
        true => u128::from(a.remaining) * u128::from(b.limit) < u128::from(b.remaining) * u128::from(a.limit),
        false => a.retry_after_us > b.retry_after_us,
    };
    let tightest = |best, at| if tighter(&decisions[at], &decisions[best]) { at } else { best };
    charges.reduce(tightest).unwrap_or(0)
}
