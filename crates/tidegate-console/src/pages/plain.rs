//! The pages without an identity: the login, and errors.

use askama::Template;
use axum::response::IntoResponse;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use tidegate_server::pages::Problem;

use super::filters;
use super::frame::{Frame, ICON, SCRIPT, STYLE, Tab};

#[derive(Template)]
#[template(path = "login.html")]
struct Login<'t> {
    frame: Frame,
    next: &'t str,
    error: Option<&'t str>,
}

#[derive(Template)]
#[template(path = "error.html")]
struct ErrorPage<'t> {
    frame: Frame,
    message: &'t str,
}

/// Returns the page of the login. It leads to the page `next`, and shows why the last attempt failed.
pub(crate) fn login_page(next: &str, error: Option<&str>) -> String {
    let frame = Frame { title: "Log in".to_owned(), ..Frame::default() };
    rendered(&Login { frame, next, error })
}

/// Returns the page of an error.
pub(crate) fn error_page(problem: &Problem) -> String {
    let frame = Frame { title: problem.title.to_owned(), ..Frame::default() };
    rendered(&ErrorPage { frame, message: &problem.detail })
}

/// Returns an empty page if the template fails, which writes only texts to memory.
fn rendered(template: &impl Template) -> String {
    template.render().unwrap_or_default()
}

// The style sheet, the script and the icon. They need no right: the page of the login uses them.

/// Pages link to them with a hash of the content.
const FOREVER: &str = "public, max-age=31536000, immutable";
const A_DAY: &str = "public, max-age=86400";

pub(super) async fn style() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/css; charset=utf-8"), (CACHE_CONTROL, FOREVER)], STYLE)
}

pub(super) async fn script() -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8"), (CACHE_CONTROL, FOREVER)], SCRIPT)
}

pub(super) async fn icon() -> impl IntoResponse {
    ([(CONTENT_TYPE, "image/svg+xml"), (CACHE_CONTROL, A_DAY)], ICON)
}
