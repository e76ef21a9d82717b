//! Rejected requests: the reason, the status and the message for the client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tidegate::{AllDecision, Decision, Error, Source};
#[cfg(feature = "rules")]
use tidegate_rules::RulesDecision;

use super::headers::Headers;
use super::missing_key::Absent;
use crate::policy::{Policies, Policy};

/// The seconds over which the retries of clients spread at a closed gate. Its clients would otherwise all retry
/// at the same moment.
const CLOSED_SPREAD_S: u64 = 9;

/// The rejection of a request: its reason, and the message and retry time for the client.
#[derive(Clone, Debug)]
pub struct Rejection {
    reason: Reason,
    message: String,
    retry_after: Option<Duration>,
    on_closed: OnClosed,
    pub(super) policies: Policies,
    /// The limits in shadow mode, as the header reports them.
    pub(super) shadow_limits: String,
    /// The layer's headers.
    pub(super) headers: Headers,
    pub(super) help: Option<Arc<str>>,
    #[cfg(feature = "rules")]
    pub(super) rules_decision: Option<Box<RulesDecision>>,
}

/// The reason why a request does not reach the service.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// A gate denied the request.
    Denied(AllDecision),
    /// An operator has [switched](tidegate::Control::switch) a gate closed for all its keys:
    /// [`OnClosed`](super::OnClosed). Other gates may have denied the request too.
    Closed(AllDecision),
    /// The client has not sent the key of a rule: [`MissingKey`](super::MissingKey).
    MissingKey,
    /// The service is set up wrongly, so no request like this one can be decided: the server does not provide
    /// the peer's address, no earlier layer has set an extension, or a gate is invalid. The error's text names
    /// the fix. It is meant for logs, not for clients.
    Misconfigured(Error),
    /// The cost is above the limit of a rule, so the request can never be admitted.
    TooCostly(Error),
    /// The limiter could not decide: [`OnError`](super::OnError). The error's text is meant for logs, not for
    /// clients.
    Failed(Error),
}

/// How the layer rejects a request at a gate that an operator has
/// [switched](tidegate::Control::switch) closed. gRPC requests get `UNAVAILABLE` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnClosed {
    /// Responds with 503: the service is not available, and the client is not at fault.
    #[default]
    Unavailable,
    /// Responds with 429, for clients that back off only on this status.
    TooManyRequests,
}

impl Rejection {
    pub(super) fn denied(decision: AllDecision, policies: Policies, headers: &Headers) -> Self {
        let wait = headers.jittered_wait(decision.retry_after());
        let at = decision.binding_index();
        let (policy, limit) = (&policies[at], decision.binding().limit());
        let name = policy.name(decision.binding());
        let exceeded = match policy.window_s {
            // The state does not tell a ban from an operator's block.
            _ if decision.binding().is_blocked() => {
                "blocks the key of this request, after too many denials or by an operator".to_owned()
            }
            Some(window_s) => format!("of {limit} in {} is exceeded", seconds_text(window_s)),
            None if policy.unit.is_some() => format!("of {limit} units in flight is reached"),
            None if limit == 1 => "of 1 concurrent request is reached".to_owned(),
            None => format!("of {limit} concurrent requests is reached"),
        };
        let message =
            format!("The limit \"{name}\" {exceeded}. Try again in {}.", seconds_text(wait.as_secs()));
        Self { policies, headers: *headers, ..Self::new(Reason::Denied(decision), message, Some(wait)) }
    }

    /// Rejects a request at a gate for which [`is_closed`](Self::is_closed) holds.
    pub(super) fn closed(
        decision: AllDecision,
        policies: Policies,
        headers: &Headers,
        on_closed: OnClosed,
    ) -> Self {
        let spread = Duration::from_secs(fastrand::u64(0..=CLOSED_SPREAD_S));
        let wait = headers.jittered_wait(Decision::FIXED_RETRY + spread);
        let gates = decision.each_alone().iter().zip(&policies);
        let name =
            gates.filter(|(gate, _)| Self::is_closed(gate)).map(|(gate, policy)| policy.name(gate)).next();
        let message = format!(
            "An operator has closed \"{}\" for now. Try again in {}.",
            name.unwrap_or_default(),
            seconds_text(wait.as_secs())
        );
        Self {
            policies,
            on_closed,
            headers: *headers,
            ..Self::new(Reason::Closed(decision), message, Some(wait))
        }
    }

    /// Returns whether an operator has closed the gate of this decision.
    pub(super) fn is_closed(decision: &Decision) -> bool {
        !decision.is_allowed() && decision.source() == Source::Switch
    }

    /// Rejects a request that lacks a part of its key. `limit`: that of a gate.
    pub(super) fn absent(absent: Absent, limit: Option<&str>) -> Self {
        match absent {
            Absent::NotSent => {
                let limit = limit.map_or("its limit".to_owned(), |name| format!("the limit \"{name}\""));
                let message = format!("This request lacks the key that {limit} counts by.");
                Self::new(Reason::MissingKey, message, None)
            }
            Absent::PeerAddress | Absent::Extension { .. } => {
                Self::misconfigured(Error::config(absent.to_string()))
            }
        }
    }

    fn misconfigured(error: Error) -> Self {
        let message = "The rate limiter of this service is set up wrongly and cannot decide on this request.";
        Self::new(Reason::Misconfigured(error), message.to_owned(), None)
    }

