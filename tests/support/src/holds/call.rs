//! Calls on three gates with holds, as they are sent, and their replies.

use tidegate::reference::Before;

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    pub now_us: u64,
    pub verb: Verb,
}

/// Gates are indices. Each gate has one key.
#[derive(Clone, Debug)]
pub enum Verb {
    Nothing,
    /// Checks on gates that are not declared `.holds()`: they do not see holds.
    Check(Group),
    /// Checks on gates of which some are declared `.holds()`, and reservations.
    Take(Vec<Group>),
    /// Commits the units of a token. A cancel commits 0 units.
    Settle(Vec<SettleItem>, Token),
    /// Charges units without a check.
    Penalize(usize, u64),
    /// Refunds units that were charged now.
    Refund(usize, u64),
    /// Blocks the key for a time, in µs. 0 lifts the block.
    Block(usize, u64),
    /// Removes the state and the holds of a key.
    Reset(usize),
    /// The server loses the state of a key.
    LoseState(usize),
    /// The server loses the holds of a key.
    LoseHolds(usize),
}

#[derive(Clone, Debug)]
pub struct Group {
    pub n: u64,
    pub items: Vec<Item>,
    /// Set for a reservation.
    pub hold: Option<Token>,
}

#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub gate: usize,
    pub cost: u64,
    pub max_delay: Option<u64>,
    /// Whether the call names the holds of the gate. In one call, this is the same for all items of a gate.
    pub names_holds: bool,
}

/// The parts of a token that all its items share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub ttl_us: u64,
    pub is_refunded: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct SettleItem {
    pub gate: usize,
    /// The units that were reserved.
    pub units: u64,
    pub actual: u64,
}

/// What a settle did for one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Settled,
    Late,
    Nothing,
}

/// The reply to a group.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The number of admitted checks.
    pub k: u64,
    /// The state of each item before.
    pub before: Vec<Before>,
    /// The items (from 0) whose hold existed.
    pub repeated: Vec<usize>,
}

#[derive(Clone, Debug)]
pub enum Reply {
    Taken(Vec<Taken>),
    Settled(Vec<Settled>),
    Done,
}

/// The holds of one key, in the order in which they end.
pub type Holds = Vec<Hold>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub id: String,
    pub units: u64,
    pub ttl_us: u64,
    pub phase: Phase,
    /// When the phase ends.
    pub end_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Open. At its end the charge stays.
    Keep,
    /// Open. At its end the units are refunded.
    Back,
    /// Ended. A commit charges the units that are not charged.
    Late,
}

impl Verb {
    /// Returns the gates whose holds the call names, in the order of the call.
    pub fn names_holds_of(&self) -> Vec<usize> {
        let named: Vec<usize> = match self {
            Self::Take(groups) => {
                let items = groups.iter().flat_map(|group| &group.items);
                items.filter(|item| item.names_holds).map(|item| item.gate).collect()
            }
            Self::Settle(items, _) => items.iter().map(|item| item.gate).collect(),
            _ => Vec::new(),
        };
        let mut gates = Vec::new();
        for gate in named {
            if !gates.contains(&gate) {
                gates.push(gate);
            }
        }
        gates
    }
}
