//! The most frequent of many keys, in the room for a few (Metwally, Agrawal, El Abbadi: "Efficient
//! computation of frequent and top-k elements in data streams", 2005).
//!
//! A key that is not there takes the place of the one with the least count, and that count with it: so
//! no count is too low, and each is too high by at most what it took over. With room for k, whatever
//! makes more than a k-th of all is there.

use super::DeniedKey;

pub(super) struct SpaceSaving {
    /// Looked through one by one: they are few, and each look stands for many denials.
    keys: Vec<DeniedKey>,
    room: usize,
}

impl SpaceSaving {
    pub(super) fn new(room: usize) -> Self {
        Self { keys: Vec::with_capacity(room), room }
    }

    pub(super) fn add(&mut self, key: String, count: u64) {
        if let Some(known) = self.keys.iter_mut().find(|known| known.key == key) {
            known.denials += count;
        } else if self.keys.len() < self.room {
            self.keys.push(DeniedKey { key, denials: count, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|known| known.denials) {
            *least = DeniedKey { key, denials: least.denials + count, error: least.denials };
        }
    }

    /// The order stays; what comes to nothing goes.
    pub(super) fn halve(&mut self) {
        self.keys.iter_mut().for_each(|known| {
            known.denials /= 2;
            known.error /= 2;
        });
        self.keys.retain(|known| known.denials > 0);
    }

    pub(super) fn top(&self, most: usize) -> Vec<DeniedKey> {
        let mut keys: Vec<_> = self.keys.iter().collect();
        keys.sort_by(|a, b| b.denials.cmp(&a.denials).then_with(|| a.key.cmp(&b.key)));
        keys.into_iter().take(most).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::SpaceSaving;

    #[test]
    fn what_makes_more_than_its_part_is_there_and_no_count_is_too_low_or_too_high_by_more_than_its_error() {
        const ROOM: usize = 20;
        let mut random = fastrand::Rng::with_seed(7);
        let (mut kept, mut counted) = (SpaceSaving::new(ROOM), HashMap::<String, u64>::new());
        for _ in 0..50_000 {
            // A few often, and many that come once.
            let number = if random.bool() { random.u32(..8) } else { random.u32(..) };
            *counted.entry(number.to_string()).or_default() += 1;
            kept.add(number.to_string(), 1);
        }
        let top = kept.top(ROOM);
        assert_eq!(top.len(), ROOM);
        for known in &top {
            let truly = counted[&known.key];
            assert!(known.denials - known.error <= truly && truly <= known.denials, "{known:?}: {truly}");
        }
        for number in 0..8 {
            assert!(top[..8].iter().any(|known| known.key == number.to_string()), "{number} of {top:?}");
        }
    }

    #[test]
    fn what_is_past_fades() {
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
