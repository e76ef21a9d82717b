//! The login of browsers: a token for a session.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER, SET_COOKIE};
use http::{StatusCode, Uri};
use serde::Deserialize;

use super::Form;
use super::control::Access;
use super::extract::{MaybeIdentity, read_login_form};
use super::identity::Caller;
use super::rejection::Rejection;
use super::sessions::{LONGEST, cookie, session_id};
use crate::admin::pages::Pages;
use crate::for_clients::retry_after;

#[derive(Clone)]
struct Login {
    access: Access,
    pages: Arc<dyn Pages>,
}

pub(in crate::admin) fn routes<S: Clone + Send + Sync + 'static>(
    access: Access,
    pages: Arc<dyn Pages>,
) -> Router<S> {
    let router = Router::new().route("/login", get(show).post(log_in)).route("/logout", post(log_out));
    router.with_state(Login { access, pages })
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

/// A `next` that cannot be read is that of no page of this port.
async fn show(
    State(Login { pages, .. }): State<Login>,
    MaybeIdentity(identity): MaybeIdentity,
    after: Result<Query<After>, QueryRejection>,
) -> Response {
    let next = after.map(|Query(After { next })| next).unwrap_or_default();
    match identity {
        Some(_) => Redirect::to(own_page(&next)).into_response(),
        None => Html(pages.login(own_page(&next), None)).into_response(),
    }
}

async fn log_in(State(login): State<Login>, caller: Caller, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let Login { access, pages } = &login;
    let form: LoginForm = match read_login_form(&parts.headers, body).await {
        Ok(form) => form,
        Err(rejection) => return rejection.into_response(),
    };
    let next = own_page(&form.next);
    if access.settings().tokens.is_none() {
        return Redirect::to(next).into_response();
    }
    let failed = |status: StatusCode, rejection: &Rejection| {
        (status, Html(pages.login(next, Some(&rejection.detail())))).into_response()
    };
    match access.verify(caller.client, form.token.trim().as_bytes()).await {
        Ok(Some((name, role))) => {
            // A session of this browser ends: nobody can have prepared the id of the new one.
            end_session(access, &parts.headers);
            tracing::info!(
                target: "tidegate::audit",
                operator = name, role = role.as_str(), address = %caller.client,
                "a browser has logged in to the admin port"
            );
            let id = access.sessions().begin(name, role);
            with_cookie(Redirect::to(next), &cookie(access, &id, LONGEST.as_secs()))
        }
        Ok(None) => failed(StatusCode::UNAUTHORIZED, &Rejection::WrongToken),
        Err(wait) => {
            let mut response = failed(StatusCode::TOO_MANY_REQUESTS, &Rejection::TooManyAttempts(wait));
            response.headers_mut().insert(RETRY_AFTER, retry_after(wait));
            response
        }
    }
}

#[derive(Deserialize)]
struct NoFields {}

async fn log_out(
    State(Login { access, .. }): State<Login>,
    headers: HeaderMap,
    Form(NoFields {}): Form<NoFields>,
) -> Response {
    end_session(&access, &headers);
    with_cookie(Redirect::to("/login"), &cookie(&access, "", 0))
}

fn end_session(access: &Access, headers: &HeaderMap) {
    if let Some(id) = session_id(access, headers) {
        access.sessions().end(id);
    }
}

fn with_cookie(response: impl IntoResponse, cookie: &str) -> Response {
    let mut response = response.into_response();
    // The parts are digits, letters and constants.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

// The page that a login leads to.

/// The page after a login that was not asked for by another page.
const START: &str = "/";
/// The maximum length of the address of the page after the login.
const MAX_PAGE_BYTES: usize = 2_000;

/// Returns the address of the login that leads to this page.
pub(super) fn login_address(page: &Uri) -> String {
    let page = page.path_and_query().map_or(START, |page| page.as_str());
    let next: String = form_urlencoded::byte_serialize(page.as_bytes()).collect();
    format!("/login?next={next}")
}

/// Returns the path if it leads to a page of this port, else the start.
pub(super) fn own_page(next: &str) -> &str {
    // Browsers read `//host` and `/\host` as the address of another host.
    let is_path = next.starts_with('/') && !next[1..].starts_with(['/', '\\']);
    let is_plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_path && is_plain && next.len() <= MAX_PAGE_BYTES { next } else { START }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::header::CONTENT_TYPE;
    use tidegate::Limiter;
    use tidegate_test_support::captured_events::captured_events;

    use super::super::control::AccessSettings;
    use super::super::identity::Role;
    use super::super::tokens::AdminTokens;
    use super::*;
    use crate::admin::ChangeTracker;
    use crate::connections::Client;
    use crate::problem::Problem;
    use crate::service::RateLimitService;

    struct NoPages;

    impl Pages for NoPages {
        fn routes(&self, _: &RateLimitService, _: &ChangeTracker) -> Router {
            Router::new()
        }

        fn problem(&self, _: &Problem) -> String {
            String::new()
        }

        fn login(&self, _: &str, _: Option<&str>) -> String {
            String::new()
        }
    }

    #[test]
    fn login_is_an_event_without_the_token() {
        const TOKEN: &str = "the-token-of-the-operator";
        let tokens = AdminTokens::parse(&format!("ada operator token:{TOKEN}")).unwrap();
        let settings = AccessSettings {
            tokens: Some(tokens),
            open_role: Role::Viewer,
            hosts: Vec::new(),
            is_behind_tls: false,
            clock: None,
        };
        let access = Access::new(settings, Limiter::in_memory(), None);
        let log_in = |token: &str| {
            let request = Request::post("/login").header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            let request = request.body(Body::from(format!("token={token}"))).unwrap();
            let caller = Caller { client: Client::new([10, 0, 0, 7].into()), identity: None };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let login = Login { access: access.clone(), pages: Arc::new(NoPages) };
            captured_events(|| drop(runtime.block_on(log_in(State(login), caller, request))))
        };
        let event = log_in(TOKEN);
        let fields = "operator=\"ada\" role=\"operator\" address=10.0.0.7";
        assert!(event.contains("a browser has logged in") && event.contains(fields), "{event}");
        assert!(!event.contains(TOKEN), "{event}");
        assert!(!log_in("the-token-of-another").contains("logged in"));
    }
}

#[cfg(test)]
mod next_page_tests {
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
        assert_eq!(login_address(&uri), "/login?next=%2Fkeys%3Fkey%3D%2522%253E%253Cscript%253E%26x%3D%27");
    }
}
