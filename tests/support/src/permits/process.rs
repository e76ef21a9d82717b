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
        }
    }

    /// Records that another lease begins, under which nothing was reported yet.
    pub fn forget_name(&mut self, restores: bool) {
        self.name = None;
        self.unanswered = None;
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
    pub fn item(&mut self, key: usize, limit: Limit, cost: u64, released: u64, waits: bool) -> Item {
        self.number += 1;
        self.held[key] -= released;
        let message = Message {
            holder: self.name.clone().unwrap(),
            lease_end_us: self.lease_end_us,
            number: self.number,
            keep: self.held[key],
            waits,
        };
        Item::Permit { key, limit, cost, message: Some(message) }
    }

    /// Records the reply to a group.
    pub fn record(&mut self, group: &Group, outcome: &Outcome) {
        for item in &group.items {
            if let Item::Permit { key, cost, message: Some(message), .. } = item {
                self.held[*key] = message.keep + outcome.k * cost;
            }
        }
    }
}
