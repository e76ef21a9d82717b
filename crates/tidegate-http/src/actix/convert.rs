//! Converts heads of requests and responses: the adapter works on the types of `http` 1, actix-web has those of
//! `http` 0.2.

use actix_web::http::Version;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::{Error, HttpRequest, HttpResponse, error};
use bytes::{BufMut, BytesMut};
use http::{Request, Response, request, response};

use crate::headers::reported_names;

/// Returns the head of a request, without extensions.
///
/// # Errors
///
/// 400 for a part that `http` 1 does not accept: a request that cannot be counted must not pass.
pub(super) fn request_head(request: &HttpRequest) -> Result<request::Parts, Error> {
    let version = match request.version() {
        Version::HTTP_09 => http::Version::HTTP_09,
        Version::HTTP_10 => http::Version::HTTP_10,
        Version::HTTP_2 => http::Version::HTTP_2,
        Version::HTTP_3 => http::Version::HTTP_3,
        _ => http::Version::HTTP_11,
    };
    let head = Request::builder().method(request.method().as_str()).uri(request.uri().to_string());
    let head = head.version(version).body(()).map_err(error::ErrorBadRequest)?;
    let (mut parts, ()) = head.into_parts();
    parts.headers = to_http(request.headers()).map_err(error::ErrorBadRequest)?;
    Ok(parts)
}

/// Returns the head of a response, without extensions.
pub(super) fn response_head(status: u16, headers: &HeaderMap) -> Result<response::Parts, Error> {
    let head = Response::builder().status(status).body(()).map_err(error::ErrorInternalServerError)?;
    let (mut parts, ()) = head.into_parts();
    parts.headers = to_http(headers).map_err(error::ErrorInternalServerError)?;
    Ok(parts)
}

/// Returns the response for actix-web.
pub(super) fn response<B>(response: Response<B>) -> Result<HttpResponse<B>, Error> {
    let (head, body) = response.into_parts();
    let status = head.status.as_u16().try_into().map_err(error::ErrorInternalServerError)?;
    let mut response = HttpResponse::with_body(status, body);
    append_all(response.headers_mut(), &head.headers)?;
    Ok(response)
}

fn to_http(headers: &HeaderMap) -> Result<http::HeaderMap, http::Error> {
    // With a capacity that is too large, it would panic.
    let mut converted = http::HeaderMap::new();
    let mut values = shared_memory(headers.iter().map(|(_, value)| value.len()));
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes())?;
        values.put_slice(value.as_bytes());
        let is_sensitive = value.is_sensitive();
        let mut value = http::HeaderValue::from_maybe_shared(values.split().freeze())?;
        value.set_sensitive(is_sensitive);
        converted.try_append(name, value)?;
    }
    Ok(converted)
}

/// Writes the report on an admitted request into the headers of its response. Does not copy the others: each value would then
/// keep the memory of all while HTTP/2 remembers it to compress the next responses.
pub(super) fn write_report(
    headers: &mut HeaderMap,
    report: impl FnOnce(&mut http::HeaderMap),
) -> Result<(), Error> {
    let mut reported = http::HeaderMap::new();
    for name in reported_names() {
        // The values of an inner layer.
        for value in headers.remove(name.as_str()) {
            let value = http::HeaderValue::from_bytes(value.as_bytes());
            reported.append(name.clone(), value.map_err(error::ErrorInternalServerError)?);
        }
    }
    report(&mut reported);
    append_all(headers, &reported)
}

fn append_all(headers: &mut HeaderMap, added: &http::HeaderMap) -> Result<(), Error> {
    headers.reserve(added.len());
    let mut values = shared_memory(added.values().map(http::HeaderValue::len));
    for (name, value) in added {
        let name =
            HeaderName::from_bytes(name.as_str().as_bytes()).map_err(error::ErrorInternalServerError)?;
        values.put_slice(value.as_bytes());
        let is_sensitive = value.is_sensitive();
        let value = HeaderValue::from_maybe_shared(values.split().freeze());
        let mut value = value.map_err(error::ErrorInternalServerError)?;
        value.set_sensitive(is_sensitive);
        headers.append(name, value);
    }
    Ok(())
}

/// Allocates the memory that values of these lengths share, so that each is not allocated on its own.
fn shared_memory(lengths: impl Iterator<Item = usize>) -> BytesMut {
    BytesMut::with_capacity(lengths.sum())
}
