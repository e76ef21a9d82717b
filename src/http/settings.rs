//! What a layer was told to do.

use std::sync::Arc;

use http::Response;
use http::request::Parts;

use super::body::AnswerBody;
use super::charge::Charge;
use super::headers::Headers;
use super::refusal::Refusal;
use super::rule::{Cost, Rule};
use super::waiting::Room;

pub(super) type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(super) type Chooser = Arc<dyn Fn(&Parts) -> BoxFuture<'static, Vec<Rule>> + Send + Sync>;
pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Answering =
    Arc<dyn Fn(Parts, Refusal) -> BoxFuture<'static, Response<AnswerBody>> + Send + Sync>;

/// What becomes of a request that lacks the key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is answered 400.
    #[default]
    Refuse,
    /// All such requests share one key, and so one limit.
    Share,
    /// The rule does not apply to it. A client that can leave the key out is then not limited by it.
    Skip,
}

/// What becomes of a request that could not be decided on, because Redis cannot answer
/// ([`Error::is_unavailable`](crate::Error::is_unavailable)) and the gate's policy is
/// [`OnFailure::Error`](crate::OnFailure::Error). Other errors, such as a gate that is set up wrongly, are
/// answered 503 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// It is answered 503.
    #[default]
    Refuse,
    /// It passes, without a decision.
    Pass,
}

#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) rules: Vec<Rule>,
    /// Asked for more rules with each request.
    pub(super) chooser: Option<Chooser>,
    /// Asked for those of files with each request.
    #[cfg(feature = "rules")]
    pub(super) ruled: Option<super::ruled::Ruled>,
    pub(super) cost: Option<Cost>,
    pub(super) skip: Option<Predicate>,
    pub(super) missing_key: MissingKey,
    pub(super) on_error: OnError,
    pub(super) charge: Charge,
    pub(super) headers: Headers,
    pub(super) answering: Option<Answering>,
    pub(super) room: Option<Room>,
}
