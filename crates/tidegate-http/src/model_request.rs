//! The tokens that a request to a language model can use, read from its body.

use std::error::Error;
use std::fmt;

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;

use super::body::BoxError;

/// More than any limit admits. Without it, a client's `max_tokens` of 2^64 - 1 plus the prompt would wrap around to a small cost.
const MAX_ANSWER_TOKENS: u64 = 1 << 50;

/// A request to a language model: its body, and the tokens that its answer can have.
///
/// [`RateLimitLayer::admit`](crate::RateLimitLayer::admit) takes the head of a request, whose extensions hand this
/// over to the rules:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use http::{Request, Response};
/// use tidegate::{Limiter, Quota, Rate};
/// use tidegate_http::{Charge, GateRule, Key, ModelRequest, RateLimitLayer};
///
/// let tokens = Limiter::in_memory().gate("tokens", Quota::token_bucket(10_000, Rate::per_minute(10_000)));
/// let rule = GateRule::new(tokens, Key::header("x-api-key"))
///     .cost(ModelRequest::cost(|asked| asked.max_prompt_tokens() + asked.max_answer_tokens()))
///     .charge(Charge::usage());
/// let limit = RateLimitLayer::of([rule]);
///
/// let body = r#"{"model":"mini","max_completion_tokens":900,"messages":[{"role":"user","content":"hi"}]}"#;
/// let (mut head, body) =
///     Request::builder().header("x-api-key", "k1").body(body.to_owned())?.into_parts();
/// let asked = ModelRequest::read(body, 1 << 20, 4_096).await?;
/// head.extensions.insert(asked.clone());
/// let admitted = limit.admit(&head).await?; // a request of 88 bytes costs 988 tokens
/// let usage = admitted.usage().cloned().unwrap_or_default();
/// usage.set(21 + 340); // … as the model reported at the end
/// let response = admitted.respond(Response::new(String::new())).await;
/// # let _ = response; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ModelRequest {
    body: Bytes,
    max_answer_tokens: u64,
}

/// The members that bound the answer. Of a member that occurs twice, the model might read the other one: it is an error.
#[derive(Deserialize)]
struct Asked {
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
    /// The number of answers.
    n: Option<u64>,
}

impl ModelRequest {
    /// Reads a body of at most `max_bytes`, and no more of a longer one.
    ///
    /// The answer is bounded by `max_tokens`, `max_completion_tokens` or `max_output_tokens`, of which the largest
    /// counts, times `n`. `default_max_tokens` applies to a request with none of them: the most that the model answers
    /// with.
    ///
    /// Cancel safe: dropping the future drops the body.
    ///
    /// # Errors
    ///
    /// [`ModelRequestError`], whose [status](ModelRequestError::status) is 413 or 400.
    pub async fn read<B>(
        body: B,
        max_bytes: usize,
        default_max_tokens: u64,
    ) -> Result<Self, ModelRequestError>
    where
        B: Body,
        B::Error: Into<BoxError>,
    {
        let body = Limited::new(body, max_bytes).collect().await.map_err(|error| {
            match error.downcast_ref::<LengthLimitError>() {
                Some(_) => ModelRequestError::TooLong { max_bytes },
                None => ModelRequestError::Unreadable(error),
            }
        })?;
        Self::parse(body.to_bytes(), default_max_tokens)
    }

    /// Parses a body that was read already. See [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`ModelRequestError::Invalid`].
    pub fn parse(body: impl Into<Bytes>, default_max_tokens: u64) -> Result<Self, ModelRequestError> {
        let body = body.into();
        let invalid = |error: serde_json::Error| ModelRequestError::Invalid(error.to_string());
        let asked: Asked = serde_json::from_slice(&body).map_err(invalid)?;
        let bounds = [asked.max_tokens, asked.max_completion_tokens, asked.max_output_tokens];
        let bound = bounds.into_iter().flatten().max().unwrap_or(default_max_tokens);
        let all = bound.saturating_mul(asked.n.unwrap_or(1).max(1));
        Ok(Self { body, max_answer_tokens: all.min(MAX_ANSWER_TOKENS) })
    }

    /// Returns the body, to be sent to the model as it is.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.body.clone()
    }

    /// Returns an upper bound of the tokens of a prompt of text: the bytes of the body, since no token is shorter. A
    /// quarter is a usual estimate for English. Neither holds for images, audio and files, which a model counts in its own way.
    #[must_use]
    pub fn max_prompt_tokens(&self) -> u64 {
        self.body.len() as u64
    }

    /// Returns the tokens that all answers together have at most. At most 2^50, which no limit admits: so the sum with
    /// the prompt, and its price in micro-dollars, do not overflow.
    #[must_use]
    pub const fn max_answer_tokens(&self) -> u64 {
        self.max_answer_tokens
    }

    /// Returns the cost of a [rule](crate::GateRule::cost) that depends on the `ModelRequest` in the extensions of the
    /// request. Without one, the request costs `u64::MAX`: no limit admits it.
    ///
    /// A price in dollars per million tokens is one in micro-dollars per token, such as `3 * prompt + 15 * answer`.
    pub fn cost(
        units: impl Fn(&Self) -> u64 + Send + Sync + 'static,
    ) -> impl Fn(&Parts) -> u64 + Send + Sync + 'static {
        move |parts| parts.extensions.get().map_or(u64::MAX, &units)
    }
}

