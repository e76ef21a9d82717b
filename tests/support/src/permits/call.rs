//! The calls that processes make to a store, and its replies.

use tidegate::reference::Before;

/// The number of keys with an in-flight limit. A third key has a token bucket.
pub const KEYS: usize = 2;
/// How long a key is kept after its last write, in µs: rule 14.
pub const KEPT_US: u64 = 3_600_000_000;

/// A holder's name, which ends in `/` and its ttl in ms.
pub type Name = String;

/// Returns the ttl that a holder's name contains.
pub fn ttl_us(name: &str) -> u64 {
    name.rsplit_once('/').unwrap().1.parse::<u64>().unwrap() * 1_000
}

/// The numbers of an in-flight quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub units: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// With the time from which on the store refuses it; `None` if its sender does not know the store's time.
    Take(Vec<Group>, Option<u64>),
    Lease(LeaseVerb, Name),
    /// 0 lifts the block.
    Block {
        key: usize,
        limit: Limit,
        for_us: u64,
    },
    /// The store loses state, as by FLUSHALL, an eviction or a failover.
    Lose(Loss),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseVerb {
    Open,
    Renew,
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    Everything,
    Key(usize),
    Leases,
}

/// `n` equal acquires, each of which needs every item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub n: u64,
    pub items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Permit {
        key: usize,
        limit: Limit,
        cost: u64,
        /// `None` peeks.
        message: Option<Message>,
    },
    Bucket {
        cost: u64,
    },
}

/// A holder's message about a key: rule 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub holder: Name,
    /// The end of the holder's lease as the sender knew it.
    pub lease_end_us: u64,
    pub number: u64,
    /// `None` for the units that an earlier group of the call has left.
    pub keep: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// One for each group.
    Take(Vec<Result<Outcome, Refusal>>),
    /// The take arrived after all its callers had given it up.
    Late,
    /// The end of the lease.
    Lease(Result<u64, Refusal>),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Lapsed,
    Stale,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub k: u64,
    /// One for each item. Of a permit, the raw numbers are held', `sure until`, and 0.
    pub before: Vec<Before>,
}

impl Call {
    /// Returns whether the call reads or writes the leases.
    pub fn names_leases(&self) -> bool {
        match self {
            Self::Take(..) | Self::Lease(..) => true,
            Self::Block { .. } => false,
            Self::Lose(loss) => !matches!(loss, Loss::Key(_)),
        }
    }

    /// Returns the keys of in-flight limits that the call names, each once.
    pub fn keys(&self) -> Vec<usize> {
        let mut keys: Vec<usize> = match self {
            Self::Take(groups, _) => groups.iter().flat_map(Group::permits).map(|(key, _)| key).collect(),
            Self::Lease(..) | Self::Lose(Loss::Leases) => Vec::new(),
            Self::Block { key, .. } | Self::Lose(Loss::Key(key)) => vec![*key],
            Self::Lose(Loss::Everything) => (0..KEYS).collect(),
        };
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns whether several groups of the call name a key.
    pub fn names_repeatedly(&self, key: usize) -> bool {
        match self {
            Self::Take(groups, _) => groups.iter().filter(|group| group.message(key).is_some()).count() > 1,
            _ => false,
        }
    }

    /// Returns whether the call names the token bucket.
    pub fn names_bucket(&self) -> bool {
        match self {
            Self::Take(groups, _) => {
                groups.iter().flat_map(|group| &group.items).any(|item| matches!(item, Item::Bucket { .. }))
            }
            Self::Lose(loss) => *loss == Loss::Everything,
            Self::Lease(..) | Self::Block { .. } => false,
        }
    }
}

impl Item {
    pub const fn cost(&self) -> u64 {
        match self {
            Self::Permit { cost, .. } | Self::Bucket { cost } => *cost,
        }
    }

    pub const fn message(&self) -> Option<&Message> {
        match self {
            Self::Permit { message, .. } => message.as_ref(),
            Self::Bucket { .. } => None,
        }
    }
}

impl Group {
    /// Returns the keys of in-flight limits with their messages.
    pub fn permits(&self) -> impl Iterator<Item = (usize, Option<&Message>)> {
        self.items.iter().filter_map(|item| match item {
            Item::Permit { key, message, .. } => Some((*key, message.as_ref())),
            Item::Bucket { .. } => None,
        })
    }

    /// Returns the message about a key.
    pub fn message(&self, key: usize) -> Option<&Message> {
        self.permits().find(|(other, _)| *other == key).and_then(|(_, message)| message)
    }
}
