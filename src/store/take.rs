//! The one primitive of a store: deciding and charging a group of keys in one atomic step.

use std::sync::Arc;

use smallvec::SmallVec;

use super::target::Target;
use crate::key::HashTag;
use crate::quota::algorithm::EXACT;
use crate::quota::ban::Ban;
use crate::quota::reference::Before;
use crate::quota::reference::holds::NewHold;

/// One gate's part in a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupItem {
    pub(crate) target: Target,
    pub(crate) cost: u64,
    /// The longest delay that the caller accepts; always `None` except for a leaky bucket.
    pub(crate) max_delay_us: Option<u64>,
    /// Set for acquires of permits, for reservations, and for gates with a ban.
    pub(crate) companion: Option<Box<Companion>>,
}

impl GroupItem {
    /// Makes an item that needs nothing besides the state of its key, and accepts any delay.
    pub(crate) const fn new(target: Target, cost: u64) -> Self {
        Self { target, cost, max_delay_us: None, companion: None }
    }

    /// Makes this hold of the charge. An item of cost 0 charges nothing, so it holds nothing.
    pub(crate) fn held(mut self, hold: &NewHold) -> Self {
        if self.cost > 0 {
            self.companion = Some(Box::new(Companion::Holds(Some(hold.clone()))));
        }
        self
    }

    /// Returns whether the key has holds, and the hold to be made of the charge.
    pub(super) fn holds(&self) -> Option<Option<&NewHold>> {
        match self.companion.as_deref() {
            Some(Companion::Holds(hold)) => Some(hold.as_ref()),
            _ => None,
        }
    }

    /// Returns the ban that denials of the key can lead to.
    pub(crate) fn ban(&self) -> Option<&Ban> {
        match self.companion.as_deref() {
            Some(Companion::Ban { ban, .. }) => Some(ban),
            _ => None,
        }
    }

    /// Returns the item without a ban, whose denials are then not counted.
    fn uncounted(&self) -> Self {
        self.with_companion(|_| self.ban().is_none())
    }

    /// Returns the item without a second key, if it can be decided without: ended holds are then not settled, and
    /// denials not counted.
    fn of_fewest_keys(&self) -> Self {
        let is_needed = |companion: &Companion| match companion {
            Companion::Message(_) | Companion::Holds(Some(_)) => true,
            Companion::Holds(None) | Companion::Ban { .. } => false,
        };
        self.with_companion(is_needed)
    }

    fn with_companion(&self, is_kept: impl Fn(&Companion) -> bool) -> Self {
        let companion = self.companion.clone().filter(|companion| is_kept(companion));
        Self { target: self.target.clone(), companion, ..*self }
    }

    /// Returns how long the item occupies the store, in units of [`MAX_WORK`].
    pub(crate) fn work(&self) -> u32 {
        let work = self.target.gate.quota.kind().definition().work;
        match self.companion.as_deref() {
            // Measured: two to three times as long, and a counted denial four to five times.
            Some(Companion::Ban { .. }) => 3 * work,
            Some(Companion::Holds(_)) => 2 * work,
            // Measured: 1.2 to 2.3 times as long.
            _ if self.target.gate.is_replicated() => 2 * work,
            _ => work,
        }
    }

    /// Makes this a part of a partial grant: see [`Companion::Ban`].
    pub(crate) fn of_grant(mut self) -> Self {
        if let Some(Companion::Ban { is_grant, .. }) = self.companion.as_deref_mut() {
            *is_grant = true;
        }
        self
    }
}

/// A unit of decision: `n` equal checks, each of which needs every item.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) items: SmallVec<[GroupItem; 1]>,
    /// 0 peeks.
    pub(crate) n: u64,
}

impl Group {
    /// Makes a group of one item. A cost of 0 makes it a peek at one unit.
    pub(crate) fn of_one(item: GroupItem) -> Self {
        let n = u64::from(item.cost > 0);
        Self { items: SmallVec::from_buf([GroupItem { cost: item.cost.max(1), ..item }]), n }
    }

