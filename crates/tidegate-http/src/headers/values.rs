//! The values that the headers report, and their text.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::{AllDecision, Decision};

use crate::policy::Policy;

/// The values to report to a client.
pub(crate) struct HeaderValues<'a> {
    pub(crate) decision: &'a AllDecision,
    pub(crate) policies: &'a [Policy],
    /// The retry time of a denied request; `None` for an admitted one.
    pub(crate) wait: Option<Duration>,
}

impl HeaderValues<'_> {
    /// Returns the indices of the limits to report: all that can deny. A client must not slow down for a
    /// limit in shadow mode.
    fn reported(&self) -> impl Iterator<Item = usize> {
        (0..self.policies.len()).filter(move |&at| !self.policies[at].is_shadow)
    }

    /// Returns the indices of the limits to report that have a window: not those of in-flight limits.
    fn with_window(&self) -> impl Iterator<Item = usize> {
        self.reported().filter(move |&at| self.policies[at].window_s.is_some())
    }

    /// Returns the index of the limit to report where only one can be reported. `None` if no limit with a window
    /// can deny.
    pub(super) fn reported_limit(&self) -> Option<usize> {
        let binding = self.decision.binding_index();
        let is_binding = |at: &usize| self.wait.is_some() && *at == binding;
        let by_units = || self.with_window().min_by_key(|&at| self.decision.each_alone()[at].remaining());
        self.with_window().find(is_binding).or_else(by_units)
    }

    /// Returns the reset time of a limit in seconds. If no unit is available, it is the time until one is.
    pub(super) fn reset(&self, at: usize) -> u64 {
        let decision = &self.decision.each_alone()[at];
        match self.wait {
            Some(wait) if at == self.decision.binding_index() => wait.as_secs(),
            Some(_) if !decision.is_allowed() => ceil_seconds(decision.retry_after()).max(1),
            _ if decision.remaining() == 0 => ceil_seconds(decision.retry_after()).max(1),
            _ => ceil_seconds(decision.reset_after()),
        }
    }

    /// Returns the policies of draft 7, such as `100;w=60, 1000;w=3600`, the reported limit first. Each number of
    /// units may occur only once.
    pub(super) fn unnamed_policies(&self, reported: usize) -> String {
        let mut policies = String::new();
        let mut listed = Vec::new();
        for at in std::iter::once(reported).chain(self.with_window().filter(|at| *at != reported)) {
            let (limit, window_s) = (self.decision.each_alone()[at].limit(), self.policies[at].window_s);
            if let Some(window_s) = window_s
                && !listed.contains(&limit)
            {
                let comma = if listed.is_empty() { "" } else { ", " };
                let _ = write!(policies, "{comma}{limit};w={window_s}");
                listed.push(limit);
            }
        }
        policies
    }

    /// Returns the policies and limits of draft 11, such as `"api";q=100;w=60` and `"api";r=99;t=60`. Of
    /// several limits with one name, lists the binding one, or else the one with the fewest remaining units.
    pub(super) fn named(&self) -> (String, String) {
        let (mut policies, mut limits) = (String::new(), String::new());
        let names: Vec<&str> = (0..self.policies.len())
            .map(|at| self.policies[at].name(&self.decision.each_alone()[at]))
            .collect();
        let decisions = self.decision.each_alone();
        for at in self.reported() {
            let decision = &decisions[at];
            let rank = |at: usize| (at != self.decision.binding_index(), decisions[at].remaining(), at);
            if self.reported().any(|other| names[other] == names[at] && rank(other) < rank(at)) {
                continue;
            }
            let comma = if policies.is_empty() { "" } else { ", " };
            let name = quoted(names[at]);
            let (limit, remaining) = (decision.limit(), decision.remaining());
            let _ = write!(policies, "{comma}{name};q={limit}");
            let _ = write!(limits, "{comma}{name};r={remaining}");
            let _ = match self.policies[at].window_s {
                Some(window_s) => {
                    write!(policies, ";w={window_s}").and_then(|()| write!(limits, ";t={}", self.reset(at)))
                }
                None => write!(policies, ";qu=\"concurrent-requests\""),
            };
        }
        (policies, limits)
    }
}

impl Policy {
    pub(crate) fn name<'a>(&'a self, decision: &'a Decision) -> &'a str {
        self.name.as_deref().unwrap_or_else(|| decision.gate())
    }
}

pub(super) fn ceil_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Returns a string of RFC 9651, which is ASCII. Other bytes, and `%` itself, are percent-encoded.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' if byte != b'%' => quoted.push(char::from(byte)),
            _ => {
                let _ = write!(quoted, "%{byte:02X}");
            }
        }
    }
    quoted.push('"');
    quoted
}
