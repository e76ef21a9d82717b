//! A check on its way through the pipeline: the gate's settings, the key, the cost, and the options.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::in_flight::OnLapse;
use crate::in_flight::adaptive::Adaptive;
use crate::local::lease::Leases;
use crate::local::on_failure::OnFailure;
use crate::observe::figures::GateCounters;
use crate::quota::Quota;
use crate::quota::ban::Ban;
use crate::runtime::sharded_arc::ShardedArc;
use crate::store::{Companion, GateInfo, GroupItem, Target};

/// The settings of a gate that decide its checks. Operators' overrides and switches replace them.
#[derive(Clone)]
pub(crate) struct GateSpec {
    pub(crate) info: Result<Arc<ShardedArc<GateInfo>>, Error>,
    pub(crate) on_failure: OnFailure,
    /// Whether checks that are denied, or that cannot be decided, are admitted.
    pub(crate) is_shadow: bool,
    pub(crate) leases: Option<Arc<Leases>>,
    /// Only acquires read it.
    pub(crate) on_lapse: OnLapse,
    /// Only acquires read it.
    pub(crate) adaptive: Option<Adaptive>,
    /// Whether checks also end the holds of their key that have ended.
    pub(crate) ends_holds: bool,
    /// The ban that denials of a key lead to.
    pub(crate) ban: Option<Ban>,
    /// Whether checks charge units that were used already, whatever the state.
    pub(crate) charges_used: bool,
}

/// One check.
#[derive(Clone)]
pub(crate) struct Request<'a> {
    /// Shared with the gate: a request that is kept costs no copy of it.
    pub(crate) gate: Cow<'a, Arc<GateSpec>>,
    pub(crate) key: Cow<'a, [u8]>,
    /// 0 peeks.
    pub(crate) cost: u64,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) colocate_with: Option<Cow<'a, [u8]>>,
    /// The largest number of units of an in-flight limit that may be held after an acquire.
    pub(crate) at_most: Option<u64>,
    /// The limit of the quota before `at_most` lowered it; `None` if it did not.
    pub(crate) whole_limit: Option<u64>,
}

impl GateSpec {
    #[inline]
    pub(crate) fn info(&self) -> Result<&Arc<GateInfo>, Error> {
        match &self.info {
            Ok(infos) => Ok(infos.mine()),
            Err(error) => Err(error.clone()),
        }
    }

    /// Returns the counters of the fleet's figures, if this process publishes any.
    #[inline]
    pub(crate) fn counters(&self) -> Option<&GateCounters> {
        self.info.as_ref().ok()?.mine().counters.as_deref()
    }

    /// Returns the second key that a check of this gate needs. Peeks, and gates in shadow mode, count no denials.
    fn companion(&self, cost: u64) -> Option<Companion> {
        match self.ban {
            Some(ban) if !self.is_shadow && cost > 0 => Some(Companion::Ban { ban, is_grant: false }),
            _ => self.ends_holds.then_some(Companion::Holds(None)),
        }
    }

    /// Checks that the gate's settings permit each other.
    pub(crate) fn check_settings(&self) -> Result<(), Error> {
        if self.charges_used && (self.ban.is_some() || self.leases.is_some()) {
            return Err(Error::config(
                "a gate that charges units used cannot have a ban or leases, which decide before units are used: give \
                 them to another gate",
            ));
        }
        if (self.charges_used || self.ban.is_some() || self.ends_holds) && self.info()?.is_replicated() {
            return Err(Error::config(
                "a replicated gate cannot have a ban or `holds`, nor charge units used: give them to another gate",
            ));
        }
        let Some(ban) = &self.ban else { return Ok(()) };
        ban.validate()?;
        let conflict = if self.info()?.quota.is_in_flight() {
            "an in-flight limit cannot have a ban: units in use deny, not many checks. Add a gate with a rate and the ban"
        } else if self.ends_holds {
            "a gate cannot have both a ban and `holds`: give the ban to another gate, and check that one first"
        } else if self.leases.is_some() {
            "a gate cannot have both a ban and leases: denials caused by units that other processes lease would count. Remove one of the two"
        } else {
            return Ok(());
        };
        Err(Error::config(conflict))
    }
}

impl std::fmt::Debug for GateSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.info() {
            Ok(info) => write!(f, "Gate({:?}, {})", info.name, info.quota),
            Err(error) => write!(f, "Gate({error})"),
        }
    }
}

impl<'a> Request<'a> {
    #[inline]
    pub(crate) fn new(gate: &'a Arc<GateSpec>, key: &'a [u8], cost: u64) -> Self {
        let (gate, key) = (Cow::Borrowed(gate), Cow::Borrowed(key));
        Self {
            gate,
            key,
            cost,
            max_delay: None,
            deadline: None,
            colocate_with: None,
            at_most: None,
            whole_limit: None,
        }
    }

