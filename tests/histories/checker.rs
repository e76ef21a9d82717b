//! Whether a history of concurrent asks for one unit of one key is what the reference says, done one
//! after the other in the order of the server's clock.
//!
//! Within a microsecond (a merged take, a batch) any order may be the right one: one is searched for.
//! An ask whose answer was lost may have been charged or not, at any time since it was called; so may
//! one that was sent twice. Such charges are assumed only where an answer cannot be explained without.

use tidegate::Quota;
use tidegate::internals::{Answer, Item, Record, Taken, take};

/// Clocks of this machine are one, read within so many microseconds.
const SLACK_US: u64 = 1_000;
/// More than this many lost answers between two that came are not looked for.
const MOST_AT_ONCE: u64 = 512;

#[derive(Clone, Debug)]
pub struct Answered {
    pub called_us: u64,
    pub returned_us: u64,
    pub now_us: u64,
    pub answer: Answer,
}

/// How many charges had to be assumed that no answer tells of; `perhaps` are the times since which there
/// may have been one each.
pub fn check(quota: &Quota, mut history: Vec<Answered>, mut perhaps: Vec<u64>) -> Result<u64, String> {
    history.sort_by_key(|asked| (asked.now_us, asked.called_us));
    perhaps.sort_unstable();
    if let Some(asked) = history.iter().find(|asked| !asked.is_within_its_call()) {
        return Err(format!("decided before it was asked, or after it was told: {asked:?}"));
    }
    let mut state = Checker { quota, record: Record::default(), since_us: 0, assumed: 0, perhaps };
    for together in history.chunk_by(|one, next| one.now_us == next.now_us) {
        state.step(together)?;
    }
    Ok(state.assumed)
}

impl Answered {
    fn is_within_its_call(&self) -> bool {
        (self.called_us..=self.returned_us + SLACK_US).contains(&self.now_us)
            || (self.now_us..=self.now_us + SLACK_US).contains(&self.called_us)
    }
}

struct Checker<'a> {
    quota: &'a Quota,
    record: Record,
    /// The last answer.
    since_us: u64,
    assumed: u64,
    perhaps: Vec<u64>,
}

impl Checker<'_> {
    fn step(&mut self, together: &[Answered]) -> Result<(), String> {
        let now = together[0].now_us;
        let found = self.explain(together).ok_or_else(|| {
            let (_, expected) = self.ask(&self.record, 1, now);
            let answers: Vec<&Answer> = together.iter().map(|asked| &asked.answer).collect();
            format!("at {now} told {answers:?}, where {expected:?} would be first; {:?}", self.record)
        })?;
        (self.record, self.since_us) = (found, now);
        Ok(())
    }

    /// The record after these, in one order or another.
    fn explain(&mut self, together: &[Answered]) -> Option<Record> {
        let answers: Vec<Answer> = together.iter().map(|asked| asked.answer).collect();
        let now = together[0].now_us;
        if let Some(found) = self.order(&self.record, answers.clone(), now) {
            return Some(found);
        }
        let called = self.perhaps.partition_point(|&since| since <= now + SLACK_US) as u64;
        for more in 1..=called.saturating_sub(self.assumed).min(MOST_AT_ONCE) {
            if let Some(found) = self.assume(more, &answers, now) {
                self.assumed += more;
                return Some(found);
            }
        }
        None
    }

    /// With so many charges since the last answer. When, the time to reset tells: the later, the longer.
    fn assume(&self, more: u64, answers: &[Answer], now: u64) -> Option<Record> {
        let first = self.perhaps[usize::try_from(self.assumed).unwrap()];
        let (mut from, mut to) = (self.since_us.max(first.saturating_sub(SLACK_US)), now);
        // Who is told of most was first.
        let earliest = answers.iter().max_by_key(|answer| (answer.allowed, answer.remaining))?;
        let with = |at: u64| self.ask(&self.record, more, at).0;
        if let Some(found) = self.order(&with(to), answers.to_vec(), now) {
            return Some(found);
        }
        while from < to {
            let middle = from + (to - from) / 2;
            let record = with(middle);
            let told = self.ask(&record, 1, now).1;
            if told.reset_after_us < earliest.reset_after_us {
                from = middle + 1;
            } else if told.reset_after_us > earliest.reset_after_us {
                to = middle;
            } else {
                return self.order(&record, answers.to_vec(), now);
            }
        }
        self.order(&with(from), answers.to_vec(), now)
    }

    /// Searches for an order in which the reference gives these answers.
    fn order(&self, record: &Record, mut left: Vec<Answer>, now: u64) -> Option<Record> {
        if left.is_empty() {
            return Some(record.clone());
        }
        // All ask for the same, so the reference has one answer for whoever is next; those to whom it
        // was given are alike.
        let (after, told) = self.ask(record, 1, now);
        let next = left.iter().position(|answer| *answer == told)?;
        left.swap_remove(next);
        self.order(&after, left, now)
    }

    fn ask(&self, record: &Record, n: u64, now: u64) -> (Record, Answer) {
        let mut record = if record.has_expired(now) { Record::default() } else { record.clone() };
        let item = Item { quota: self.quota, record: &mut record, cost: 1, max_delay: None };
        let (k, before) = take(&mut [item], n, now);
        let taken = Taken { quota: self.quota, cost: 1, max_delay: None, n, k, before: before[0], now };
        let answer = taken.answer(0);
        (record, answer)
    }
}
