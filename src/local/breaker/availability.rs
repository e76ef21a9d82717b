//! Whether Redis decides checks: warns at the first failure and at each change.
//!
//! Without these warnings, a wrong address or a missing permission shows only as limits that are not shared,
//! since the failure policy decides all checks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::key::HashTag;
use crate::local::on_failure::OnFailure;
use crate::observe::warning::{RepeatedWarning, WarningSink};
use crate::runtime::sync::lock;
use crate::store::Store;

/// The surplus of failures over answers that shows an outage after Redis has answered once. Single timeouts of a
/// busy process do not.
const MIN_FAILURES: u32 = 5;

/// The minimum time without a failure before Redis counts as available again: of a user without some permissions,
/// Redis answers a part of the checks.
const QUIET_US: u64 = 1_000_000;

/// The minimum time between two reports that Redis decides again, and between two reports of one cause without such a
/// report in between. A new cause is reported at once.
const REPORT_PAUSE_US: u64 = 60_000_000;

/// The maximum number of causes that are reported in that time.
const MAX_CAUSES: usize = 8;

// The states of a circuit's servers:
//
//     UNKNOWN ──▶ ANSWERS ◀──────────────────────┐ a minute after the last report of an end
//        │           │                           │
//        ▼           ▼                           │
//     UNREACHABLE or REFUSES ──▶ ANSWERS or UNREPORTED
//                          a second without a failure
const UNKNOWN: u8 = 0;
const ANSWERS: u8 = 1;
const UNREACHABLE: u8 = 2;
const REFUSES: u8 = 3;
/// Answers again. The last report, of a failure, stands: Redis fails again and again.
const UNREPORTED: u8 = 4;

pub(super) struct Availability {
    store: Arc<Store>,
    warnings: WarningSink,
    /// That of the limiter.
    policy: OnFailure,
    /// The processes that share the limits, 0 before the first count.
    pub(super) instances: AtomicU64,
    /// By circuit.
    states: Box<[FailureState]>,
    /// Locked while a change is reported, so that changes are reported in order.
    reports: Mutex<ReportTimes>,
    /// The earliest time of the next report that Redis decides again.
    recovery_due_us: AtomicU64,
    unreachable: RepeatedWarning,
    refused: RepeatedWarning,
}

/// The causes that were reported, each with the earliest time of its next report. Empty after a report of the end of all
/// failures.
type ReportTimes = Vec<(Cause, u64)>;

/// What an operator distinguishes: the state, and the error code of Redis or the remedy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cause(u64);

