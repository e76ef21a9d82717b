//! What a token says.

use std::fmt;
use std::sync::Arc;

use super::base64url;
use crate::error::gate_name::GateName;
use crate::key::HashTag;
use crate::quota::Quota;

/// The maximum number of checks of a reservation: those of one atomic step.
pub(super) const MAX_ITEMS: usize = 128;

/// The content of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) id: Id,
    pub(super) ttl_ms: u64,
    /// Whether the units are refunded when the hold ends. Otherwise they stay charged.
    pub(super) is_refunded: bool,
    /// The limiter that decided while Redis was unavailable.
    pub(super) issuer: Option<u32>,
    /// Whether a signature follows.
    pub(super) is_signed: bool,
    /// One per check.
    pub(super) items: Vec<TokenItem>,
}

/// The identity of a reservation: unpredictable, since a client that guesses it can settle the reservation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id(pub(super) [u8; 12]);

/// One check of a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenItem {
    pub(super) gate: GateName,
    /// The quota that was charged, which may since have been overridden.
    pub(super) quota: Quota,
    /// The key as written in Redis, which hides it if the key mode does.
    pub(super) key: Box<str>,
    pub(super) hash_tag: HashTag,
    /// The units that the store or the fallback has charged. For [`Charge::Uncharged`] and
    /// [`Charge::UnchargedApart`], those that the store may have
    /// charged without an answer.
    pub(super) units: u64,
    pub(super) charge: Charge,
}

/// How a check was charged, which determines how it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge {
    /// The store holds the units, together with those of the other held checks.
    Held,
    /// The store holds the units under an id of their own: the gate is in shadow mode.
    HeldApart,
    /// Redis was unavailable, and the fallback of the issuer charged the units.
    Local,
    /// Redis was unavailable, and the failure policy admitted without a charge.
    Uncharged,
    /// Nothing to settle: a switch decided, the cost is 0, or shadow mode admitted a denied check.
    Exempt,
    /// As [`Local`](Self::Local), for a gate in shadow mode: a hold without a reply has an id of its own.
    LocalApart,
    /// As [`Uncharged`](Self::Uncharged), for a gate in shadow mode.
    UnchargedApart,
}

impl Charge {
    /// Returns whether a token can have this number of units.
    pub(super) const fn allows(self, units: u64) -> bool {
        match self {
            Self::Held | Self::HeldApart | Self::Local | Self::LocalApart => units > 0,
            Self::Uncharged | Self::UnchargedApart => true,
            Self::Exempt => units == 0,
        }
    }

    /// Returns whether the hold of the check, if there is one, has an id of its own.
    pub(super) const fn is_apart(self) -> bool {
        matches!(self, Self::HeldApart | Self::LocalApart | Self::UnchargedApart)
    }

    /// Returns whether the fallback of the issuer charged the units.
    pub(super) const fn is_local(self) -> bool {
        matches!(self, Self::Local | Self::LocalApart)
    }
}

impl TokenItem {
    /// Returns whether the check was admitted while Redis was unavailable.
    pub(super) const fn is_unheld(&self) -> bool {
        self.charge.is_local() || matches!(self.charge, Charge::Uncharged | Charge::UnchargedApart)
    }
}

impl Id {
    /// Returns the id as written in Redis.
    pub(super) fn text(self) -> Arc<str> {
        base64url::encode(&self.0).into()
    }
}

/// Shows only a part of the id: with the whole, a reader could settle the reservation.
impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", &base64url::encode(&self.0[..3]))
    }
}

/// Returns an error unless the ttl is 1 s to 24 h.
pub(super) const fn check_ttl_ms(ttl_ms: u64) -> Result<(), &'static str> {
    match ttl_ms {
        1_000..=86_400_000 => Ok(()),
        _ => Err("its ttl is not 1 s to 24 h"),
    }
}
