//! A refusal as gRPC says it: a status in the headers of a response without a body.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::refusal::{Reason, Refusal};

/// `None` if the request is not of gRPC.
pub(super) fn response(refusal: &Refusal, request: &Parts) -> Option<Response<String>> {
    let content_type = grpc(&request.headers)?;
    let code = match refusal.reason() {
        Reason::Denied(_) => Code::ResourceExhausted,
        Reason::MissingKey => Code::InvalidArgument,
        Reason::TooCostly(_) => Code::OutOfRange,
        Reason::Failed(_) => Code::Unavailable,
    };
    let status = match refusal.retry_after() {
        Some(wait) => {
            let details = ErrorDetails::with_retry_info(Some(wait));
            Status::with_error_details(code, refusal.message(), details)
        }
        None => Status::new(code, refusal.message()),
    };
    let mut response = status.into_http();
    // What is translated outside of this layer, such as grpc-web, is answered as what it was.
    response.headers_mut().insert(CONTENT_TYPE, content_type.clone());
    Some(response)
}

fn grpc(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(CONTENT_TYPE).filter(|value| value.as_bytes().starts_with(b"application/grpc"))
}
