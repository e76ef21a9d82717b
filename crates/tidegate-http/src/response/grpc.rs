//! The gRPC response to a rejected request: a status in the headers of a response without a body.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::rejection::{Reason, Rejection};

/// Builds the response to a rejected gRPC request. Returns `None` if the request is not gRPC.
pub(super) fn build(rejection: &Rejection, request: &Parts) -> Option<Response<String>> {
    let content_type = grpc_content_type(&request.headers)?;
    let code = match rejection.reason() {
        Reason::Denied(_) => Code::ResourceExhausted,
        Reason::MissingKey => Code::InvalidArgument,
        Reason::Misconfigured(_) => Code::Internal,
        Reason::TooCostly(_) => Code::OutOfRange,
        Reason::Closed(_) | Reason::Failed(_) => Code::Unavailable,
    };
    let status = match rejection.retry_after() {
        Some(wait) => {
            let details = ErrorDetails::with_retry_info(Some(wait));
            Status::with_error_details(code, rejection.message(), details)
        }
        None => Status::new(code, rejection.message()),
    };
    let mut response = status.into_http();
    // Keeps the request's content type, so that an outer layer can translate the response (grpc-web).
    response.headers_mut().insert(CONTENT_TYPE, content_type.clone());
    Some(response)
}

fn grpc_content_type(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(CONTENT_TYPE).filter(|value| value.as_bytes().starts_with(b"application/grpc"))
}
