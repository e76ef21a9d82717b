//! A process as a client of the store: what it believes to hold, and the messages that it sends.

use super::call::{Group, Item, KEYS, Limit, Message, Name, Outcome};

#[derive(Clone, Debug)]
pub struct Process {
    pub ttl_us: u64,
    /// `None` until it opens a lease, and after it learned that its lease has lapsed.
    pub name: Option<Name>,
    /// The end of the lease as the last answered heartbeat reported it.
    pub lease_end_us: u64,
    number: u64,
    /// For each key, the units whose admission was reported and that were not released since.
    pub held: [u64; KEYS],
    /// For each key, whether the store may have lost the entry.
    pub is_unrestored: [bool; KEYS],
    /// The last messages, if no reply to them arrived.
    pub unanswered: Option<Vec<Group>>,
    /// For each key, until when messages without a reply may arrive; 0 once a later message was answered.
    pub in_doubt_until_us: [u64; KEYS],
}

impl Process {
    pub fn new(ttl_us: u64) -> Self {
        Self {
            ttl_us,
            name: None,
            lease_end_us: 0,
            number: 0,
            held: [0; KEYS],
            is_unrestored: [false; KEYS],
            unanswered: None,
            in_doubt_until_us: [0; KEYS],
        }
    }

    /// Returns whether the process keeps no record of a key: it holds nothing, and no message may still arrive.
    pub fn has_forgotten(&self, key: usize) -> bool {
        self.held[key] == 0 && self.in_doubt_until_us[key] == 0
    }

    /// Records that another lease begins, under which nothing was reported yet.
    pub fn forget_name(&mut self, restores: bool) {
        self.name = None;
        self.unanswered = None;
        self.in_doubt_until_us = [0; KEYS];
        self.is_unrestored = [true; KEYS];
        if !restores {
            self.held = [0; KEYS];
        }
    }

    /// Makes the item of the next message about a key. The process releases `released` units.
    ///
    /// # Panics
    ///
    /// Panics if the process has no lease.
    pub fn item(&mut self, key: usize, limit: Limit, cost: u64, released: u64) -> Item {
        self.number += 1;
        self.held[key] -= released;
        let message = Message {
            holder: self.name.clone().unwrap(),
            lease_end_us: self.lease_end_us,
            number: self.number,
            keep: Some(self.held[key]),
        };
        Item::Permit { key, limit, cost, message: Some(message) }
    }

    /// Makes the item of a message about a key that an earlier group of the same call has a message about.
    ///
    /// # Panics
    ///
    /// Panics if the process has no lease.
    pub fn shared_item(&mut self, key: usize, limit: Limit, cost: u64) -> Item {
        let Item::Permit { message: Some(message), .. } = self.item(key, limit, cost, 0) else {
            unreachable!("a message was made");
        };
        Item::Permit { key, limit, cost, message: Some(Message { keep: None, ..message }) }
    }

    /// Records that a message about each of these keys may arrive until the end of the lease, or the bound.
    pub fn doubt(&mut self, groups: &[Group], bound: Option<u64>) {
        for (key, _) in groups.iter().flat_map(Group::permits) {
            let until_us = bound.map_or(self.lease_end_us, |bound| bound.min(self.lease_end_us));
            self.in_doubt_until_us[key] = self.in_doubt_until_us[key].max(until_us);
        }
    }

    /// Records the reply to a group.
    pub fn record(&mut self, group: &Group, outcome: &Outcome, now: u64) {
        for item in &group.items {
            if let Item::Permit { key, cost, message: Some(message), .. } = item {
                self.held[*key] = message.keep.unwrap_or(self.held[*key]) + outcome.k * cost;
                if self.in_doubt_until_us[*key] <= now {
                    self.in_doubt_until_us[*key] = 0;
                }
            }
        }
    }
}
