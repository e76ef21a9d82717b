//! The two kinds of overrides: the mode of a gate, and the quota of a key.

use std::time::Duration;

use crate::error::Error;
use crate::error::redact::RedactedKey;
use crate::quota::Quota;

/// The mode of a gate, which replaces or overlays its quota: an operator's override for the whole fleet, set
/// by [`Control::switch`](crate::Control::switch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Switch {
    /// Admits every check without charging it or calling the store.
    Open,
    /// Denies every check with a retry time of one second, without calling the store.
    Closed,
    /// Decides and charges every check as usual, and admits it even if denied:
    /// [`Decision::is_shadow`](crate::Decision::is_shadow) tells which checks would have been denied. A check
    /// that the gate cannot decide is admitted too: see [`Gate::shadow`](crate::Gate::shadow).
    Shadow,
}

impl Switch {
    const ALL: [Self; 3] = [Self::Open, Self::Closed, Self::Shadow];

    /// Returns the label used in Redis and texts, such as `open`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Shadow => "shadow",
        }
    }
}

impl std::fmt::Display for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Switch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|switch| switch.as_str() == text);
        found.ok_or_else(|| Error::config(format!("no switch is {text:?}: use `open`, `closed` or `shadow`")))
    }
}

/// An active override, from [`Control::overrides`](crate::Control::overrides). `Debug` redacts the key.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Override {
    /// Applies to all keys of a gate.
    #[non_exhaustive]
    Switch {
        /// The gate's name.
        gate: String,
        /// The mode of the gate.
        switch: Switch,
        /// `None`: until it is removed.
        ends_in: Option<Duration>,
    },
    /// Applies to one key of a gate.
    #[non_exhaustive]
    Quota {
        /// The gate's name.
        gate: String,
        /// The key as written in Redis: see [`KeyMode`](crate::KeyMode).
        key: String,
        /// The quota that decides instead of the gate's.
        quota: Quota,
        /// `None`: until it is removed.
        ends_in: Option<Duration>,
    },
}

/// Keys may be personal data.
impl std::fmt::Debug for Override {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Switch { gate, switch, ends_in } => f
                .debug_struct("Switch")
                .field("gate", gate)
                .field("switch", switch)
                .field("ends_in", ends_in)
                .finish(),
            Self::Quota { gate, key, quota, ends_in } => f
                .debug_struct("Quota")
                .field("gate", gate)
                .field("key", &RedactedKey::new(key.as_bytes()))
                .field("quota", quota)
                .field("ends_in", ends_in)
                .finish(),
        }
    }
}
