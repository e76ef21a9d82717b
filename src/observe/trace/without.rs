//! Replacements without the feature `tracing`: they do nothing.

use std::sync::Arc;

use crate::decision::{AllDecision, Decision};
use crate::error::Error;
use crate::observe::observer::Observer;

pub(crate) fn with_events(observer: Option<Arc<dyn Observer>>) -> Option<Arc<dyn Observer>> {
    observer
}

pub(crate) struct Span;

impl Span {
    #[inline]
    pub(crate) fn of_check(_: u64) -> Self {
        Self
    }

    pub(crate) fn of_all(_: usize) -> Self {
        Self
    }

    pub(crate) fn of_many(_: usize) -> Self {
        Self
    }

    #[inline]
    pub(crate) fn decided(self, _: Result<&Decision, &Error>) {}

    pub(crate) fn all_decided(self, _: Result<&AllDecision, &Error>) {}

    pub(crate) fn many_decided(self, _: &[Result<Decision, Error>]) {}
}
