//! The response to a rejected request: status, body and headers.

#[cfg(feature = "tonic")]
mod grpc;
mod problem;

use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use smallvec::smallvec;
use tidegate::{AllDecision, Decision, Gate};

use super::body::{self, ResponseBody};
use super::headers::{HeaderValues, Headers};
use super::rejection::{OnClosed, Reason, Rejection};
use super::settings::LayerSettings;
use crate::policy::Policy;

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Builds the response to a rejected request, with its headers.
pub(super) async fn reject<B>(
    settings: &LayerSettings,
    parts: Parts,
    mut rejection: Rejection,
) -> Response<ResponseBody<B>> {
    rejection.help.clone_from(&settings.help);
    let mut response = match &settings.responder {
        Some(respond) => respond(parts, rejection.clone()).await,
        None => rejection.response(&parts).map(body::boxed),
    };
    // The response belongs to one client at one moment: a cache must not keep it as the page.
    response.headers_mut().entry(CACHE_CONTROL).or_insert(NO_STORE);
    // gRPC rejects with status 200; its wait is in RetryInfo.
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    rejection.write_headers(response.headers_mut(), is_error);
    response.map(ResponseBody::rejection)
}

impl Rejection {
    /// Returns the layer's default response: a problem in JSON, or text if the request prefers it. With the
    /// feature `tonic`, a gRPC request gets a gRPC status. Its `Cache-Control` is `no-store`.
    #[must_use]
    pub fn response(&self, request: &Parts) -> Response<String> {
        let mut response = self.rendered(request);
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        response
    }

    fn rendered(&self, request: &Parts) -> Response<String> {
        #[cfg(feature = "tonic")]
        if let Some(response) = grpc::build(self, request) {
            return response;
        }
        problem::build(self, problem::prefers_text(&request.headers))
    }

    /// Does the same as [`response`](Self::response), with the headers that report the limits and the wait. For a
    /// handler without a layer around it: a layer adds them itself.
    #[must_use]
    pub fn response_with_headers(&self, request: &Parts) -> Response<String> {
        let mut response = self.response(request);
        let is_error = !response.status().is_success();
        self.write_headers(response.headers_mut(), is_error);
        response
    }

    /// Returns a problem in JSON with all headers, in place of the form that the request prefers.
    #[cfg(any(feature = "actix", feature = "axum"))]
    pub(super) fn problem_with_headers(&self) -> Response<String> {
        let mut response = problem::build(self, false);
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        self.write_headers(response.headers_mut(), true);
        response
    }

    /// Returns the rejection of a request by one gate, for a handler that checks the gate itself. `decision` is
    /// a denial by `gate`. Its headers are [`Headers::new`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tidegate::Error> {
    /// use tidegate::{Limiter, Quota, Rate};
    /// use tidegate_http::Rejection;
    ///
    /// let gate = Limiter::in_memory().gate("mail", Quota::token_bucket(1, Rate::per_minute(1)));
    /// let _ = gate.check("user:42").await?;
    /// let rejection = Rejection::of(&gate, gate.check("user:42").await?);
    /// assert_eq!(
    ///     rejection.message(),
    ///     "The limit \"mail\" of 1 in 60 seconds is exceeded. Try again in 60 seconds."
    /// );
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn of(gate: &Gate, decision: Decision) -> Self {
        let (is_closed, headers) = (Self::is_closed(&decision), Headers::new());
        let (decision, policies) = (AllDecision::of_each([decision]), smallvec![Policy::new(gate, None)]);
        match is_closed {
            true => Self::closed(decision, policies, &headers, OnClosed::default()),
            false => Self::denied(decision, policies, &headers),
        }
    }

    /// Adds the headers that report the limits and the wait.
    fn write_headers(&self, headers: &mut HeaderMap, is_error: bool) {
        if let Reason::Denied(decision) = self.reason() {
            let (policies, wait) = (&*self.policies, self.retry_after());
            self.headers.write(headers, &HeaderValues { decision, policies, wait });
        }
        self.headers.write_shadow(headers, &self.shadow_limits);
        if let (true, Some(wait)) = (is_error, self.retry_after()) {
            self.headers.write_wait(headers, wait);
        }
    }
}

/// Responds with a problem in JSON and the headers of the layer that made the rejection. A handler that has the
/// request can also offer text and gRPC: [`Rejection::response_with_headers`].
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        self.problem_with_headers().map(axum::body::Body::from)
    }
}
