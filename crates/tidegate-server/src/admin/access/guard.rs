//! Runs before all handlers: finds the identity of a request, and rejects requests of foreign pages.

use std::net::Ipv4Addr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::request::Parts;

use super::control::Access;
use super::identity::{Caller, Identity};
use super::rejection::Rejection;
use super::sessions::session_id;
use crate::connections::{Client, Place};
use crate::origin;

/// The header of the requests that an open page of the console repeats by itself: see `assets/console.js`.
const POLL_HEADER: &str = "x-tidegate-poll";

/// Passes a request on with its [`Caller`], or rejects it.
pub(crate) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    match caller(&access, &parts).await {
        Ok(caller) => {
            if caller.identity.is_some() {
                parts.extensions.get().into_iter().for_each(Place::take);
            }
            parts.extensions.insert(caller);
            next.run(Request::from_parts(parts, body)).await
        }
        Err(rejection) => rejection.into_response(),
    }
}

async fn caller(access: &Access, request: &Parts) -> Result<Caller, Rejection> {
    let (headers, hosts) = (&request.headers, &*access.settings().hosts);
    let client = client(request);
    // A page of another site cannot make a browser send a bearer token of ours. So such a request may use any name of
    // this port, and needs no proof of its origin.
    if let Some(token) = bearer_token(headers)?
        && access.settings().tokens.is_some()
    {
        let found = access.verify(client, token).await.map_err(Rejection::TooManyAttempts)?;
        let (name, role) = found.ok_or(Rejection::WrongToken)?;
        return Ok(Caller { client, identity: Some(Identity::of_bearer(name, role)) });
    }
    if !origin::is_known_host(headers, &request.uri, hosts) {
        return Err(Rejection::UnknownHost);
    }
    if !origin::is_same_origin(&request.method, headers, hosts) {
        return Err(Rejection::ForeignOrigin);
    }
    let session =
        || session_id(access, headers).and_then(|id| access.session(id, headers.contains_key(POLL_HEADER)));
    let identity = access.open_identity().or_else(session);
    Ok(Caller { client, identity })
}

/// Returns the client by the address of the connection. Behind a proxy, it is that of the proxy.
fn client(request: &Parts) -> Client {
    let place = request.extensions.get::<Place>();
    place.map_or_else(|| Client::new(Ipv4Addr::UNSPECIFIED.into()), Place::client)
}

fn bearer_token(headers: &HeaderMap) -> Result<Option<&[u8]>, Rejection> {
    let mut lines = headers.get_all(AUTHORIZATION).iter();
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(Rejection::NoBearer);
    }
    let line = line.as_bytes();
    match line.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => Ok(Some(token.trim_ascii())),
        _ => Err(Rejection::NoBearer),
    }
}
