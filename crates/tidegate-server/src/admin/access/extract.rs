//! The arguments by which handlers state what a request must have.

use std::convert::Infallible;

use axum::RequestPartsExt;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Redirect, Response};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use serde::de::DeserializeOwned;

use super::identity::{Caller, Identity, Role};
use super::login::login_address;
use super::rejection::Rejection;
use crate::admin::pages::{HasLogin, accepts_html};
use crate::body::{self, BodyError, BodyMemory};

/// The maximum size of a form or a change in bytes.
const MAX_BODY_BYTES: usize = 64 << 10;
/// The memory of all unfinished forms and changes. Complete ones need none, so clients without a token cannot keep those of
/// operators out.
static UNFINISHED: BodyMemory = BodyMemory::new(1 << 20, MAX_BODY_BYTES);
/// The field of a form with the CSRF token.
const CSRF_FIELD: &str = "csrf";
/// The header of a script's request with the CSRF token.
const CSRF_HEADER: &str = "x-csrf-token";

/// A request whose sender may read. Rejects others: a browser is sent to the login.
#[derive(Clone, Debug)]
pub struct Viewer(pub Identity);

/// A request whose sender may change limits.
#[derive(Clone, Debug)]
pub struct Operator(pub Identity);

/// A form, sent by POST, whose CSRF token is that of the sender's session. Extracts the form without that token.
#[derive(Clone, Debug)]
pub struct Form<T>(pub T);

/// A body in JSON, sent by POST with the type `application/json`. A sender with a session also sends its CSRF token,
/// in the header `x-csrf-token`.
#[derive(Clone, Debug)]
pub struct Json<T>(pub T);

fn caller(parts: &Parts) -> Option<&Caller> {
    parts.extensions.get::<Caller>()
}

fn identity(parts: &Parts) -> Option<Identity> {
    caller(parts).and_then(|caller| caller.identity.clone())
}

fn no_identity(parts: &Parts) -> Response {
    let has_login = parts.extensions.get::<HasLogin>().is_some();
    if has_login && parts.method == Method::GET && accepts_html(&parts.headers) {
        return Redirect::to(&login_address(&parts.uri)).into_response();
    }
    Rejection::NoIdentity { has_login }.into_response()
}

impl<S: Send + Sync> FromRequestParts<S> for Viewer {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        identity(parts).map(Self).ok_or_else(|| no_identity(parts))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let identity = identity(parts).ok_or_else(|| no_identity(parts))?;
        match identity.role {
            Role::Operator => Ok(Self(identity)),
            Role::Viewer => Err(Rejection::NotAllowed(Role::Operator).into_response()),
        }
    }
}

/// The identity of a request, if it has one.
#[derive(Clone, Debug)]
pub(super) struct MaybeIdentity(pub(super) Option<Identity>);

impl<S: Send + Sync> FromRequestParts<S> for MaybeIdentity {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(identity(parts)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        caller(parts).cloned().ok_or_else(|| no_identity(parts))
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Form<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let (identity, headers, body) = of_viewer(request, state).await?;
        read_form_of(&identity, &headers, body).await.map(Self).map_err(Rejection::into_response)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let (identity, headers, body) = of_viewer(request, state).await?;
        read_json(&identity, &headers, body).await.map(Self).map_err(Rejection::into_response)
    }
}

/// Splits the request of a sender that may read.
async fn of_viewer<S: Send + Sync>(
    request: Request,
    state: &S,
) -> Result<(Identity, HeaderMap, Body), Response> {
    let (mut parts, body) = request.into_parts();
    let Viewer(identity) = parts.extract_with_state(state).await?;
    Ok((identity, parts.headers, body))
}

async fn read_json<T: DeserializeOwned>(
    identity: &Identity,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Rejection> {
    // A page of another site cannot send this type unless the port answers a preflight request, which it does not. So
    // only a session, whose cookie browsers add by themselves, needs a token beside it.
    if !is_type(headers, "application/json") {
        return Err(wrong_type("application/json"));
    }
    let given = headers.get(CSRF_HEADER).and_then(|given| given.to_str().ok());
    match &identity.csrf {
        Some(expected) if identity.has_session && !given.is_some_and(|given| expected.is(given)) => {
            return Err(Rejection::WrongCsrfToken);
        }
        _ => {}
    }
    let body = read_body(body).await?;
    serde_json::from_slice(&body).map_err(|error| bad(format!("the body is not as expected: {error}")))
}

/// Reads the form of an identity, whose CSRF token it contains.
async fn read_form_of<T: DeserializeOwned>(
    identity: &Identity,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Rejection> {
    let (fields, csrf) = read_form(headers, body).await?;
    match &identity.csrf {
        Some(expected) if !csrf.is_some_and(|given| expected.is(&given)) => Err(Rejection::WrongCsrfToken),
        _ => parse(&fields),
    }
}

/// Reads a form without a CSRF token: that of the login, which has no session yet.
pub(super) async fn read_login_form<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, Rejection> {
    let (fields, _) = read_form(headers, body).await?;
    parse(&fields)
}

/// Reads the fields of a form, and separates the CSRF token. Two of them are none.
async fn read_form(headers: &HeaderMap, body: Body) -> Result<(String, Option<String>), Rejection> {
    const TYPE: &str = "application/x-www-form-urlencoded";
    if !is_type(headers, TYPE) {
        return Err(wrong_type(TYPE));
    }
    let body = read_body(body).await?;
    let (mut fields, mut tokens) = (form_urlencoded::Serializer::new(String::new()), Vec::new());
    for (name, value) in form_urlencoded::parse(&body) {
        match &*name {
            CSRF_FIELD => tokens.push(value.into_owned()),
            _ => drop(fields.append_pair(&name, &value)),
        }
    }
    let token = if tokens.len() == 1 { tokens.pop() } else { None };
    Ok((fields.finish(), token))
}

fn parse<T: DeserializeOwned>(fields: &str) -> Result<T, Rejection> {
    serde_urlencoded::from_str(fields).map_err(|error| bad(format!("the form is incomplete: {error}")))
}

async fn read_body(body: Body) -> Result<Bytes, Rejection> {
    body::read(body, MAX_BODY_BYTES, &UNFINISHED).await.map_err(|error| match error {
        BodyError::TimedOut => Rejection::Body(StatusCode::REQUEST_TIMEOUT, error.to_string()),
        BodyError::TooLarge(max) => {
            Rejection::Body(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {max} bytes"))
        }
        BodyError::NoMemory => {
            let text = "too many forms and changes are unfinished: repeat this one".to_owned();
            Rejection::Body(StatusCode::SERVICE_UNAVAILABLE, text)
        }
        BodyError::Unreadable(error) => bad(format!("the body was cut off, or is not valid HTTP: {error}")),
    })
}

fn is_type(headers: &HeaderMap, expected: &str) -> bool {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(';').next().is_some_and(|given| given.trim().eq_ignore_ascii_case(expected))
}

fn wrong_type(expected: &str) -> Rejection {
    Rejection::Body(StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("send `Content-Type: {expected}`"))
}

fn bad(text: String) -> Rejection {
    Rejection::Body(StatusCode::BAD_REQUEST, text)
}
