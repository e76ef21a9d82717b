//! Admission inside a handler, without a layer around it.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Method, Response};
use http_body::Body;
use tidegate::AllDecision;

use super::admission::Admission;
use super::admitted::Admitted;
use super::body::ResponseBody;
use super::rejection::Rejection;
use super::request_permits::RequestPermits;
use super::settings::LayerSettings;
use super::usage::Usage;
use crate::decide::decide;
use crate::usage::RequestExtensions;

/// A request that [`RateLimitLayer::admit`](crate::RateLimitLayer::admit) admitted.
///
/// Dropped without a response, it is charged as an [abandoned](crate::Abandoned) request, and its permits are
/// released.
#[must_use = "dropped without a response, the request counts as abandoned"]
pub struct AdmittedRequest {
    pub(super) settings: Arc<LayerSettings>,
    /// `None` if no check was made.
    pub(super) admitted: Option<Box<Admitted>>,
    usage: Option<Usage>,
    method: Method,
}

impl AdmittedRequest {
    /// Decides the request, and waits for the decision's delay.
    pub(super) async fn new(settings: &Arc<LayerSettings>, request: &Parts) -> Result<Self, Rejection> {
        let admitted = match decide(settings, request).await.after_delay(&settings.headers).await {
            Admission::Undecided => None,
            Admission::Straight(admitted) => Some(Box::new((*admitted).into())),
            Admission::Admitted(admitted) => Some(admitted),
            Admission::Rejected(mut rejection) => {
                rejection.help.clone_from(&settings.help);
                return Err(*rejection);
            }
        };
        Ok(Self { settings: settings.clone(), admitted, usage: None, method: request.method.clone() })
    }

    /// Records that the request enters.
    pub(super) fn entered(mut self, extensions: &impl RequestExtensions) -> Self {
        self.usage = self.admitted.as_mut().and_then(|admitted| admitted.mark_entered(extensions));
        self
    }

    /// Returns the decision. Returns `None` if the request was skipped, if no rule applies to it, or if it was
    /// let through because the limiter failed.
    #[must_use]
    pub fn decision(&self) -> Option<&AllDecision> {
        self.admitted.as_ref()?.decision.as_ref()
    }

    /// Returns the handle for the units that the request uses, if a [`Charge`](crate::Charge) reads it.
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_ref()
    }

    /// Returns a clone of the request's permits at in-flight limits. A handler that upgrades the connection moves
    /// it into the task that serves the connection.
    #[must_use]
    pub fn permits(&self) -> RequestPermits {
        self.admitted.as_ref().map_or_else(RequestPermits::default, |admitted| admitted.permits.clone())
    }

    /// Settles the charge by the response, and adds the headers that report the limits. A charge that depends on
    /// the response body is settled at its end. The permits are released then too.
    pub async fn respond<B: Body>(self, response: Response<B>) -> Response<ResponseBody<B>> {
        match self.admitted {
            Some(admitted) => admitted.respond(&self.settings, &self.method, response).await,
            None => response.map(ResponseBody::inner),
        }
    }
}

impl fmt::Debug for AdmittedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdmittedRequest").field("decision", &self.decision()).finish_non_exhaustive()
    }
}
