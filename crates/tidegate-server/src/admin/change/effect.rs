//! The effect of a change.

/// The effect of a change that was made without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// In words, such as `blocked for 1h`. Does not contain the key.
    pub(crate) result: String,
    /// False if there was nothing to change, for example no block to lift.
    pub(crate) has_changed: bool,
    /// False if the key can have further states, which were not searched: then `result` says why.
    pub(crate) is_complete: bool,
}

impl Effect {
    /// The change was made.
    pub(super) fn changed(result: impl Into<String>) -> Self {
        Self { result: result.into(), has_changed: true, is_complete: true }
    }

    /// There was nothing to change.
    pub(super) fn nothing(result: impl Into<String>) -> Self {
        Self { has_changed: false, ..Self::changed(result) }
    }

    /// Only the states that the rules know were changed: the search for others has failed.
    pub(super) fn without_other_forms(self, error: impl std::fmt::Display) -> Self {
        let result = format!("{}; other forms were not searched: {error}", self.result);
        Self { result, is_complete: false, ..self }
    }
}
