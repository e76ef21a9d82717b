//! The changes, with their values.

use std::time::Duration;

use tidegate::{Quota, Switch};

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Block,
    Unblock,
    Reset,
    Override,
    EndOverride,
    Switch,
    EndSwitch,
}

impl Verb {
    pub(crate) const ALL: [Self; 7] = [
        Self::Block,
        Self::Unblock,
        Self::Reset,
        Self::Override,
        Self::EndOverride,
        Self::Switch,
        Self::EndSwitch,
    ];

    /// Returns its name in the audit log and in `/api/NAME`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Unblock => "unblock",
            Self::Reset => "reset",
            Self::Override => "override",
            Self::EndOverride => "end_override",
            Self::Switch => "switch",
            Self::EndSwitch => "end_switch",
        }
    }
}

/// A change whose fields are valid.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Block { key: Key, duration: Duration, quota: Option<Quota> },
    Unblock { key: Key },
    Reset { key: Key },
    Override { key: Key, quota: Quota, duration: Duration },
    EndOverride { key: Key },
    Switch { to: Switch, duration: Option<Duration> },
    EndSwitch,
}

/// A key of an operator.
#[derive(Clone, Debug)]
pub(super) enum Key {
    /// As services give it.
    Clear(String),
    /// As Redis shows it.
    Stored(String),
}

impl Change {
    pub(super) fn key(&self) -> Option<&Key> {
        match self {
            Self::Block { key, .. }
            | Self::Unblock { key }
            | Self::Reset { key }
            | Self::Override { key, .. }
            | Self::EndOverride { key } => Some(key),
            Self::Switch { .. } | Self::EndSwitch => None,
        }
    }

    /// Returns the values of the change.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Block { duration, .. } => format!("for {}", human(*duration)),
            Self::Override { quota, duration, .. } => format!("{quota} for {}", human(*duration)),
            Self::Switch { to, duration } => match duration {
                Some(duration) => format!("{to} for {}", human(*duration)),
                None => to.to_string(),
            },
            Self::Unblock { .. } | Self::Reset { .. } | Self::EndOverride { .. } | Self::EndSwitch => {
                String::new()
            }
        }
    }
}

/// Writes a duration such as `1h 30m`.
pub(super) fn human(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}