impl Cause {
    fn new(state: u8, error: &Error) -> Self {
        let text = error.to_string();
        // Codes such as OOM and NOPERM are in capital letters.
        let is_code = |word: &&str| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        let code = text.split(|letter: char| !letter.is_ascii_alphanumeric()).find(is_code);
        let mut hasher = DefaultHasher::new();
        match state {
            REFUSES => code.hash(&mut hasher),
            // A server that ends also loses calls.
            _ if error.is_lost_call() => remedy(&Error::unavailable("")).hash(&mut hasher),
            _ => remedy(error).hash(&mut hasher),
        }
        state.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Written only while Redis fails: callers of a working Redis share its cache line.
#[derive(Default)]
struct FailureState {
    now: AtomicU8,
    /// The [`Cause`] of the failure.
    cause: AtomicU64,
    /// Failures less answers, at most [`MIN_FAILURES`].
    failures: AtomicU32,
    /// By the limiter's clock.
    failed_us: AtomicU64,
}

impl Availability {
    pub(super) fn new(
        store: Arc<Store>,
        warnings: WarningSink,
        policy: OnFailure,
        instances: u64,
        circuits: usize,
    ) -> Self {
        Self {
            store,
            warnings,
            policy,
            instances: AtomicU64::new(instances),
            states: (0..circuits).map(|_| FailureState::default()).collect(),
            reports: Mutex::default(),
            recovery_due_us: AtomicU64::default(),
            unreachable: RepeatedWarning::new("redis-unreachable"),
            refused: RepeatedWarning::new("redis-refused"),
        }
    }

    #[inline]
    pub(super) fn count_answer(&self, hash_tag: HashTag) {
        let state = self.state(hash_tag);
        if state.now.load(Ordering::Relaxed) != ANSWERS || state.failures.load(Ordering::Relaxed) > 0 {
            self.count_answer_after_failures(state);
        }
    }

    #[cold]
    fn count_answer_after_failures(&self, state: &FailureState) {
        let one_less = |failures: u32| failures.checked_sub(1);
        let _ = state.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        let now_us = self.warnings.now_us();
        let quiet_us = now_us.saturating_sub(state.failed_us.load(Ordering::Relaxed));
        let is_due = now_us >= self.recovery_due_us.load(Ordering::Relaxed);
        match state.now.load(Ordering::Relaxed) {
            UNREACHABLE | REFUSES if quiet_us < QUIET_US => {}
            UNREACHABLE | REFUSES | UNREPORTED if !is_due => self.change(state, UNREPORTED, None),
            _ => self.change(state, ANSWERS, None),
        }
    }

    /// Counts a call that Redis did not answer.
    pub(super) fn count_silence(&self, hash_tag: HashTag, error: &Error) {
        let state = self.state(hash_tag);
        let one_more = |failures: u32| (failures < MIN_FAILURES).then_some(failures + 1);
        let counted = state.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        let is_outage = counted.map_or(true, |before| before + 1 == MIN_FAILURES);
        if is_outage || state.now.load(Ordering::Relaxed) == UNKNOWN {
            // Not of single timeouts: a busy process has them all the time, and would never recover.
            state.failed_us.store(self.warnings.now_us(), Ordering::Relaxed);
            self.change(state, UNREACHABLE, Some(error));
        }
    }

    /// Counts a call that Redis rejected.
    pub(super) fn count_rejection(&self, hash_tag: HashTag, error: &Error) {
        let state = self.state(hash_tag);
        state.failed_us.store(self.warnings.now_us(), Ordering::Relaxed);
        self.change(state, REFUSES, Some(error));
    }

    pub(super) fn is_answering(&self, hash_tag: HashTag) -> bool {
        matches!(self.state(hash_tag).now.load(Ordering::Relaxed), ANSWERS | UNREPORTED)
    }

    fn state(&self, hash_tag: HashTag) -> &FailureState {
        &self.states[hash_tag.index() % self.states.len()]
    }

    /// Reports a change: a failure unless another circuit has the same, and the end of failures once no
    /// circuit fails.
    fn change(&self, state: &FailureState, to: u8, error: Option<&Error>) {
        let cause = error.map_or_else(Cause::default, |error| Cause::new(to, error));
        let is_of = |state: &FailureState| {
            state.now.load(Ordering::Relaxed) == to && state.cause.load(Ordering::Relaxed) == cause.0
        };
        if is_of(state) {
            return;
        }
        let mut reports = lock(&self.reports);
        let is_known = self.states.iter().any(is_of);
        let from = state.now.swap(to, Ordering::Relaxed);
        state.cause.store(cause.0, Ordering::Relaxed);
        let fails =
            |state: &FailureState| [UNREACHABLE, REFUSES].contains(&state.now.load(Ordering::Relaxed));
        match (to, error) {
            (UNREACHABLE, Some(error)) if !is_known => {
                let message = || self.message(error, "Until Redis answers", remedy(error));
                self.warn(&self.unreachable, &mut reports, cause, message);
            }
            // The error names its own remedy.
            (REFUSES, Some(error)) if !is_known => {
                let message = || self.message(error, "Until Redis accepts the calls", "");
                self.warn(&self.refused, &mut reports, cause, message);
            }
            // Unless another circuit has reported the end.
            (ANSWERS, _) if !reports.is_empty() && from > ANSWERS && !self.states.iter().any(fails) => {
                reports.clear();
                self.recovery_due_us.store(self.warnings.now_us() + REPORT_PAUSE_US, Ordering::Relaxed);
                self.warnings.recovered();
            }
            _ => {}
        }
    }

    /// Reports a failure, or only counts it if its cause was reported less than a minute ago, or too many others were.
    fn warn(
        &self,
        warning: &RepeatedWarning,
        reports: &mut ReportTimes,
        cause: Cause,
        message: impl FnOnce() -> String,
    ) {
        let now_us = self.warnings.now_us();
        let due_us = now_us + REPORT_PAUSE_US;
        let same = reports.iter().position(|(other, _)| *other == cause);
        let old = || reports.iter().position(|(_, due_us)| now_us >= *due_us);
        match same.or_else(|| if reports.len() < MAX_CAUSES { None } else { old() }) {
            Some(at) if now_us >= reports[at].1 => reports[at] = (cause, due_us),
            None if reports.len() < MAX_CAUSES => reports.push((cause, due_us)),
            _ => return warning.count(),
        }
        // Another cause may have been reported less than a second ago.
        warning.make_due();
        self.warnings.warn(warning, message);
    }

    fn message(&self, error: &Error, until: &str, fix: &str) -> String {
        let address = self.store.address().unwrap_or_default();
        let (policy, error) = (self.policy.in_words(), error.cause().at(address));
        let share = match (self.policy, self.instances.load(Ordering::Relaxed)) {
            (OnFailure::Local, 1) => ", here all of them".to_owned(),
            (OnFailure::Local, instances @ 2..) => format!(", here 1/{instances} of each"),
            _ => String::new(),
        };
        format!(
            "limits are not shared: {error}. {until}, {policy}{share}, unless a gate has another policy{fix}"
        )
    }
}

/// Returns what to do about the cause, for errors that do not say so themselves.
fn remedy(error: &Error) -> &'static str {
    let text = error.to_string();
    let has = |texts: &[&str]| texts.iter().any(|part| text.contains(part));
    if error.is_timeout() || has(&["the credentials provider"]) {
        ""
    } else if has(&["timed out connecting", "unreachable", "No route to host"]) {
        ". See whether the server runs, and whether the network or a firewall drops its packets"
    } else if error.is_lost_call() || has(&["reset by peer", "broken pipe", "unexpected end of file"]) {
        ". See in the log of Redis why connections end: a restart, `maxclients`, or a proxy between"
    } else if has(&["LOADING"]) {
        ". Redis has restarted: wait until it has loaded its data"
    } else {
        ". To mend it, correct the address, or start the server"
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::observer::{Event, EventSink, Observer};
    use crate::runtime::clock::{Clock, ManualClock};

    #[derive(Default)]
    struct Seen(Mutex<Vec<&'static str>>);

    impl Observer for Seen {
        fn on(&self, event: &Event<'_>) {
            match event {
                Event::Warned(warning) => lock(&self.0).push(warning.code()),
                Event::Recovered => lock(&self.0).push("recovered"),
                _ => {}
            }
        }
    }

    fn new(circuits: usize) -> (Availability, Arc<Seen>, ManualClock) {
        let (reports, clock) = (Arc::new(Seen::default()), ManualClock::new());
        let sink =
            WarningSink::new(EventSink::new(Some(reports.clone())), false, Clock::Manual(clock.clone()));
        let store = Arc::new(Store::memory(Clock::System, 1));
        (Availability::new(store, sink, OnFailure::Local, 0, circuits), reports, clock)
    }

    fn silence() -> Error {
        Error::timeout("Redis to answer", Duration::from_millis(1))
    }

    #[test]
    fn a_few_timeouts_of_a_working_redis_are_not_reported() {
        let (availability, reports, clock) = new(1);
        let tag = HashTag::default();
        availability.count_answer(tag);
        for _ in 1..MIN_FAILURES {
            availability.count_silence(tag, &silence());
        }
        assert!(lock(&reports.0).is_empty());
        availability.count_silence(tag, &silence());
        assert_eq!(*lock(&reports.0), ["redis-unreachable"]);
        availability.count_answer(tag);
        clock.advance(Duration::from_micros(QUIET_US - 1));
        availability.count_answer(tag);
        assert_eq!(lock(&reports.0).len(), 1);
        clock.advance(Duration::from_micros(1));
        availability.count_answer(tag);
        availability.count_answer(tag);
        assert_eq!(*lock(&reports.0), ["redis-unreachable", "recovered"]);
    }

    #[test]
    fn single_timeouts_after_an_outage_do_not_delay_its_end() {
        let (availability, reports, clock) = new(1);
        let tag = HashTag::default();
        availability.count_silence(tag, &silence());
        for _ in 0..3 {
            clock.advance(Duration::from_micros(QUIET_US / 2));
            availability.count_answer(tag);
            availability.count_silence(tag, &silence());
            availability.count_answer(tag);
        }
        assert_eq!(*lock(&reports.0), ["redis-unreachable", "recovered"]);
    }

    #[test]
    fn first_failure_is_reported_at_once_and_a_rejection_apart() {
        let (availability, reports, clock) = new(1);
        let tag = HashTag::default();
        availability.count_silence(tag, &silence());
        availability.count_rejection(tag, &Error::from_script("NOPERM"));
        availability.count_rejection(tag, &Error::from_script("NOPERM"));
        assert_eq!(*lock(&reports.0), ["redis-unreachable", "redis-refused"]);
        clock.advance(Duration::from_micros(QUIET_US));
        // Denials are still answered, but each charge is rejected.
        availability.count_rejection(tag, &Error::from_script("NOPERM"));
        availability.count_answer(tag);
        assert_eq!(lock(&reports.0).len(), 2);
    }

    #[test]
    fn circuits_of_a_cluster_are_reported_together() {
        let (availability, reports, clock) = new(2);
        let tags: Vec<_> = HashTag::all().take(2).collect();
        let (first, second) = (tags[0], tags[1]);
        availability.count_silence(first, &silence());
        availability.count_silence(second, &silence());
        clock.advance(Duration::from_micros(QUIET_US));
        availability.count_answer(first);
        assert_eq!(*lock(&reports.0), ["redis-unreachable"]);
        availability.count_answer(second);
        assert_eq!(*lock(&reports.0), ["redis-unreachable", "recovered"]);
    }

    /// Makes Redis fail and answer again, once a tenth of a minute.
    fn flap(availability: &Availability, clock: &ManualClock, times: u64) {
        let tag = HashTag::default();
        for _ in 0..times {
            for _ in 0..MIN_FAILURES {
                availability.count_silence(tag, &silence());
            }
            assert!(!availability.is_answering(tag));
            clock.advance(Duration::from_micros(REPORT_PAUSE_US / 10));
            for _ in 0..MIN_FAILURES {
                availability.count_answer(tag);
            }
            assert!(availability.is_answering(tag), "readiness follows at once");
        }
    }

    #[test]
    fn flapping_redis_is_reported_once_a_minute_in_each_state_and_never_wrongly() {
        let (availability, reports, clock) = new(1);
        availability.count_answer(HashTag::default());
        flap(&availability, &clock, 3);
        assert_eq!(*lock(&reports.0), ["redis-unreachable", "recovered", "redis-unreachable"]);
        flap(&availability, &clock, 60);
        // The minutes begin with the first end.
        let lines = lock(&reports.0).len();
        assert!((13..=16).contains(&lines), "{lines} lines in 6.3 minutes");
        let pairs = lock(&reports.0).chunks(2).all(|pair| pair[0] == "redis-unreachable");
        assert!(pairs, "each line is a change of the last one");
        // Quiet since the last failure.
        clock.advance(Duration::from_micros(REPORT_PAUSE_US));
        availability.count_answer(HashTag::default());
        assert_eq!(lock(&reports.0).last(), Some(&"recovered"));
        flap(&availability, &clock, 1);
        assert_eq!(lock(&reports.0).last(), Some(&"redis-unreachable"), "a new failure is reported at once");
    }

    #[test]
    fn redis_that_alternates_between_failures_is_reported_once_a_minute_in_each() {
        let (availability, reports, clock) = new(1);
        let tag = HashTag::default();
        for _ in 0..40 {
            (0..MIN_FAILURES).for_each(|_| availability.count_silence(tag, &silence()));
            clock.advance(Duration::from_micros(REPORT_PAUSE_US / 40));
            availability.count_rejection(tag, &Error::from_script("LOADING"));
        }
        assert_eq!(*lock(&reports.0), ["redis-unreachable", "redis-refused"]);
        clock.advance(Duration::from_micros(REPORT_PAUSE_US));
        availability.count_silence(tag, &silence());
        assert_eq!(lock(&reports.0).len(), 3);
    }

    #[test]
    fn new_cause_of_an_outage_is_reported_at_once() {
        let (availability, reports, clock) = new(1);
        let tag = HashTag::default();
        for _ in 0..10 {
            for code in
                ["NOPERM this user has no permissions", "OOM command not allowed", "READONLY You can't write"]
            {
                availability.count_rejection(tag, &Error::from_script(code));
                clock.advance(Duration::from_millis(10));
            }
        }
        assert_eq!(*lock(&reports.0), ["redis-refused"; 3], "each of them once");
        for _ in 0..MIN_FAILURES {
            availability.count_silence(tag, &Error::unavailable("Connection refused (os error 111)"));
        }
        availability.count_silence(tag, &Error::lost_call("broken pipe"));
        availability.count_silence(tag, &silence());
        assert_eq!(lock(&reports.0)[3..], ["redis-unreachable"; 2], "a lost call is of the same cause");
        for number in 0..100_u8 {
            let code = [b'X', b'A' + number % 26, b'A' + number / 26];
            availability.count_rejection(tag, &Error::from_script(str::from_utf8(&code).unwrap()));
        }
        assert_eq!(lock(&reports.0).len(), MAX_CAUSES, "the number of reports is bounded");
    }

    #[test]
    fn remedy_fits_the_cause() {
        let refused = Error::unavailable("Connection refused (os error 111)");
        assert!(remedy(&refused).contains("correct the address"));
        let provider = Error::unavailable("the credentials provider failed: no such file");
        for error in [silence(), provider] {
            assert_eq!(remedy(&error), "", "{error}: it says where to look");
        }
        for (error, expected) in [
            (Error::unavailable("timed out connecting"), "firewall"),
            (Error::lost_call("broken pipe"), "maxclients"),
            (Error::unavailable("Connection reset by peer (os error 104)"), "maxclients"),
            (Error::unavailable_since("LOADING Redis is loading the dataset in memory"), "loaded its data"),
        ] {
            let remedy = remedy(&error);
            assert!(remedy.contains(expected) && !remedy.contains("address"), "{error}: {remedy}");
        }
    }
}
