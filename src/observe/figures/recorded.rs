//! The figures of a limiter in memory, which this process keeps for itself: in the same buckets, and as long, as Redis
//! keeps those of a fleet.

use std::collections::BTreeMap;

use super::format::{self, LATENCY, NumberText};
use super::{BUCKET, Figures, KEPT};
use crate::runtime::sync::lock;

/// The fields of one bucket, with the numbers by their words.
type Fields = BTreeMap<String, BTreeMap<String, u64>>;

/// What was counted, by the second in which its bucket begins.
#[derive(Debug, Default)]
pub(super) struct Recorded(BTreeMap<u64, Fields>);

impl Recorded {
    fn add(&mut self, now_s: u64, fields: Vec<(String, String)>) {
        let start_s = now_s - now_s % BUCKET.as_secs();
        self.0 = self.0.split_off(&start_s.saturating_sub(KEPT.as_secs()));
        for (field, text) in fields {
            // Without Redis, no check waits for it.
            if field == LATENCY {
                continue;
            }
            let sums = self.0.entry(start_s).or_default().entry(field).or_default();
            for (word, number) in format::numbers(&text) {
                let sum = sums.entry(word.to_owned()).or_default();
                *sum = sum.saturating_add(number);
            }
        }
    }
}

/// # Figures in memory
impl Figures {
    /// Returns true at the first call: the caller then calls [`record`](Self::record) every [`BUCKET`].
    pub(crate) fn start_recording(&self) -> bool {
        self.recorded.set(Default::default()).is_ok()
    }

    /// Adds what was counted since the last call to the bucket of this time.
    pub(crate) fn record(&self, now_us: u64) {
        if let Some(recorded) = self.recorded.get() {
            lock(recorded).add(now_us / 1_000_000, self.take());
        }
    }

    /// Returns the buckets from this second on, oldest first, with their fields and texts.
    pub(crate) fn recorded(&self, from_s: u64) -> Vec<(u64, Vec<(String, String)>)> {
        let Some(recorded) = self.recorded.get() else { return Vec::new() };
        let text = |(field, sums): (&String, &BTreeMap<String, u64>)| {
            let mut text = NumberText::default();
            sums.iter().for_each(|(word, number)| text.add(format_args!("{word}"), *number));
            (field.clone(), text.into_string())
        };
        let buckets = lock(recorded);
        let buckets = buckets.0.range(from_s..);
        buckets.map(|(start_s, fields)| (*start_s, fields.iter().map(text).collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_one_bucket_are_summed_and_kept_for_an_hour() {
        let fields = |text: &str| vec![("login".to_owned(), text.to_owned())];
        let mut recorded = Recorded::default();
        recorded.add(1_002, fields("a/memory=2 d/memory=1"));
        recorded.add(1_004, fields("a/memory=3"));
        recorded.add(1_005, vec![(LATENCY.to_owned(), "16=1".to_owned())]);
        let sums = &recorded.0[&1_000]["login"];
        assert_eq!((sums["a/memory"], sums["d/memory"], recorded.0.len()), (5, 1, 1));
        recorded.add(1_000 + 3_600, fields("a/memory=1"));
        assert_eq!(recorded.0.len(), 2);
        recorded.add(1_000 + 3_605, fields("a/memory=1"));
        assert_eq!(recorded.0.keys().copied().collect::<Vec<_>>(), [4_600, 4_605]);
    }
}
