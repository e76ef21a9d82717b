//! How urgent something is.

/// How urgent something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::console) enum Tone {
    Plain,
    Good,
    Warn,
    Bad,
}

impl Tone {
    pub(in crate::console) const fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "good",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }

    /// Returns the class of a text in this tone.
    pub(in crate::console) const fn text_class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "is-good",
            Self::Warn => "is-warn",
            Self::Bad => "is-bad",
        }
    }
}
