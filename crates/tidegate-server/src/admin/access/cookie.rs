//! The cookie that holds the id of a session.

use http::HeaderMap;
use http::header::COOKIE;

use super::control::Access;

/// Returns the session id of the request's cookie.
pub(super) fn session_id<'h>(access: &Access, headers: &'h HeaderMap) -> Option<&'h str> {
    let name = cookie_name(access);
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies =
        lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    cookies.find(|(found, _)| *found == name).map(|(_, id)| id)
}

/// The prefix makes browsers reject the cookie unless it is secure and of this host alone.
fn cookie_name(access: &Access) -> &'static str {
    if access.settings().is_behind_tls { "__Host-tidegate-admin" } else { "tidegate-admin" }
}

pub(super) fn cookie(access: &Access, id: &str, max_age_s: u64) -> String {
    let secure = if access.settings().is_behind_tls { "; Secure" } else { "" };
    format!("{}={id}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}", cookie_name(access))
}
