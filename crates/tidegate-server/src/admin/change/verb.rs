//! The changes that the admin port offers.

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

    /// Returns its name in `/api/NAME` and in the forms of the console.
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
