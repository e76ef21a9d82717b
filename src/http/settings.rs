//! The settings of a layer.

use std::sync::Arc;

use http::Response;
use http::request::Parts;

use super::body::RejectionBody;
use super::charge::Charge;
use super::headers::Headers;
use super::rejection::Rejection;
use super::rule::{Cost, Rule};
use super::wait_queue::WaitQueue;

pub(super) type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(super) type Chooser = Arc<dyn Fn(&Parts) -> BoxFuture<'static, Vec<Rule>> + Send + Sync>;
pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Responder =
    Arc<dyn Fn(Parts, Rejection) -> BoxFuture<'static, Response<RejectionBody>> + Send + Sync>;

/// How the layer handles a request that lacks the key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request with 400.
    #[default]
    Refuse,
    /// Lets all such requests share one key, and so one limit.
    Share,
    /// Skips the rule. A client that can omit the key then bypasses this rule's limit.
    Skip,
}

/// How the layer handles a request that the limiter cannot decide, because Redis is unavailable
/// ([`Error::is_unavailable`](crate::Error::is_unavailable)) and the gate's failure policy is
/// [`OnFailure::Error`](crate::OnFailure::Error).
///
/// Other errors, such as a misconfigured gate, yield 503 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// Rejects the request with 503.
    #[default]
    Refuse,
    /// Admits the request without a decision.
    Pass,
}

#[derive(Clone, Default)]
pub(super) struct LayerSettings {
    pub(super) rules: Vec<Rule>,
    /// Chooses more rules for each request.
    pub(super) chooser: Option<Chooser>,
    /// Maps each request to rules from files.
    #[cfg(feature = "rules")]
    pub(super) file_rules: Option<super::rules::FileRules>,
    pub(super) cost: Option<Cost>,
    pub(super) skip: Option<Predicate>,
    pub(super) missing_key: MissingKey,
    pub(super) on_error: OnError,
    pub(super) charge: Charge,
    pub(super) headers: Headers,
    pub(super) responder: Option<Responder>,
    pub(super) wait_queue: Option<WaitQueue>,
}
