//! The settings of a layer.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::Response;
use http::request::Parts;
#[cfg(feature = "rules")]
use tidegate::Limiter;
#[cfg(feature = "rules")]
use tidegate_rules::{Need, ReloadingRules};

use super::body::RejectionBody;
use super::charge::Charge;
#[cfg(feature = "rules")]
use super::descriptors::Descriptors;
use super::gate_rule::{Cost, GateRule};
use super::headers::Headers;
#[cfg(feature = "actix")]
use super::key::Key;
use super::missing_key::MissingKey;
use super::rejection::{OnClosed, Rejection};
use super::wait_queue::WaitQueue;
use super::warnings::LayerWarnings;

pub(super) type Chooser = Arc<dyn Fn(&Parts) -> BoxFuture<'static, Vec<GateRule>> + Send + Sync>;
pub(super) type Predicate = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
pub(super) type Responder =
    Arc<dyn Fn(Parts, Rejection) -> BoxFuture<'static, Response<RejectionBody>> + Send + Sync>;

/// Copies an extension of actix-web's request, if it has it.
#[cfg(feature = "actix")]
pub(super) type CopyExtension = fn(&actix_web::dev::Extensions, &mut http::Extensions);

/// How the layer handles a request that the limiter cannot decide, because Redis is unavailable
/// ([`Error::is_unavailable`](tidegate::Error::is_unavailable)) and the gate's failure policy is
/// [`OnFailure::Error`](tidegate::OnFailure::Error).
///
/// Other errors never admit a request: a gate or a group of checks that is set up wrongly yields 500, corrupt
/// state 503.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// Rejects the request with 503.
    #[default]
    Reject,
    /// Admits the request without a decision.
    Admit,
}

#[derive(Clone, Default)]
pub(super) struct LayerSettings {
    pub(super) rules: Vec<GateRule>,
    /// Chooses more rules for each request.
    pub(super) chooser: Option<Chooser>,
    /// Maps each request to rules from files.
    #[cfg(feature = "rules")]
    pub(super) file_rules: Option<FileRules>,
    pub(super) cost: Option<Cost>,
    pub(super) skip: Option<Predicate>,
    pub(super) missing_key: MissingKey,
    pub(super) on_error: OnError,
    pub(super) on_closed: OnClosed,
    pub(super) charge: Charge,
    pub(super) headers: Headers,
    pub(super) responder: Option<Responder>,
    /// Where clients find help with rejections.
    pub(super) help: Option<Arc<str>>,
    pub(super) wait_queue: Option<WaitQueue>,
    #[cfg(feature = "actix")]
    pub(super) copied_extensions: Vec<CopyExtension>,
    /// Clones of the layer share them.
    pub(super) warnings: Arc<LayerWarnings>,
}

#[cfg(feature = "actix")]
impl LayerSettings {
    /// Returns whether a key can be the route that matched. The keys of chosen rules are not known in advance.
    pub(super) fn reads_route(&self) -> bool {
        #[cfg(feature = "rules")]
        if self.file_rules.is_some() {
            return true;
        }
        let keys = |rule: &GateRule| {
            rule.key.reads_route() || rule.colocate_with.as_ref().is_some_and(Key::reads_route)
        };
        self.chooser.is_some() || self.rules.iter().any(keys)
    }
}

/// Rules from files, and the mapping of a request to their descriptors.
#[cfg(feature = "rules")]
#[derive(Clone)]
pub(super) struct FileRules {
    pub(super) rules: ReloadingRules,
    pub(super) descriptors: Arc<Descriptors>,
    /// Reject a reload that the layer cannot use. The rules hold only weak references to them.
    pub(super) needs: Vec<Arc<Need>>,
    /// The limiter of the gates, the same for all versions of the rules.
    pub(super) limiter: Limiter,
}
