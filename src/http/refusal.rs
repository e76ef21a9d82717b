//! Why a request does not reach the service, and what its client is told.

use std::time::Duration;

use http::request::Parts;
use http::{Response, StatusCode};

use super::answer;
use super::headers::Headers;
use super::policy::Policy;
use crate::decision::{AllDecision, Decision};
use crate::error::Error;
#[cfg(feature = "rules")]
use crate::rules::Ruling;

/// A request that does not reach the service: why, and what its client is to be told.
#[derive(Clone, Debug)]
pub struct Refusal {
    reason: Reason,
    message: String,
    retry_after: Option<Duration>,
    pub(super) policies: Vec<Policy>,
    #[cfg(feature = "rules")]
    pub(super) ruling: Option<Box<Ruling>>,
}

/// Why a request does not reach the service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// A gate denied it.
    Denied(AllDecision),
    /// It lacks the key of a rule: [`MissingKey`](super::MissingKey).
    MissingKey,
    /// Its cost is above the limit of a rule, so that it can never pass.
    TooCostly(Error),
    /// The limiter could not decide: [`OnError`](super::OnError). The error's text is for your logs, not for clients.
    Failed(Error),
}

impl Refusal {
    pub(super) fn denied(decision: AllDecision, policies: Vec<Policy>, headers: &Headers) -> Self {
        let wait = headers.wait(decision.retry_after());
        let at = decision.binding;
        let (policy, limit) = (&policies[at], decision.binding().limit());
        let name = policy.name(decision.binding());
        let message = format!(
            "The limit \"{name}\" of {limit} in {} is exceeded. Try again in {}.",
            seconds(policy.window_s),
            seconds(wait.as_secs())
        );
        Self { policies, ..Self::new(Reason::Denied(decision), message, Some(wait)) }
    }

    pub(super) fn missing_key() -> Self {
        let message = "This request lacks what its limit is counted by.".to_owned();
        Self::new(Reason::MissingKey, message, None)
    }

    pub(super) fn error(error: Error, headers: &Headers) -> Self {
        let (reason, message, retry_after) = if error.is_over_capacity() {
            let message = "This request asks for more at once than its limit ever permits. Ask for less.";
            (Reason::TooCostly(error), message, None)
        } else {
            let message = "Whether this request is within its limit cannot be told at the moment. Try again.";
            (Reason::Failed(error), message, Some(headers.wait(Duration::from_secs(1))))
        };
        Self::new(reason, message.to_owned(), retry_after)
    }

    fn new(reason: Reason, message: String, retry_after: Option<Duration>) -> Self {
        Self {
            reason,
            message,
            retry_after,
            policies: Vec::new(),
            #[cfg(feature = "rules")]
            ruling: None,
        }
    }

    /// Why.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// Where rules from files denied it: what they say of each descriptor.
    #[cfg(feature = "rules")]
    #[must_use]
    pub fn ruling(&self) -> Option<&Ruling> {
        self.ruling.as_deref()
    }

    /// The status that fits: 429, 400, 413 or 503.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey => StatusCode::BAD_REQUEST,
            Reason::TooCostly(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// When to come back, as the header says it: rounded up to whole seconds, with its jitter.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// What to tell a person: which limit was exceeded, and when to come back.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The layer's own answer: a problem in JSON, or text where the request prefers that; with the feature
    /// `tonic` a gRPC status for a gRPC request.
    #[must_use]
    pub fn response(&self, request: &Parts) -> Response<String> {
        #[cfg(feature = "tonic")]
        if let Some(response) = super::grpc::response(self, request) {
            return response;
        }
        answer::response(self, request)
    }

    /// The names of the limits that were exceeded.
    pub(super) fn violated(&self) -> impl Iterator<Item = &str> {
        let denied = match &self.reason {
            Reason::Denied(decision) => Some(decision),
            _ => None,
        };
        denied.into_iter().flat_map(|decision| {
            let decisions = decision.decisions().iter().zip(&self.policies).enumerate();
            let is_violated = |at: usize, it: &Decision| at == decision.binding || !it.is_allowed();
            decisions
                .filter(move |(at, (it, _))| is_violated(*at, it))
                .map(|(_, (it, policy))| policy.name(it))
        })
    }
}

fn seconds(seconds: u64) -> String {
    if seconds == 1 { "1 second".to_owned() } else { format!("{seconds} seconds") }
}
