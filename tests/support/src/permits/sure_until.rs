//! The part of the oracle about `sure until`: the time up to which a store may use a stored sum.

use super::call::{Message, Name, ttl_us};
use super::oracle::Oracle;

/// The ttl that a peek, which has no holder, is compared with.
const PEEK_TTL_US: u64 = 60_000_000;

impl Oracle {
    /// Returns whether a store may use the stored sum without looking at the leases: rule 15 and section 4.2.
    pub(super) fn is_cached(&self, key: usize, sender: &str, now: u64) -> bool {
        let sure_until = self.state.keys[key].as_ref().map_or(0, |kept| kept.value.sure_until_us);
        let ttl = if sender.is_empty() { PEEK_TTL_US } else { ttl_us(sender) };
        now < sure_until && sure_until <= now + ttl
    }

    /// Checks that no holder of the key can lapse before `sure until` (rule 7), and that it is not needlessly
    /// early.
    pub(super) fn check_sure_until(
        &self,
        key: usize,
        message: Option<&Message>,
        sure_until: u64,
        now: u64,
    ) -> Result<(), String> {
        let sender = message.map_or("", |message| &*message.holder);
        let is_cached = self.is_cached(key, sender, now);
        let Some(permits) = &self.state.keys[key] else { return Ok(()) };
        let cached = permits.value.sure_until_us;
        let mut earliest = if is_cached { cached } else { u64::MAX };
        let names = permits.value.entries.keys();
        for name in names.clone() {
            let end = self.state.lease_end(name).filter(|end| now < *end);
            let is_permitted_by_cache =
                is_cached && self.disturbed[key].contains(name) && sure_until <= cached;
            if !is_permitted_by_cache && end.is_some_and(|end| end < sure_until) {
                return Err(format!("{name} can lapse at {end:?}, which is before sure until"));
            }
            earliest = earliest.min(end.map_or(u64::MAX, |end| end.min(now + ttl_us(name))));
        }
        if let Some(message) = message {
            let end = self.state.lease_end(&message.holder).unwrap_or(0);
            earliest = earliest.min(end.min(now + ttl_us(&message.holder)));
        }
        // What an earlier group of the call has read, and not written, is not known here.
        let is_first = message.is_none_or(|message| message.keep.is_some());
        if is_first && names.len() > 0 && earliest != u64::MAX && sure_until < earliest {
            return Err(format!("nothing can change before {earliest}, which is after sure until"));
        }
        Ok(())
    }

    pub(super) fn store_sure_until(&mut self, key: usize, sender: &str, sure_until: u64, now: u64) {
        let is_cached = self.is_cached(key, sender, now);
        if let Some(permits) = &mut self.state.keys[key] {
            if !is_cached || sure_until > permits.value.sure_until_us {
                self.disturbed[key].clear();
            }
            permits.value.sure_until_us = sure_until;
        }
    }

    /// Records that these leases end before their stored end.
    pub(super) fn disturb(&mut self, names: impl IntoIterator<Item = Name>) {
        for name in names {
            for disturbed in &mut self.disturbed {
                disturbed.insert(name.clone());
            }
        }
    }
}
