//! The response to a rejected request: status, body and headers.

#[cfg(feature = "tonic")]
mod grpc;
mod problem;

use http::Response;
use http::header::RETRY_AFTER;
use http::request::Parts;

use super::body::{self, ResponseBody};
use super::headers::HeaderValues;
use super::rejection::{Reason, Rejection};
use super::settings::LayerSettings;

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
    // gRPC rejects with status 200; its wait is in RetryInfo.
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let headers = response.headers_mut();
    if let Reason::Denied(decision) = rejection.reason() {
        let (policies, wait) = (&*rejection.policies, rejection.retry_after());
        settings.headers.write(headers, &HeaderValues { decision, policies, wait });
    }
    settings.headers.write_shadow(headers, &rejection.shadow_limits);
    if let (true, true, Some(wait)) = (settings.headers.retry_after, is_error, rejection.retry_after()) {
        headers.entry(RETRY_AFTER).or_insert(wait.as_secs().into());
    }
    response.map(ResponseBody::rejection)
}

impl Rejection {
    /// Returns the layer's default response: a problem in JSON, or text if the request prefers it. With the
    /// feature `tonic`, a gRPC request gets a gRPC status.
    #[must_use]
    pub fn response(&self, request: &Parts) -> Response<String> {
        #[cfg(feature = "tonic")]
        if let Some(response) = grpc::build(self, request) {
            return response;
        }
        problem::build(self, request)
    }
}
