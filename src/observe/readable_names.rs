//! The names of gates for people, as the rules of a process report them.

use std::collections::HashMap;

use crate::runtime::sync::{Arc, RwLock, read, write};

/// The maximum number of names: each reload of rules can add some.
const MAX_NAMES: usize = 1 << 14;

/// The readable names of gates, by their names.
#[derive(Default)]
pub(super) struct ReadableNames(RwLock<HashMap<Box<str>, Arc<str>>>);

impl ReadableNames {
    pub(super) fn add(&self, gate: &str, readable: &str) {
        let mut names = write(&self.0);
        if names.len() < MAX_NAMES || names.contains_key(gate) {
            names.insert(gate.into(), readable.into());
        }
    }

    /// Returns the readable name of a gate, or its name if it has none.
    pub(super) fn of(&self, gate: &str) -> Arc<str> {
        read(&self.0).get(gate).cloned().unwrap_or_else(|| gate.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_readable_names_is_bounded_and_a_further_gate_keeps_its_name() {
        let names = ReadableNames::default();
        for number in 0..MAX_NAMES {
            names.add(&format!("g{number}"), "d / g");
        }
        names.add("g0", "d / changed");
        names.add("further", "d / further");
        assert_eq!((&*names.of("g0"), &*names.of("further")), ("d / changed", "further"));
        assert_eq!(read(&names.0).len(), MAX_NAMES);
    }
}
