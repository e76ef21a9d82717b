//! The gRPC response to a rejected request: a status in the headers of a response without a body.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, Response};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::rejection::{Reason, Rejection};

/// Builds the response to a rejected gRPC request. Returns `None` if the request is not gRPC.
pub(super) fn build(rejection: &Rejection, request: &Parts) -> Option<Response<String>> {
    let content_type = grpc_content_type(request)?;
    let code = match rejection.reason() {
        Reason::Denied(_) => Code::ResourceExhausted,
        Reason::MissingKey => Code::InvalidArgument,
        Reason::Misconfigured(_) => Code::Internal,
        Reason::TooCostly(_) => Code::OutOfRange,
        Reason::Closed(_) | Reason::Failed(_) => Code::Unavailable,
    };
    let mut details = ErrorDetails::new();
    if let Some(wait) = rejection.retry_after() {
        details.set_retry_info(Some(wait));
    }
    if let Some(link) = &rejection.help {
        details.add_help_link("help", &**link);
    }
    let status = match rejection.retry_after().is_none() && rejection.help.is_none() {
        true => Status::new(code, rejection.message()),
        false => Status::with_error_details(code, rejection.message(), details),
    };
    let mut response = status.into_http();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Some(response)
}

/// Returns the content type of the response, if the request is a gRPC call: a POST whose media type is
/// `application/grpc`, `application/grpc-web`, or one of these followed by `+` and a message format. A GET that
/// claims to be gRPC must not get status 200, which a cache would keep as the page.
///
/// The types are constants: the response reflects no input. Without a body, each message format reads them.
fn grpc_content_type(request: &Parts) -> Option<HeaderValue> {
    if request.method != Method::POST {
        return None;
    }
    let value = request.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let media_type = value.split(';').next().unwrap_or_default().trim();
    match media_type.split('+').next()? {
        "application/grpc" => Some(HeaderValue::from_static("application/grpc")),
        "application/grpc-web" => Some(HeaderValue::from_static("application/grpc-web+proto")),
        _ => None,
    }
}
