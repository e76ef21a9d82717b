//! The texts of the figures in Redis.
//!
//! | key | field | text |
//! | --- | --- | --- |
//! | `tidegate:1:figures/START` | a gate, or [`OTHER`] | `a/redis=120 n/redis=3 d/deny_cache=4 e=1` |
//! | | [`LATENCY`] | `64=12 128=40`: latencies by the upper bound of their bucket in µs |
//! | `tidegate:1:instances/START` | the id of an instance | `version=1.2.3 breaker=closed errors=0 at=1763683200000000`; `ended=1` after its shutdown |
//! | both | [`COUNT`] | the number of gates or instances in this hash |
//!
//! `START` is the second in which the time of the hash begins, by the server's clock. The words of a gate's text are an outcome
//! and the [source](crate::Source) that decided: `a` allowed, `n` allowed near the limit, `d` denied, `s` denied, but
//! admitted because of shadow mode; and `e`, the number of errors. Names of gates are `[a-z0-9_.-]{1,64}`, so none
//! begins with a parenthesis.
//!
//! Instances of other versions may use other words: the script adds numbers of equal words, whatever they are, and a
//! reader skips the words that it does not know.

use std::fmt::{self, Write};

/// The field that sums the gates beyond the maximum number of a hash or of an instance.
pub(crate) const OTHER: &str = "(other)";
/// The field of the latencies.
pub(crate) const LATENCY: &str = "(latency)";
/// The field with the number of gates, or of instances.
#[cfg(test)]
pub(crate) const COUNT: &str = "(count)";
/// The word of the number of errors.
pub(crate) const ERRORS: &str = "e";

/// A text of words `NAME=NUMBER`.
#[derive(Debug, Default)]
pub(super) struct NumberText(String);

impl NumberText {
    /// Adds a word, unless the number is 0.
    pub(super) fn add(&mut self, name: fmt::Arguments<'_>, number: u64) {
        if number > 0 {
            let separator = if self.0.is_empty() { "" } else { " " };
            // Writing to a String cannot fail.
            let _ = write!(self.0, "{separator}{name}={number}");
        }
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

/// Returns the words `NAME=TEXT` of a text.
#[cfg(any(feature = "admin", test))]
pub(crate) fn words(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(' ').filter_map(|word| word.split_once('='))
}

/// The maximum number that a reader accepts: more than a fleet decides in 5 s, and sums of an hour do not overflow.
#[cfg(any(feature = "admin", test))]
const MAX_NUMBER: u64 = 1 << 32;

/// Returns the words `NAME=NUMBER` of a text. A number above 2^32, which no instance has written, counts as 2^32.
#[cfg(any(feature = "admin", test))]
pub(crate) fn numbers(text: &str) -> impl Iterator<Item = (&str, u64)> {
    words(text).filter_map(|(name, number)| Some((name, number.parse::<u64>().ok()?.min(MAX_NUMBER))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_with_a_number_are_read() {
        let text = "a/redis=120  e=1 x b= =2 c=-1 d=18446744073709551616 e=0x1 f=18446744073709551615";
        let found: Vec<_> = numbers(text).collect();
        assert_eq!(found, [("a/redis", 120), ("e", 1), ("", 2), ("f", MAX_NUMBER)]);
        assert_eq!(numbers("").count(), 0);
    }

    #[test]
    fn no_gate_has_the_name_of_a_field_for_all_gates() {
        for field in [OTHER, LATENCY, COUNT] {
            assert!(crate::key::Keyspace::check_gate_name(field).is_err());
        }
    }
}
