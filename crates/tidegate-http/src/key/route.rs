//! The route that a framework matched.

use http::Extensions;

/// The pattern of the route that actix-web will match.
#[cfg(feature = "actix")]
#[derive(Clone)]
pub(crate) struct RoutePattern(pub(crate) String);

/// Returns the pattern of the route, such as `/users/{id}`.
pub(crate) fn pattern_of(extensions: &Extensions) -> Option<&str> {
    #[cfg(feature = "actix")]
    if let Some(RoutePattern(pattern)) = extensions.get() {
        return Some(pattern);
    }
    #[cfg(feature = "axum")]
    if let Some(path) = extensions.get::<axum::extract::MatchedPath>() {
        return Some(path.as_str());
    }
    None
}
