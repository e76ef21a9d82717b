//! Finds the most frequent of many keys in bounded memory (Metwally, Agrawal, El Abbadi: "Efficient
//! computation of frequent and top-k elements in data streams", 2005).
//!
//! A new key replaces the key with the lowest count and takes over its count. So no count is too low, and
//! each is too high by at most the count that it took over. With a capacity of k, every key with more than a
//! k-th of all occurrences is present.

use std::fmt;

use crate::error::redact::RedactedKey;

/// A key that is denied often, from [`MostDenied::top`](crate::MostDenied::top). Displayed as its denials and
/// the key; `Debug` redacts the key.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeniedKey {
    /// The key as written in Redis, with the gate's name.
    pub key: String,
    /// The approximate number of recent denials.
    pub denials: u64,
    /// The maximum overcount in `denials`: the count of the keys that this one replaced.
    pub error: u64,
}

pub(super) struct SpaceSaving {
    /// Searched linearly: there are few keys, and one sample stands for many denials.
    keys: Vec<DeniedKey>,
    capacity: usize,
}

impl SpaceSaving {
    pub(super) fn new(capacity: usize) -> Self {
        Self { keys: Vec::with_capacity(capacity), capacity }
    }

    pub(super) fn add(&mut self, key: String, count: u64) {
        if let Some(known) = self.keys.iter_mut().find(|known| known.key == key) {
            known.denials += count;
        } else if self.keys.len() < self.capacity {
            self.keys.push(DeniedKey { key, denials: count, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|known| known.denials) {
            *least = DeniedKey { key, denials: least.denials + count, error: least.denials };
        }
    }

    /// Halves all counts and removes keys whose count becomes 0. Does not change the order of the rest.
    pub(super) fn halve(&mut self) {
        self.keys.iter_mut().for_each(|known| {
            known.denials /= 2;
            known.error /= 2;
        });
        self.keys.retain(|known| known.denials > 0);
    }

    pub(super) fn top(&self, max_keys: usize) -> Vec<DeniedKey> {
        let mut keys: Vec<_> = self.keys.iter().collect();
        keys.sort_by(|a, b| b.denials.cmp(&a.denials).then_with(|| a.key.cmp(&b.key)));
        keys.into_iter().take(max_keys).cloned().collect()
    }
}

/// Keys may be personal data.
impl fmt::Debug for DeniedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeniedKey")
            .field("key", &RedactedKey::new(self.key.as_bytes()))
            .field("denials", &self.denials)
            .field("error", &self.error)
            .finish()
    }
}

impl fmt::Display for DeniedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.denials, self.key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::SpaceSaving;

    #[test]
    fn frequent_keys_are_present_and_each_count_is_off_by_at_most_its_error() {
        const CAPACITY: usize = 20;
        let mut random = fastrand::Rng::with_seed(7);
        let (mut kept, mut counted) = (SpaceSaving::new(CAPACITY), HashMap::<String, u64>::new());
        for _ in 0..50_000 {
            // Half of the denials have one of 8 frequent keys; the others have rare keys.
            let number = if random.bool() { random.u32(..8) } else { random.u32(..) };
            *counted.entry(number.to_string()).or_default() += 1;
            kept.add(number.to_string(), 1);
        }
        let top = kept.top(CAPACITY);
        assert_eq!(top.len(), CAPACITY);
        for known in &top {
            let actual = counted[&known.key];
            assert!(known.denials - known.error <= actual && actual <= known.denials, "{known:?}: {actual}");
        }
        for number in 0..8 {
            assert!(top[..8].iter().any(|known| known.key == number.to_string()), "{number} of {top:?}");
        }
    }

    #[test]
    fn counts_of_old_denials_fade() {
        let mut kept = SpaceSaving::new(2);
        kept.add("old".to_owned(), 8);
        kept.halve();
        kept.add("new".to_owned(), 5);
        let names: Vec<_> = kept.top(2).into_iter().map(|known| known.to_string()).collect();
        assert_eq!(names, ["5 new", "4 old"]);
        (0..3).for_each(|_| kept.halve());
        assert!(kept.top(2).is_empty());
    }
}