    /// `policy`: that of the gate whose check failed.
    pub(super) fn error(error: Error, policy: Option<Policy>, headers: &Headers) -> Self {
        let rejection = if error.is_config() {
            Self::misconfigured(error)
        } else if let Some((cost, limit)) = error.cost_and_limit() {
            let name = policy.as_ref().and_then(|policy| policy.name.as_deref()).or(error.gate());
            let message = format!(
                "This request costs {cost}, which the limit \"{}\" of {limit} never permits. Send a smaller request.",
                name.unwrap_or_default()
            );
            let policies = policy.into_iter().collect();
            Self { policies, ..Self::new(Reason::TooCostly(error), message, None) }
        } else {
            let message =
                "The rate limiter cannot decide on this request at the moment. Try again.".to_owned();
            let wait = headers.jittered_wait(Duration::from_secs(1));
            Self::new(Reason::Failed(error), message, Some(wait))
        };
        Self { headers: *headers, ..rejection }
    }

    fn new(reason: Reason, message: String, retry_after: Option<Duration>) -> Self {
        Self {
            reason,
            message,
            retry_after,
            on_closed: OnClosed::default(),
            policies: Policies::new(),
            shadow_limits: String::new(),
            headers: Headers::new(),
            help: None,
            #[cfg(feature = "rules")]
            rules_decision: None,
        }
    }

    #[cfg(feature = "rules")]
    pub(super) fn with_rules_decision(self, decision: Option<RulesDecision>) -> Self {
        Self { rules_decision: decision.map(Box::new), ..self }
    }

    /// Adds a link by which the client finds help or a contact: `help` in JSON, a line of text, a link of gRPC's error
    /// details. As [`RateLimitLayer::help`](crate::RateLimitLayer::help), for a handler that checks a gate itself.
    #[must_use]
    pub fn with_help(self, link: &str) -> Self {
        Self { help: Some(link.into()), ..self }
    }

    /// Returns the reason for the rejection.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// Returns the decision on each descriptor, if rules from files denied the request or a gate is closed.
    #[cfg(feature = "rules")]
    #[must_use]
    pub fn rules_decision(&self) -> Option<&RulesDecision> {
        self.rules_decision.as_deref()
    }

    /// Returns the status for the reason: 429, 400, 500 or 503.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.reason {
            Reason::Denied(_) => StatusCode::TOO_MANY_REQUESTS,
            Reason::Closed(_) => match self.on_closed {
                OnClosed::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
                OnClosed::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            },
            Reason::MissingKey | Reason::TooCostly(_) => StatusCode::BAD_REQUEST,
            Reason::Misconfigured(_) => StatusCode::INTERNAL_SERVER_ERROR,
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

/// Displays the [message](Rejection::message).
impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The rejection of a request that a gate failed to decide, for a handler that checks the gate itself. Its
/// [reason](Reason) is `Misconfigured`, `TooCostly` or `Failed`, as in the layer. The layer warns of a wrong setup; a
/// handler logs the error itself. Its headers are [`Headers::new`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
/// use http::{Request, StatusCode};
/// use tidegate::{Limiter, OnFailure, Quota, Rate};
/// use tidegate_http::Rejection;
///
/// let nobody_listens = Limiter::builder().url("redis://127.0.0.1:1").on_failure(OnFailure::Error).build()?;
/// let gate = nobody_listens.gate("mail", Quota::token_bucket(1, Rate::per_minute(1)));
/// let rejection = Rejection::from(gate.check("user:42").await.unwrap_err());
/// let (request, ()) = Request::new(()).into_parts();
/// let response = rejection.response_with_headers(&request);
/// assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
/// assert_eq!(response.headers()["retry-after"], "1");
/// assert!(!response.body().contains("127.0.0.1"), "the error's text is meant for logs");
/// # Ok(()) }
/// ```
impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::error(error, None, &Headers::new())
    }
}

/// Its source is the limiter's error, if there is one.
///
/// `?` converts it to the boxed errors of frameworks, such as `anyhow::Error`. Most frameworks respond to these with 500,
/// also in place of 429. A handler responds with [`Rejection::response_with_headers`] instead.
impl std::error::Error for Rejection {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.reason {
            Reason::Misconfigured(error) | Reason::TooCostly(error) | Reason::Failed(error) => Some(error),
            Reason::Denied(_) | Reason::Closed(_) | Reason::MissingKey => None,
        }
    }
}

/// Returns a time as text: two days or more in days, since people do not divide seconds. Headers have the seconds.
fn seconds_text(seconds: u64) -> String {
    const DAY_S: u64 = 86_400;
    match seconds {
        1 => "1 second".to_owned(),
        0..=172_799 => format!("{seconds} seconds"),
        _ if seconds.is_multiple_of(DAY_S) => format!("{} days", seconds / DAY_S),
        _ => format!("about {} days", (seconds + DAY_S / 2) / DAY_S),
    }
}

#[cfg(test)]
mod tests {
    use super::seconds_text;

    #[test]
    fn times_of_two_days_or_more_are_shown_in_days() {
        let texts = [1, 3_600, 172_799, 172_800, 172_801, 604_800, 2_629_746].map(seconds_text);
        let days = ["2 days", "about 2 days", "7 days", "about 30 days"];
        assert_eq!(texts[..3], ["1 second", "3600 seconds", "172799 seconds"]);
        assert_eq!(texts[3..], days);
    }
}