    /// Returns the hash tag that all items share.
    pub(crate) fn hash_tag(&self) -> HashTag {
        self.items.first().map(|item| item.target.hash_tag).unwrap_or_default()
    }

    /// Returns how long the group occupies the store, in units of [`MAX_WORK`].
    pub(crate) fn work(&self) -> u32 {
        self.items.iter().map(GroupItem::work).sum()
    }

    /// Returns whether other regions hear of its charges. No group has gates of both kinds.
    pub(super) fn is_replicated(&self) -> bool {
        self.items.first().is_some_and(|item| item.target.gate.is_replicated())
    }

    /// Returns whether a key has holds, which are read in the same step. Groups with in-flight limits or bans leave
    /// the holds as they are.
    pub(super) fn has_holds(&self) -> bool {
        let is_in_flight = self.items.iter().any(|item| item.target.gate.quota.is_in_flight());
        self.items.iter().any(|item| item.holds().is_some()) && !is_in_flight && !self.has_bans()
    }

    /// Returns whether the denials of a key are counted in the same step. A peek counts none.
    pub(super) fn has_bans(&self) -> bool {
        self.n > 0 && self.items.iter().any(|item| item.ban().is_some())
    }

    /// Returns the group without bans: it decides and charges the same, and counts no denials.
    pub(crate) fn uncounted(&self) -> Self {
        Self { items: self.items.iter().map(GroupItem::uncounted).collect(), n: self.n }
    }

    /// Returns the group with as few keys as it can be decided with.
    pub(super) fn of_fewest_keys(&self) -> Self {
        Self { items: self.items.iter().map(GroupItem::of_fewest_keys).collect(), n: self.n }
    }

    /// Returns whether a call with this group may name several keys.
    pub(crate) fn has_several_keys(&self) -> bool {
        let has_second_key =
            |item: &GroupItem| item.companion.is_some() || item.target.gate.quota.is_in_flight();
        self.items.len() > 1 || self.items.iter().any(has_second_key)
    }

    /// Returns whether the group is a partial grant with at least one ban.
    pub(super) fn is_grant(&self) -> bool {
        let is_grant = |item: &GroupItem| match item.companion.as_deref() {
            Some(Companion::Ban { is_grant, .. }) => *is_grant,
            _ => false,
        };
        self.items.iter().any(is_grant)
    }

    /// Returns the hold to be made of each charge, if the group is a reservation.
    pub(super) fn new_hold(&self) -> Option<&NewHold> {
        self.items.iter().find_map(|item| item.holds().flatten())
    }
}

/// The maximum work of one call: about 0.6 ms of Redis's single thread, which is 128 levels, 85 counters or
/// 51 logs.
pub(crate) const MAX_WORK: u32 = 256;

/// The outcome of a group.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The number of checks admitted and charged.
    pub(crate) k: u64,
    /// One entry per item.
    pub(crate) before: SmallVec<[Before; 2]>,
    /// The server's clock, in µs since 1970.
    pub(crate) now_us: u64,
    /// The indices of the items whose hold existed: the reservation is repeated, and nothing was charged.
    pub(crate) repeated: Vec<usize>,
    /// The bans that begin with this take.
    pub(crate) bans: Vec<BeginningBan>,
    /// One entry per item, if other regions hear of the charges.
    #[cfg(feature = "regions")]
    pub(crate) replicated: Vec<crate::regions::reference::Taken>,
}

/// A ban that begins with a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeginningBan {
    /// The index of the item.
    pub(crate) item: usize,
    /// For how long its key is blocked, in µs.
    pub(crate) lasts_us: u64,
}

impl Outcome {
    /// Makes the outcome of a take without holds, bans and other regions.
    pub(crate) fn new(k: u64, before: SmallVec<[Before; 2]>, now_us: u64) -> Self {
        Self {
            k,
            before,
            now_us,
            repeated: Vec::new(),
            bans: Vec::new(),
            #[cfg(feature = "regions")]
            replicated: Vec::new(),
        }
    }

