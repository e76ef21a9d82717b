//! The style sheet, the script and the icon. They need no right: the page of the login uses them.

use axum::response::IntoResponse;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::frame::{ICON, SCRIPT, STYLE};

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
