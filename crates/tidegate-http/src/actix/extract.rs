//! Extractors of handlers, and the response of a handler that rejects a request itself.

use std::convert::Infallible;
use std::future::{Ready, ready};

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::{
    Error, FromRequest, HttpMessage, HttpRequest, HttpResponse, Responder, ResponseError, error,
};

use super::convert;
use crate::rejection::Rejection;
use crate::request_permits::RequestPermits;
use crate::usage::RequestExtensions;
use crate::usage::{USAGE_NOT_CHARGED, Usage};

/// Fails with status 500 if no layer around the handler has a [`Charge::usage`](crate::Charge::usage): its
/// reports would be charged nowhere.
impl FromRequest for Usage {
    type Error = Error;
    type Future = Ready<Result<Self, Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let usage = request.extensions().find();
        ready(usage.ok_or_else(|| error::ErrorInternalServerError(USAGE_NOT_CHARGED)))
    }
}

/// Never fails: without an in-flight limit, it holds nothing.
impl FromRequest for RequestPermits {
    type Error = Infallible;
    type Future = Ready<Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(request.extensions().find().unwrap_or_default()))
    }
}

/// Responds as [`Rejection::response_with_headers`]: in JSON, text or gRPC, as the request prefers.
impl Responder for Rejection {
    type Body = String;

    fn respond_to(self, request: &HttpRequest) -> HttpResponse<String> {
        let head = convert::request_head(request);
        let response = head.and_then(|head| convert::response(self.response_with_headers(&head)));
        response.unwrap_or_else(|error| {
            HttpResponse::with_body(error.as_response_error().status_code(), error.to_string())
        })
    }
}

/// Responds with a problem in JSON and the headers of the layer that made the rejection.
impl ResponseError for Rejection {
    fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status().as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        let response = convert::response(self.problem_with_headers());
        response.map_or_else(|error| error.error_response(), HttpResponse::map_into_boxed_body)
    }
}
