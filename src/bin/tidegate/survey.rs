//! What many keys hold, gone through page by page: what is kept is bounded, however many there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use tidegate::internals::{Found, Inspector, NotState, Page, Shape};

use crate::failure::Failure;

/// Of so many gates and shapes it is said what they hold.
const MOST_GROUPS: usize = 10_000;

/// The keys that have used most, in this order; what cannot be read comes first.
#[derive(Debug)]
pub(crate) struct Ranking {
    limit: usize,
    best: Vec<Found>,
    known: HashSet<String>,
}

/// All keys of a gate that are stored in one way.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) keys: u64,
    pub(crate) blocked: u64,
    pub(crate) unreadable: u64,
    pub(crate) most_used: f64,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Of all groups, also of those that are too many to be told.
    pub(crate) keys: u64,
    pub(crate) groups: BTreeMap<(String, Shape), Group>,
    pub(crate) ranking: Ranking,
    /// That was written by other versions of tidegate, by their layout.
    pub(crate) layouts: BTreeMap<u32, u64>,
    pub(crate) foreign: u64,
    /// What has to be said of orders.
    pub(crate) orders: Option<String>,
}

impl Ranking {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, best: Vec::new(), known: HashSet::new() }
    }

    pub(crate) fn add(&mut self, found: Found) {
        // SCAN may tell it twice.
        if self.known.remove(&found.name.redis_key) {
            self.best.retain(|other| other.name != found.name);
        }
        let at = self.best.partition_point(|other| rank(other) <= rank(&found));
        if at < self.limit {
            self.known.insert(found.name.redis_key.clone());
            self.best.insert(at, found);
        }
        for lost in self.best.drain(self.limit.min(self.best.len())..) {
            self.known.remove(&lost.name.redis_key);
        }
    }

    pub(crate) fn best(&self) -> &[Found] {
        &self.best
    }
}

/// What is first in order comes first.
fn rank(found: &Found) -> (Reverse<u64>, &str) {
    // Not negative, so that the order of the bits is that of the numbers.
    let used = found.usage.as_ref().map_or(f64::INFINITY, |usage| usage.used);
    (Reverse(used.to_bits()), &found.name.redis_key)
}

impl Survey {
    pub(crate) fn new(limit: usize) -> Self {
        let (groups, layouts) = Default::default();
        Self { keys: 0, groups, ranking: Ranking::new(limit), layouts, foreign: 0, orders: None }
    }

    /// Goes through all keys of the namespace, or of one of its gates.
    pub(crate) async fn of(inspector: &Inspector, gate: Option<&str>, limit: usize) -> Result<Self, Failure> {
        let mut survey = Self::new(limit);
        let mut scan = inspector.all(gate);
        while let Some(page) = scan.next().await? {
            survey.add(inspector, gate, page).await?;
        }
        Ok(survey)
    }

    pub(crate) async fn add(
        &mut self,
        inspector: &Inspector,
        gate: Option<&str>,
        mut page: Page,
    ) -> Result<(), Failure> {
        page.names.retain(|name| gate.is_none_or(|gate| name.gate == gate));
        self.count_others(&page);
        for found in inspector.read(&page.names).await? {
            self.keys += 1;
            let group = (found.name.gate.clone(), found.name.shape);
            if self.groups.len() < MOST_GROUPS || self.groups.contains_key(&group) {
                self.groups.entry(group).or_default().add(&found);
            }
            self.ranking.add(found);
        }
        Ok(())
    }

    pub(crate) fn count_others(&mut self, page: &Page) {
        for other in &page.others {
            match other {
                NotState::Shared => {}
                NotState::Layout(layout) => *self.layouts.entry(*layout).or_default() += 1,
                NotState::Foreign => self.foreign += 1,
            }
        }
    }

    /// What has to be said beside it.
    pub(crate) fn notes(&self) -> Vec<String> {
        let plural = |count: u64| if count == 1 { "key" } else { "keys" };
        let layouts = self.layouts.iter().map(|(layout, count)| {
            format!(
                "{count} {} of layout {layout}, which another version of tidegate wrote: look into {} with that",
                plural(*count),
                if *count == 1 { "it" } else { "them" },
            )
        });
        let foreign = (self.foreign > 0)
            .then(|| format!("{} {} that tidegate does not write", self.foreign, plural(self.foreign)));
        layouts.chain(foreign).chain(self.orders.clone()).collect()
    }
}

impl Group {
    fn add(&mut self, found: &Found) {
        self.keys += 1;
        match &found.usage {
            Err(_) => self.unreadable += 1,
            Ok(usage) => {
                self.blocked += u64::from(usage.blocked_for.is_some());
                self.most_used = self.most_used.max(usage.used);
            }
        }
    }
}
