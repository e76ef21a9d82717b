//! Rejected requests: the reason, the status and the message for the client.

use std::time::Duration;

use http::StatusCode;
use tidegate::{AllDecision, Error};
#[cfg(feature = "rules")]
use tidegate_rules::RulesDecision;

use super::headers::Headers;
use super::policy::Policy;

/// The rejection of a request: its reason, and the message and retry time for the client.
#[derive(Clone, Debug)]
pub struct Rejection {
    reason: Reason,
    message: String,
    retry_after: Option<Duration>,
    pub(super) policies: Vec<Policy>,
    #[cfg(feature = "rules")]
    pub(super) rules_decision: Option<Box<RulesDecision>>,
}

/// The reason why a request does not reach the service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// A gate denied the request.
    Denied(AllDecision),
    /// The request lacks the key of a rule: [`MissingKey`](super::MissingKey).
    MissingKey,
    /// The cost is above the limit of a rule, so the request can never be admitted.
    TooCostly(Error),
    /// The limiter could not decide: [`OnError`](super::OnError). The error's text is meant for logs, not for
    /// clients.
    Failed(Error),
}

impl Rejection {
    pub(super) fn denied(decision: AllDecision, policies: Vec<Policy>, headers: &Headers) -> Self {
        let wait = headers.jittered_wait(decision.retry_after());
        let at = decision.binding_index();
        let (policy, limit) = (&policies[at], decision.binding().limit());
        let name = policy.name(decision.binding());
        let message = format!(
            "The limit \"{name}\" of {limit} in {} is exceeded. Try again in {}.",
            seconds_text(policy.window_s),
            seconds_text(wait.as_secs())
        );
        Self { policies, ..Self::new(Reason::Denied(decision), message, Some(wait)) }
    }

    pub(super) fn missing_key() -> Self {
        let message = "This request lacks the key that its limit counts by.".to_owned();
        Self::new(Reason::MissingKey, message, None)
    }

    pub(super) fn error(error: Error, headers: &Headers) -> Self {
        let (reason, message, retry_after) = if error.is_over_capacity() {
            let message = "This request costs more than its limit ever permits. Send a smaller request.";
            (Reason::TooCostly(error), message, None)
        } else {
            let message = "The rate limiter cannot decide on this request at the moment. Try again.";
            (Reason::Failed(error), message, Some(headers.jittered_wait(Duration::from_secs(1))))
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
            rules_decision: None,
        }
    }

    #[cfg(feature = "rules")]
    pub(super) fn with_rules_decision(self, decision: Option<RulesDecision>) -> Self {
        Self { rules_decision: decision.map(Box::new), ..self }
    }

    /// Returns the reason for the rejection.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// Returns the decision on each descriptor, if rules from files denied the request.
    #[cfg(feature = "rules")]
    #[must_use]
    pub fn rules_decision(&self) -> Option<&RulesDecision> {
        self.rules_decision.as_deref()
    }

    /// Returns the status for the reason: 429, 400, 413 or 503.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            Reason::MissingKey => StatusCode::BAD_REQUEST,
            Reason::TooCostly(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Reason::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the time until a retry, as in `Retry-After`: rounded up to whole seconds, plus jitter.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns a message for people: which limit was exceeded, and when to retry.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

fn seconds_text(seconds: u64) -> String {
    if seconds == 1 { "1 second".to_owned() } else { format!("{seconds} seconds") }
}
