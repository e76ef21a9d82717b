//! Requests that lack the key of a rule.

use std::fmt;

/// The key of requests without a key. No header, path or address can equal it.
pub(super) const NO_KEY: &[u8] = b"\0no key";

/// How the layer handles a request that lacks the key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request: with 400 if the client has not sent the key, or with 500 if the service has not
    /// provided it. The service provides the peer's address and the extensions of a request.
    #[default]
    Reject,
    /// Lets all such requests share one key, and so one limit.
    Share,
    /// Skips the rule. A client that can omit the key then bypasses this rule's limit.
    Skip,
}

/// The part of a key that a request lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// A property of the request, which the client has not sent.
    NotSent,
    /// The address of the peer, which the server provides.
    PeerAddress,
    /// An extension, which an earlier layer provides.
    Extension {
        type_name: &'static str,
        /// Whether an earlier request had it.
        was_seen: bool,
    },
}

/// Displays the cause and the fix.
impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent => f.write_str("the request lacks the key of a rule"),
            Self::PeerAddress => f.write_str(
                "a request has no peer address, so clients cannot be told apart: serve axum with \
                 `into_make_service_with_connect_info::<SocketAddr>()`, or insert a \
                 `tidegate_http::PeerAddr` before this layer",
            ),
            Self::Extension { type_name, .. } => write!(
                f,
                "a request lacks the extension `{type_name}`, which a key reads: run the layer that inserts it \
                 before this one. Of axum's `Router::layer` and actix-web's `App::wrap`, the last one added runs first; \
                 of tower's `ServiceBuilder`, the first. With actix-web, also name the type in \
                 `RateLimitLayer::actix_extension`. If some requests lack it on purpose, set \
                 `RateLimitLayer::missing_key`"
            ),
        }
    }
}
