//! Stage 8: shadow mode, then the figures of the gate and the observer.

use std::fmt;

use super::components::Pipeline;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::observe::figures::GateCounters;
use crate::observe::observer::{Event, EventKey};
use crate::observe::trace::Span;
use crate::pipeline::request::Request;
use crate::store::GateInfo;

impl Pipeline {
    /// Does the same as [`report`](Self::report) for a check that was decided without waiting.
    pub(super) fn report_immediate(
        &self,
        request: &Request<'_>,
        decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        let decided = self.report(request, decided);
        Span::of_check(request.cost).decided(decided.as_ref());
        decided
    }

    /// Applies shadow mode and notifies the observer. Peeks are not reported.
    #[inline]
    pub(super) fn report(
        &self,
        request: &Request<'_>,
        mut decided: Result<Decision, Error>,
    ) -> Result<Decision, Error> {
        if request.gate.is_shadow {
            decided = Self::admit_in_shadow(request, decided);
        }
        if let Ok(decision) = &decided
            && request.cost > 0
        {
            self.notify(request, decision);
        }
        decided
    }

    /// Reports a decision and a denied key, also if only shadow mode admitted the check.
    #[inline]
    pub(crate) fn notify(&self, request: &Request<'_>, decision: &Decision) {
        self.notify_decided(request.gate.counters(), decision);
        if let Ok(info) = request.gate.info()
            && (decision.shadow || !decision.allowed)
            && decision.source != Source::Switch
        {
            self.events.notify(&Event::Denied { gate: &info.name, key: EventKey(&InRedis(request)) });
        }
    }

    /// Reports the checks of a group that a switch decided: all if the group is admitted, else those that denied it.
    pub(super) fn notify_switched(
        &self,
        requests: &[Request<'_>],
        decisions: &[Option<Decision>],
        switched: &[usize],
        is_allowed: bool,
    ) {
        let decided = switched.iter().filter_map(|&at| Some((&requests[at], decisions[at].as_ref()?)));
        let reported = decided.filter(|(_, decision)| is_allowed || !decision.is_allowed());
        reported.for_each(|(request, decision)| self.notify_decided(request.gate.counters(), decision));
    }

    /// Counts a decision in the figures of its gate, if there are any, and notifies the observer.
    #[inline]
    pub(super) fn notify_decided(&self, counters: Option<&GateCounters>, decision: &Decision) {
        if let Some(counters) = counters {
            counters.count(decision);
        }
        self.events.notify(&Event::Decided(decision));
    }

    /// Counts an error in the figures of its gate, and notifies the observer.
    pub(super) fn notify_failed(&self, info: &GateInfo, error: impl FnOnce() -> Error) {
        if let Some(figures) = &self.figures {
            figures.count_error(info.counters.as_deref());
        }
        if self.events.is_observed() {
            self.events.notify(&Event::Failed { gate: &info.name, error: &error() });
        }
    }
}

/// A key as it is written in Redis, formatted only when it is displayed.
struct InRedis<'a>(&'a Request<'a>);

impl fmt::Display for InRedis<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.target() {
            Ok(target) => f.write_str(&target.redis_key),
            Err(_) => Ok(()),
        }
    }
}
