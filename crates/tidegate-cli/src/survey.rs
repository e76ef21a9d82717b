//! Statistics of many keys, read page by page. Memory is bounded, regardless of the number of keys.

use std::collections::BTreeMap;

use tidegate::admin::{Found, Inspector, NotState, OtherKey, Page, Ranking, Shape};

use crate::failure::Failure;

/// The maximum combinations of gate and shape with statistics of their own.
const MAX_GROUPS: usize = 10_000;
/// The maximum foreign keys that a note names, and the characters of each.
const MAX_NAMED: usize = 3;
const MAX_NAME_CHARS: usize = 80;

/// Statistics of the keys of a gate with one shape.
#[derive(Debug, Default)]
pub(crate) struct KeyGroup {
    pub(crate) keys: u64,
    pub(crate) blocked: u64,
    pub(crate) unreadable: u64,
    pub(crate) most_used: f64,
}

/// The result of a scan.
#[derive(Debug)]
pub(crate) struct Survey {
    /// All keys, including those of groups beyond the maximum.
    pub(crate) keys: u64,
    pub(crate) groups: BTreeMap<(String, Shape), KeyGroup>,
    pub(crate) ranking: Ranking,
    /// The number of keys of other versions of tidegate, by layout.
    pub(crate) layouts: BTreeMap<u32, u64>,
    /// The number of keys of replicated gates.
    replicated: u64,
    pub(crate) foreign: u64,
    /// Some of the foreign keys, cut.
    foreign_names: Vec<String>,
    /// A note on the overrides of these keys.
    pub(crate) overrides: Option<String>,
}

impl Survey {
    pub(crate) fn new(limit: usize) -> Self {
        let (groups, layouts, foreign_names) = Default::default();
        let ranking = Ranking::most_used(limit);
        Self { keys: 0, groups, ranking, layouts, replicated: 0, foreign: 0, foreign_names, overrides: None }
    }

    /// Scans all keys of the namespace, or of one gate.
    pub(crate) async fn of(inspector: &Inspector, gate: Option<&str>, limit: usize) -> Result<Self, Failure> {
        let mut survey = Self::new(limit);
        let mut scan = inspector.scan(gate);
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
        self.count_others(&page.others);
        for found in inspector.read(&page.names).await? {
            self.keys += 1;
            let group = (found.name.gate.clone(), found.name.shape);
            if self.groups.len() < MAX_GROUPS || self.groups.contains_key(&group) {
                self.groups.entry(group).or_default().add(&found);
            }
            self.ranking.add(found);
        }
        Ok(())
    }

    pub(crate) fn count_others(&mut self, others: &[OtherKey]) {
        for OtherKey { redis_key, kind } in others {
            match kind {
                NotState::Shared | NotState::AdaptiveLimit => {}
                NotState::Replicated => self.replicated += 1,
                NotState::Layout(layout) => *self.layouts.entry(*layout).or_default() += 1,
                NotState::Foreign => {
                    self.foreign += 1;
                    self.name_foreign(redis_key);
                }
            }
        }
    }

    fn name_foreign(&mut self, redis_key: &[u8]) {
        if self.foreign_names.len() == MAX_NAMED {
            return;
        }
        // A character has at most 4 bytes.
        let start = &redis_key[..redis_key.len().min(4 * (MAX_NAME_CHARS + 1))];
        let mut name = String::from_utf8_lossy(start).into_owned();
        if let Some((end, _)) = name.char_indices().nth(MAX_NAME_CHARS) {
            name.replace_range(end.., "…");
        }
        if !self.foreign_names.contains(&name) {
            self.foreign_names.push(name);
        }
    }

    /// Returns notes on keys that the survey does not contain, and on overrides.
    pub(crate) fn notes(&self) -> Vec<String> {
        let plural = |count: u64| if count == 1 { "key" } else { "keys" };
        let layouts = self.layouts.iter().map(|(layout, count)| {
            format!(
                "{count} {} of layout {layout}, written by another version of tidegate: inspect {} with that \
                 version",
                plural(*count),
                if *count == 1 { "it" } else { "them" },
            )
        });
        let foreign = (self.foreign > 0).then(|| {
            let (count, names) = (self.foreign, self.foreign_names.join(", "));
            let such_as = if count > self.foreign_names.len() as u64 { ", such as" } else { ":" };
            format!("{count} {} not written by tidegate{such_as} {names}", plural(count))
        });
        let replicated = (self.replicated > 0).then(|| {
            let count = self.replicated;
            format!("{count} {} of limits that several regions share: not shown here", plural(count))
        });
        layouts.chain(replicated).chain(foreign).chain(self.overrides.clone()).collect()
    }
}

impl KeyGroup {
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