    pub(crate) fn borrowed(&self) -> Request<'_> {
        Request {
            gate: Cow::Borrowed(&*self.gate),
            key: Cow::Borrowed(&*self.key),
            colocate_with: self.colocate_with.as_deref().map(Cow::Borrowed),
            ..*self
        }
    }

    pub(crate) fn into_owned(self) -> Request<'static> {
        Request {
            gate: Cow::Owned(self.gate.into_owned()),
            key: Cow::Owned(self.key.into_owned()),
            colocate_with: self.colocate_with.map(|key| Cow::Owned(key.into_owned())),
            cost: self.cost,
            max_delay: self.max_delay,
            deadline: self.deadline,
            at_most: self.at_most,
            whole_limit: self.whole_limit,
        }
    }

    #[inline]
    pub(crate) fn target(&self) -> Result<Target, Error> {
        Ok(Target::new(self.gate.info()?, &self.key, self.colocate_with.as_deref()))
    }

    #[inline]
    pub(crate) fn item(&self) -> Result<GroupItem, Error> {
        let item = self.item_to_acquire()?;
        if self.cost > 0 {
            check_is_charged(&item.target.gate.quota)?;
        }
        Ok(item)
    }

    /// Returns an item that may be of an in-flight limit. Its message is still to be set.
    #[inline]
    pub(crate) fn item_to_acquire(&self) -> Result<GroupItem, Error> {
        let target = self.target()?;
        check_cost(self.cost, &target.gate.quota)?;
        let max_delay_us = self.max_delay_us(&target.gate.quota);
        let companion = self.gate.companion(self.cost).map(Box::new);
        Ok(GroupItem { max_delay_us, companion, ..GroupItem::new(target, self.cost) })
    }

    /// Returns the longest accepted delay, capped at 2^52 µs, which is beyond any clock.
    ///
    /// `None` where the algorithm has no delay: checks that differ in nothing else are equal, so they merge
    /// and share cached denials.
    #[inline]
    pub(crate) fn max_delay_us(&self, quota: &Quota) -> Option<u64> {
        let delay = self.max_delay.filter(|_| quota.has_queue())?;
        Some(u64::try_from(delay.as_micros()).unwrap_or(u64::MAX).min(1 << 52))
    }

    /// Returns whether the gate has an in-flight limit.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.gate.info().is_ok_and(|info| info.quota.is_in_flight())
    }

    /// Returns whether the check charges units that were used already.
    #[inline]
    pub(crate) fn charges_used(&self) -> bool {
        self.gate.charges_used && self.cost > 0
    }

    /// Returns the gate's leases if they can hold units of this key: those of a colocated key are counted
    /// elsewhere.
    #[inline]
    pub(crate) fn leases(&self) -> Option<&Arc<Leases>> {
        let leases = self.gate.leases.as_ref()?;
        let prefix = &self.gate.info().ok()?.prefix;
        prefix.is_under_its_own_hash_tag(&self.key, self.colocate_with.as_deref()).then_some(leases)
    }

    /// Returns a decision that does not depend on the units used.
    pub(crate) fn fixed_decision(&self, is_allowed: bool, source: Source) -> Result<Decision, Error> {
        let info = self.gate.info()?;
        Ok(Decision::fixed(info.name, info.quota.limit(), is_allowed, source))
    }

    /// Adds the gate and the key to an error.
    pub(crate) fn with_context(&self, error: Error) -> Error {
        match self.gate.info() {
            Ok(info) => error.with_context(info.name, &self.key),
            Err(_) => error,
        }
    }
}

/// Returns an error for a deadline before which no check can be decided.
pub(crate) fn check_deadline(setting: &str, deadline: Duration) -> Result<(), Error> {
    match deadline.is_zero() {
        true => Err(Error::config(format!(
            "`{setting}` must be above zero, such as 100 ms: with a deadline of zero, Redis could decide no check"
        ))),
        false => Ok(()),
    }
}

#[inline]
pub(crate) fn check_cost(cost: u64, quota: &Quota) -> Result<(), Error> {
    match cost > quota.limit() {
        true => Err(Error::over_capacity(cost, quota.limit())),
        false => Ok(()),
    }
}

/// Returns an error for an in-flight limit: a check of it would have no owner to release its units.
#[inline]
pub(crate) fn check_is_charged(quota: &Quota) -> Result<(), Error> {
    match quota.is_in_flight() {
        true => Err(held_not_charged()),
        false => Ok(()),
    }
}

#[cold]
fn held_not_charged() -> Error {
    Error::config(
        "units of an in-flight limit are held until they are released: call `acquire` or `acquire_all` instead",
    )
}