/// Why a body is not a request to a language model.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelRequestError {
    /// The body is longer.
    TooLong {
        /// The bytes that it may have.
        max_bytes: usize,
    },
    /// The body failed while it was read, as when the client leaves.
    Unreadable(BoxError),
    /// The body is not JSON, or a member is not a whole number or occurs twice. The text says which.
    Invalid(String),
}

impl ModelRequestError {
    /// Returns the status of the response: 413 for a body that is too long, otherwise 400.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unreadable(_) | Self::Invalid(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// Displays a message for the client.
impl fmt::Display for ModelRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { max_bytes } => write!(f, "the body is longer than {max_bytes} bytes"),
            Self::Unreadable(error) => write!(f, "the body could not be read: {error}"),
            Self::Invalid(reason) => write!(f, "the body is not a request to a language model: {reason}"),
        }
    }
}

impl Error for ModelRequestError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreadable(error) => Some(&**error),
            Self::TooLong { .. } | Self::Invalid(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[test]
    fn answer_is_bounded_by_the_largest_member_times_the_number_of_answers() {
        for (body, tokens) in [
            (r"{}", 100),
            (r#"{"max_tokens":7}"#, 7),
            (r#"{"max_completion_tokens":8,"max_tokens":null}"#, 8),
            (r#"{"max_output_tokens":9}"#, 9),
            (r#"{"max_tokens":7,"max_completion_tokens":8}"#, 8),
            (r#"{"max_tokens":0}"#, 0),
            (r#"{"max_tokens":7,"n":3}"#, 21),
            (r#"{"n":3}"#, 300),
            (r#"{"max_tokens":7,"n":0}"#, 7),
            (r#"{"max_tokens":18446744073709551615,"n":2}"#, MAX_ANSWER_TOKENS),
            (r#"{"messages":[{"max_tokens":5}],"max_tokens":6,"metadata":{"n":9}}"#, 6),
        ] {
            let asked = ModelRequest::parse(body, 100).unwrap();
            assert_eq!(asked.max_answer_tokens(), tokens, "{body}");
            assert_eq!((asked.max_prompt_tokens(), asked.body()), (body.len() as u64, body.into()));
        }
    }

    #[test]
    fn cost_of_the_largest_bound_does_not_wrap_around() {
        let asked = ModelRequest::parse(r#"{"max_tokens":18446744073709551615}"#, 100).unwrap();
        let cost = ModelRequest::cost(|asked| asked.max_prompt_tokens() + asked.max_answer_tokens());
        let (mut head, ()) = http::Request::new(()).into_parts();
        head.extensions.insert(asked);
        assert!(cost(&head) > MAX_ANSWER_TOKENS);
    }

    /// A bound that the model may read in another way is refused: it would be charged too little.
    #[test]
    fn doubtful_bounds_are_refused() {
        let deep = format!(r#"{{"a":{}}}"#, "[".repeat(200));
        for body in [
            "",
            "null",
            "7",
            r#"{"max_tokens":-1}"#,
            r#"{"max_tokens":1.5}"#,
            r#"{"max_tokens":1e3}"#,
            r#"{"max_tokens":"9"}"#,
            r#"{"max_tokens":18446744073709551616}"#,
            r#"{"max_tokens":1,"max_tokens":9000}"#,
            r#"{"n":[2]}"#,
            r#"{"max_tokens":1} {"max_tokens":9000}"#,
            &deep,
        ] {
            let error = ModelRequest::parse(body.to_owned(), 100).unwrap_err();
            assert_eq!(error.status(), StatusCode::BAD_REQUEST, "{body}: {error}");
        }
    }

    #[tokio::test]
    async fn longer_body_is_refused_with_413() {
        let body = || Full::new(Bytes::from_static(br#"{"max_tokens":7}"#));
        assert_eq!(ModelRequest::read(body(), 16, 0).await.unwrap().max_answer_tokens(), 7);
        let error = ModelRequest::read(body(), 15, 0).await.unwrap_err();
        assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(error.to_string(), "the body is longer than 15 bytes");
    }

    #[test]
    fn request_that_was_not_read_costs_more_than_any_limit() {
        let cost = ModelRequest::cost(ModelRequest::max_answer_tokens);
        let (mut head, ()) = http::Request::new(()).into_parts();
        assert_eq!(cost(&head), u64::MAX);
        head.extensions.insert(ModelRequest::parse("{}", 5).unwrap());
        assert_eq!(cost(&head), 5);
    }
}
