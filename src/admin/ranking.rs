//! The keys that an operator looks at first.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::Found;

/// The rank of a key: a higher one is listed first. `None` leaves the key out.
type Rank = dyn Fn(&Found) -> Option<f64> + Send + Sync;

/// The first keys in an order, in bounded memory: the most used ones, or those with the highest value of a function.
#[derive(Clone)]
pub struct Ranking {
    limit: usize,
    rank: Arc<Rank>,
    best: Vec<(f64, Found)>,
    /// The Redis keys of `best`.
    redis_keys: HashSet<String>,
}

impl Ranking {
    /// Makes an empty ranking of at most `limit` keys by usage, in descending order. Unreadable keys come first.
    #[must_use]
    pub fn most_used(limit: usize) -> Self {
        Self::by(limit, |found| Some(found.usage.as_ref().map_or(f64::INFINITY, |usage| usage.used)))
    }

    /// Makes an empty ranking of at most `limit` keys by `rank`, in descending order. A key for which it returns `None` is
    /// left out.
    #[must_use]
    pub fn by(limit: usize, rank: impl Fn(&Found) -> Option<f64> + Send + Sync + 'static) -> Self {
        Self { limit, rank: Arc::new(rank), best: Vec::new(), redis_keys: HashSet::new() }
    }

    /// Returns an empty ranking with the same limit and order.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self { best: Vec::new(), redis_keys: HashSet::new(), ..self.clone() }
    }

    /// Adds a key. A later reading of a key replaces the earlier one.
    pub fn add(&mut self, found: Found) {
        // SCAN can return a key twice.
        if self.redis_keys.remove(&found.name.redis_key) {
            self.best.retain(|(_, other)| other.name != found.name);
        }
        let Some(rank) = (self.rank)(&found) else { return };
        let order = |rank: f64, found: &Found| (Reverse(Ordered(rank)), found.name.redis_key.clone());
        let new = order(rank, &found);
        let at = self.best.partition_point(|(rank, other)| order(*rank, other) <= new);
        if at < self.limit {
            self.redis_keys.insert(found.name.redis_key.clone());
            self.best.insert(at, (rank, found));
        }
        for (_, dropped) in self.best.drain(self.limit.min(self.best.len())..) {
            self.redis_keys.remove(&dropped.name.redis_key);
        }
    }

    /// Iterates over the keys, the first in the order first.
    #[must_use]
    pub fn best(&self) -> impl ExactSizeIterator<Item = &Found> + Clone {
        self.best.iter().map(|(_, found)| found)
    }
}

/// A number with the total order of [`f64::total_cmp`].
#[derive(Clone, Copy)]
struct Ordered(f64);

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered {}

/// Keys may be personal data.
impl fmt::Debug for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranking")
            .field("limit", &self.limit)
            .field("keys", &self.best.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::admin::{Name, Usage};
    use crate::error::Error;

    fn found(key: &str, used: f64) -> Found {
        let name = Name::parse("ns", format!("ns:2:login:token_bucket:{key}").as_bytes()).unwrap();
        let usage = Usage { used, quota: None, reset_after: Duration::ZERO, blocked_for: None };
        Found { name, usage: Ok(usage), expires_in: None }
    }

    fn keys(ranking: &Ranking) -> Vec<&str> {
        ranking.best().map(|found| &*found.name.written).collect()
    }

    #[test]
    fn only_the_first_keys_of_the_order_are_kept() {
        let mut ranking = Ranking::most_used(2);
        for (key, used) in [("a", 1.0), ("b", 3.0), ("c", 2.0), ("d", 3.0)] {
            ranking.add(found(key, used));
        }
        assert_eq!(keys(&ranking), ["b", "d"]);
        ranking.add(Found { usage: Err(Error::config("x")), ..found("e", 0.0) });
        assert_eq!(keys(&ranking), ["e", "b"], "an unreadable key comes first");
        assert_eq!(keys(&ranking.emptied()), [""; 0]);
    }

    #[test]
    fn later_reading_replaces_the_earlier_one() {
        let mut ranking = Ranking::most_used(3);
        for (key, used) in [("a", 9.0), ("b", 5.0), ("a", 1.0)] {
            ranking.add(found(key, used));
        }
        assert_eq!(keys(&ranking), ["b", "a"]);
    }

    #[test]
    fn key_without_a_rank_is_left_out() {
        let over =
            |found: &Found| found.usage.as_ref().ok().map(|usage| usage.used).filter(|used| *used > 1.0);
        let mut ranking = Ranking::by(3, over);
        for (key, used) in [("a", 1.0), ("b", 2.0), ("c", 3.0), ("c", 0.0)] {
            ranking.add(found(key, used));
        }
        assert_eq!(keys(&ranking), ["b"]);
    }
}
