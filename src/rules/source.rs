//! A file of rules, as it was read.

use super::mistake::{Mistake, Place};

/// A name to show, and the text.
#[derive(PartialEq)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
}

impl Source {
    pub(super) fn mistake(&self, place: Place, message: impl Into<String>) -> Mistake {
        let line = place.line.checked_sub(1).and_then(|above| self.text.lines().nth(above));
        Mistake::new(&self.name, place, line.unwrap_or_default(), message.into())
    }
}
