//! Checks a history of concurrent checks of one key with cost 1. It must equal the answers of the reference
//! to the same checks, one by one, in the order of the server's clock.
//!
//! Within a microsecond (a merged take, a batch) any order may be the right one, so the checker searches for
//! one. A check whose reply was lost, or that was sent twice, may have an additional charge at any time after
//! the call. The checker assumes such a charge only if nothing else explains an answer.

use tidegate::Quota;
use tidegate::reference::{Answer, Item, Record, Taken, take};

/// All processes of this machine share one clock. Its readings differ by at most this.
const SLACK_US: u64 = 1_000;
/// The maximum number of charges that the checker assumes between two answers.
const MAX_ASSUMED_AT_ONCE: u64 = 512;

/// A check that was answered. Times are microseconds since 1970; `now_us` is the server's clock.
#[derive(Clone, Debug)]
pub struct Answered {
    pub called_us: u64,
    pub returned_us: u64,
    pub now_us: u64,
    pub answer: Answer,
}

/// Returns the number of charges that the checker assumed, which no answer reports.
///
/// Each of `possible_charges` is a time (us) from which one such charge may have happened.
///
/// # Errors
///
/// The first answers that the reference cannot give.
pub fn check(
    quota: &Quota,
    mut history: Vec<Answered>,
    mut possible_charges: Vec<u64>,
) -> Result<u64, String> {
    history.sort_by_key(|check| (check.now_us, check.called_us));
    possible_charges.sort_unstable();
    if let Some(check) = history.iter().find(|check| !check.is_within_its_call()) {
        return Err(format!("decided before the call, or after its return: {check:?}"));
    }
    let mut checker = Checker { quota, record: Record::default(), last_us: 0, assumed: 0, possible_charges };
    for simultaneous in history.chunk_by(|one, next| one.now_us == next.now_us) {
        checker.step(simultaneous)?;
    }
    Ok(checker.assumed)
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
    /// The server's time of the last answer.
    last_us: u64,
    assumed: u64,
    possible_charges: Vec<u64>,
}

impl Checker<'_> {
    fn step(&mut self, simultaneous: &[Answered]) -> Result<(), String> {
        let now = simultaneous[0].now_us;
        let record = self.explain(simultaneous).ok_or_else(|| {
            let (_, expected) = self.take(&self.record, 1, now);
            let answers: Vec<&Answer> = simultaneous.iter().map(|check| &check.answer).collect();
            format!("at {now}: found {answers:?}, but the first must be {expected:?}; {:?}", self.record)
        })?;
        (self.record, self.last_us) = (record, now);
        Ok(())
    }

    /// Returns the record after these answers, in any order that explains them.
    fn explain(&mut self, simultaneous: &[Answered]) -> Option<Record> {
        let answers: Vec<Answer> = simultaneous.iter().map(|check| check.answer).collect();
        let now = simultaneous[0].now_us;
        if let Some(record) = self.order(&self.record, answers.clone(), now) {
            return Some(record);
        }
        let possible = self.possible_charges.partition_point(|&since| since <= now + SLACK_US) as u64;
        for more in 1..=possible.saturating_sub(self.assumed).min(MAX_ASSUMED_AT_ONCE) {
            if let Some(record) = self.assume(more, &answers, now) {
                self.assumed += more;
                return Some(record);
            }
        }
        None
    }

    /// Returns the record after these answers, with `more` charges since the last answer: while the record was
    /// valid, or after it expired.
    ///
    /// A full window denies charges until it expires. So only among the times after it does a later charge
    /// always leave a longer time to reset.
    fn assume(&self, more: u64, answers: &[Answer], now: u64) -> Option<Record> {
        let first = self.possible_charges[usize::try_from(self.assumed).unwrap()];
        let from = self.last_us.max(first.saturating_sub(SLACK_US));
        let expired = self.record.expires_ms.saturating_mul(1_000).clamp(from, now);
        self.assume_between(more, answers, now, (from, expired))
            .or_else(|| self.assume_between(more, answers, now, (expired, now)))
    }

    /// A binary search finds the time of the charges: the later they are, the longer the time to reset.
    fn assume_between(
        &self,
        more: u64,
        answers: &[Answer],
        now: u64,
        (mut from, mut to): (u64, u64),
    ) -> Option<Record> {
        // The answer with the most remaining units was the first.
        let earliest = answers.iter().max_by_key(|answer| (answer.allowed, answer.remaining))?;
        let charged_at = |at: u64| self.take(&self.record, more, at).0;
        if let Some(record) = self.order(&charged_at(to), answers.to_vec(), now) {
            return Some(record);
        }
        while from < to {
            let middle = from + (to - from) / 2;
            let record = charged_at(middle);
            let answer = self.take(&record, 1, now).1;
            if answer.reset_after_us < earliest.reset_after_us {
                from = middle + 1;
            } else if answer.reset_after_us > earliest.reset_after_us {
                to = middle;
            } else {
                return self.order(&record, answers.to_vec(), now);
            }
        }
        self.order(&charged_at(from), answers.to_vec(), now)
    }

    /// Searches for an order in which the reference gives these answers. Returns the record after them.
    fn order(&self, record: &Record, mut unexplained: Vec<Answer>, now: u64) -> Option<Record> {
        if unexplained.is_empty() {
            return Some(record.clone());
        }
        // All checks are equal, so the reference has one answer for the next check. If several answers equal
        // it, any of them can be the next.
        let (after, expected) = self.take(record, 1, now);
        let next = unexplained.iter().position(|answer| *answer == expected)?;
        unexplained.swap_remove(next);
        self.order(&after, unexplained, now)
    }

    /// Returns the record after `n` checks, and the answer to the first.
    fn take(&self, record: &Record, n: u64, now: u64) -> (Record, Answer) {
        let mut record = if record.has_expired(now) { Record::default() } else { record.clone() };
        let mut items = [Item::new(self.quota, &mut record, 1, None)];
        let k = take(&mut items, n, now);
        let taken = Taken { quota: self.quota, cost: 1, max_delay: None, n, k, before: items[0].before, now };
        let answer = taken.answer(0);
        (record, answer)
    }
}
