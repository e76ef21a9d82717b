//! Bans: denials of one key that lead to a block. The script `ban` does the same on the server.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::reference::bans::{Counting, DenialCount, take};
//! use tidegate::reference::{Item, Record};
//! use tidegate::{Ban, Quota};
//!
//! let quota = Quota::fixed_window(1, Duration::from_secs(60));
//! let ban = Ban::after(2, Duration::from_secs(600)).lasting(Duration::from_secs(3_600));
//! let (mut record, mut denials) = (Record::default(), DenialCount::default());
//! let start = 1_767_225_600_000_000; // 2026-01-01 00:00 UTC
//! let mut check = |now| {
//!     let mut items = [Item::new(&quota, &mut record, 1, None)];
//!     let mut counting = [Some(Counting::new(&ban, &mut denials))];
//!     let k = take(&mut items, &mut counting, 1, now);
//!     (k, counting[0].as_ref().is_some_and(|counting| counting.begins))
//! };
//! assert_eq!(check(start), (1, false));
//! assert_eq!(check(start + 1), (0, false));
//! assert_eq!(check(start + 2), (0, true));
//! assert_eq!(check(start + 60_000_000), (0, false), "blocked, although the next window has begun");
//! assert_eq!(check(start + 3_600_000_002), (1, false));
//! ```

use super::Item;
use crate::quota::ban::Ban;

/// The number of denials of one key that count towards a ban. `DenialCount::default()` counts none; a store need not
/// keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DenialCount {
    /// The number of denials.
    pub count: u64,
    /// When their period ends, in ms since 1970. Redis then removes the key.
    pub ends_ms: u64,
}

impl DenialCount {
    /// Returns whether Redis has removed the key at `now`, in µs since 1970. Use `DenialCount::default()` in place of
    /// an expired count.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        now / 1_000 > self.ends_ms
    }

    /// Returns the denials that count at `now`. If there are none, a new period begins.
    fn at(self, ban: &Ban, now: u64) -> Self {
        let latest_ms = (now + ban.within_us()).div_ceil(1_000);
        match self.count > 0 && self.ends_ms * 1_000 > now {
            true => Self { ends_ms: self.ends_ms.min(latest_ms), ..self },
            false => Self { count: 0, ends_ms: latest_ms },
        }
    }
}

/// How the denials of one item of a take are counted.
#[derive(Debug)]
pub struct Counting<'a> {
    /// The ban that the denials can lead to. Durations above 10 years count as 10 years.
    pub ban: &'a Ban,
    /// The denials of the key, which must not have [expired](DenialCount::has_expired). [`take`] changes them.
    pub denials: &'a mut DenialCount,
    /// Whether the take is a partial grant: all its checks together count as one, denied if none is admitted.
    pub is_grant: bool,
    /// Whether the ban begins with this take; [`take`] sets it.
    pub begins: bool,
}

impl<'a> Counting<'a> {
    /// Counts each denied check.
    #[must_use]
    pub fn new(ban: &'a Ban, denials: &'a mut DenialCount) -> Self {
        Self { ban, denials, is_grant: false, begins: false }
    }

    /// Counts the checks that this item denied, of `n` at `now`, of which `k` were admitted.
    fn count(&mut self, item: &mut Item<'_>, (n, k): (u64, u64), now: u64) {
        self.begins = false;
        let denied = match self.is_grant {
            true => u64::from(n > 0 && k == 0),
            false => n - k,
        };
        // An item that could have admitted one more check denied none of the others.
        let could_admit = item.afford(n, now) > k;
        if denied == 0 || could_admit || item.before.blocked_until_us > now {
            return;
        }
        let found = self.denials.at(self.ban, now);
        let count = found.count + denied;
        self.begins = count >= self.ban.denials();
        if self.begins {
            item.record.block(item.quota, now + self.ban.lasts_us(), now);
            *self.denials = DenialCount::default();
        } else {
            *self.denials = DenialCount { count, ..found };
        }
    }
}

/// Decides `n` equal checks at `now`, each of which needs every item, as [`take`](super::take) does. Then counts
/// the checks that each item with a ban denied itself. Those that another item denied, or a block, do not count.
/// When the count reaches [`Ban::denials`], blocks the key for [`Ban::lasts`]. Returns the number of admitted
/// checks.
///
/// `counting` has one entry per item; `None` for an item without a ban.
pub fn take(items: &mut [Item<'_>], counting: &mut [Option<Counting<'_>>], n: u64, now: u64) -> u64 {
    let k = super::take(items, n, now);
    for (item, counting) in items.iter_mut().zip(counting) {
        if let Some(counting) = counting {
            counting.count(item, (n, k), now);
        }
    }
    k
}
