//! The login of browsers: a token for a session.

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER, SET_COOKIE};
use http::{StatusCode, Uri};
use serde::Deserialize;

use super::extract::{MaybeIdentity, read_login_form};
use super::guard::{Caller, session_id};
use super::rejection::Rejection;
use super::sessions::LONGEST;
use super::{Access, Form};
use crate::admin::AdminState;
use crate::console::login_page as page;

/// The page after a login that was not asked for by another page.
const START: &str = "/";
/// The maximum length of the address of the page after the login.
const MAX_PAGE_BYTES: usize = 2_000;

pub(crate) fn routes() -> Router<AdminState> {
    Router::new().route("/login", get(show).post(log_in)).route("/logout", post(log_out))
}

#[derive(Deserialize)]
struct After {
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
struct LoginForm {
    token: String,
    #[serde(default)]
    next: String,
}

/// Returns the address of the login that leads to this page.
pub(super) fn address(page: &Uri) -> String {
    let page = page.path_and_query().map_or(START, |page| page.as_str());
    let next: String = form_urlencoded::byte_serialize(page.as_bytes()).collect();
    format!("/login?next={next}")
}

/// Returns the path if it leads to a page of this port, else the start.
fn own_page(next: &str) -> &str {
    // Browsers read `//host` and `/\host` as the address of another host.
    let is_path = next.starts_with('/') && !next[1..].starts_with(['/', '\\']);
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_path && is_plain && next.len() <= MAX_PAGE_BYTES { next } else { START }
}

async fn show(MaybeIdentity(identity): MaybeIdentity, Query(After { next }): Query<After>) -> Response {
    match identity {
        Some(_) => Redirect::to(own_page(&next)).into_response(),
        None => Html(page(own_page(&next), None)).into_response(),
    }
}

async fn log_in(State(state): State<AdminState>, caller: Caller, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let access = &state.access;
    let form: LoginForm = match read_login_form(&parts.headers, body).await {
        Ok(form) => form,
        Err(rejection) => return rejection.of(&parts.headers),
    };
    let next = own_page(&form.next);
    if access.settings().tokens.is_none() {
        return Redirect::to(next).into_response();
    }
    let failed = |status: StatusCode, rejection: &Rejection| {
        (status, Html(page(next, Some(&rejection.detail())))).into_response()
    };
    match access.verify(&caller.client, form.token.trim().as_bytes()).await {
        Ok(Some((name, role))) => {
            // A session of this browser ends: nobody can have prepared the id of the new one.
            end_session(access, &parts.headers);
            let id = access.0.sessions.begin(name, role);
            with_cookie(Redirect::to(next), &cookie(access, &id, LONGEST.as_secs()))
        }
        Ok(None) => failed(StatusCode::UNAUTHORIZED, &Rejection::WrongToken),
        Err(wait) => {
            let mut response = failed(StatusCode::TOO_MANY_REQUESTS, &Rejection::TooManyAttempts(wait));
            response.headers_mut().insert(RETRY_AFTER, (wait.as_secs() + 1).into());
            response
        }
    }
}

#[derive(Deserialize)]
struct NoFields {}

async fn log_out(
    State(state): State<AdminState>,
    headers: HeaderMap,
    Form(NoFields {}): Form<NoFields>,
) -> Response {
    end_session(&state.access, &headers);
    with_cookie(Redirect::to("/login"), &cookie(&state.access, "", 0))
}

fn end_session(access: &Access, headers: &HeaderMap) {
    if let Some(id) = session_id(access, headers) {
        access.0.sessions.end(id);
    }
}

/// The prefix makes browsers reject the cookie unless it is secure and of this host alone.
pub(super) fn cookie_name(access: &Access) -> &'static str {
    if access.settings().is_behind_tls { "__Host-tidegate-admin" } else { "tidegate-admin" }
}

fn cookie(access: &Access, id: &str, max_age_s: u64) -> String {
    let secure = if access.settings().is_behind_tls { "; Secure" } else { "" };
    format!("{}={id}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}", cookie_name(access))
}

fn with_cookie(response: impl IntoResponse, cookie: &str) -> Response {
    let mut response = response.into_response();
    // The parts are digits, letters and constants.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_leads_only_to_pages_of_this_port() {
        for page in ["/", "/keys?gate=a&key=b%20c", "/a//b"] {
            assert_eq!(own_page(page), page);
        }
        let long = format!("/{}", "x".repeat(MAX_PAGE_BYTES));
        for page in [
            "",
            "keys",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/a b",
            "/é",
            "/\r\nx: y",
            "/\t/e",
            &long,
        ] {
            assert_eq!(own_page(page), START, "{page}");
        }
        let uri = "/keys?key=%22%3E%3Cscript%3E&x='".parse().unwrap();
        assert_eq!(address(&uri), "/login?next=%2Fkeys%3Fkey%3D%2522%253E%253Cscript%253E%26x%3D%27");
        assert!(!page("/keys?x='\"><script>", None).contains("\"><script>"));
    }
}