    /// Returns how long the ban lasts that begins for the item at this index, in µs.
    pub(crate) fn ban_of(&self, index: usize) -> Option<u64> {
        self.bans.iter().find(|ban| ban.item == index).map(|ban| ban.lasts_us)
    }

    /// Returns the state of the item at this index before the take, with the block of a ban that begins with it.
    pub(crate) fn before_with_ban(&self, index: usize) -> Before {
        let before = self.before[index];
        let banned_until_us = self.ban_of(index).map_or(0, |lasts_us| self.now_us + lasts_us);
        Before { blocked_until_us: before.blocked_until_us.max(banned_until_us), ..before }
    }
}

impl Outcome {
    /// Returns the time before which debt denies the item at this index, 0 if none does. `None` if a second state decided,
    /// too, since a peer is cut off.
    pub(crate) fn not_before_us(&self, _index: usize) -> Option<u64> {
        #[cfg(feature = "regions")]
        if let Some(taken) = self.replicated.get(_index) {
            return taken.share.is_none().then_some(taken.not_before_us);
        }
        Some(0)
    }

    /// Returns whether tidegate's scripts can have sent this reply.
    pub(super) fn is_possible(&self, group: &Group) -> bool {
        if group.is_replicated() {
            // The clock of the state may be ahead of `now`.
            return self.now_us <= EXACT && self.k <= group.n;
        }
        let mut found = group.items.iter().zip(&self.before).enumerate();
        let (k, n, now) = (self.k, group.n, self.now_us);
        let is_affordable = |index: usize, item: &GroupItem, before: &Before| {
            let quota = &item.target.gate.quota;
            // A repeated message or reservation gets the reply of the first one, whatever is held now.
            let is_message = matches!(item.companion.as_deref(), Some(Companion::Message(_)));
            let max_k = match is_message || self.repeated.contains(&index) {
                true => n,
                false => before.afford(quota, n, item.cost, item.max_delay_us, now),
            };
            quota.kind().algorithm().is_possible(before.raw, now) && k <= max_k
        };
        let begins = |ban: &BeginningBan| {
            let is_denied =
                k < n && self.before.get(ban.item).is_some_and(|item| item.blocked_until_us <= now);
            is_denied && group.items.get(ban.item).is_some_and(|item| item.ban().is_some())
        };
        now <= EXACT
            && found.all(|(index, (item, before))| is_affordable(index, item, before))
            && self.bans.iter().all(begins)
            && self.bans.is_sorted_by(|one, next| one.item < next.item)
    }
}

// What an item of a take needs in the store besides the state of its key.

/// A second key that the store reads and writes in the same step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Companion {
    /// A holder's message about a key of an in-flight limit. The second key holds the leases.
    Message(HolderMessage),
    /// The second key holds the open holds of the key. Those that have ended are settled first; then the
    /// charge of an admitted group becomes this hold.
    Holds(Option<NewHold>),
    /// The second key counts the denials of the key, which may lead to this ban.
    Ban {
        ban: Ban,
        /// Whether the group is a partial grant: its checks count as one.
        is_grant: bool,
    },
}

/// A holder's report about a key of an in-flight limit. The group's `n` and the item's cost are its acquires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderMessage {
    /// The holder's name, which ends in `/` and its ttl in ms: `web-1.3f2a/10000`.
    pub(crate) holder: Arc<str>,
    /// The end of the holder's lease as the sender knew it, in µs since 1970 by the server's clock.
    pub(crate) lease_end_us: u64,
    /// Increases from message to message of a holder. A message that is sent again keeps its number.
    pub(crate) number: u64,
    /// The units that the holder continues to hold; `None` for those that an earlier group of the call has left.
    pub(crate) keep: Option<u64>,
    /// Whether several groups of the call have messages about the same keys.
    pub(crate) is_shared: bool,
}
