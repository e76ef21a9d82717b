//! The response to a rejected request: status, body and headers.

#[cfg(feature = "tonic")]
mod grpc;
mod problem;

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderValue, Response};

use super::body::{self, ResponseBody};
use super::headers::HeaderValues;
use super::rejection::{Reason, Rejection};
use super::settings::LayerSettings;

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Builds the response to a rejected request, with its headers.
pub(super) async fn reject<B>(
    settings: &LayerSettings,
    parts: Parts,
    rejection: Rejection,
) -> Response<ResponseBody<B>> {
    let mut response = match &settings.responder {
        Some(respond) => respond(parts, rejection.clone()).await,
        None => rejection.response(&parts).map(body::boxed),
    };
    // The response belongs to one client at one moment: a cache must not keep it as the page.
    response.headers_mut().entry(CACHE_CONTROL).or_insert(NO_STORE);
    // gRPC rejects with status 200; its wait is in RetryInfo.
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let headers = response.headers_mut();
    if let Reason::Denied(decision) = rejection.reason() {
        let (policies, wait) = (&*rejection.policies, rejection.retry_after());
        settings.headers.write(headers, &HeaderValues { decision, policies, wait });
    }
    if let (true, true, Some(wait)) = (settings.headers.retry_after, is_error, rejection.retry_after()) {
        headers.entry(RETRY_AFTER).or_insert(wait.as_secs().into());
    }
    response.map(ResponseBody::rejection)
}

impl Rejection {
    /// Returns the layer's default response: a problem in JSON, or text if the request prefers it. With the
    /// feature `tonic`, a gRPC request gets a gRPC status. Its `Cache-Control` is `no-store`.
    #[must_use]
    pub fn response(&self, request: &Parts) -> Response<String> {
        #[cfg(feature = "tonic")]
        let grpc = grpc::build(self, request);
        #[cfg(not(feature = "tonic"))]
        let grpc = None;
        let mut response = grpc.unwrap_or_else(|| problem::build(self, request));
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        response
    }
}
