//! Whom a request is counted for.

mod address;
mod client_ip;
mod forwarded;
mod network;
mod peer;

use std::fmt;
use std::sync::Arc;

use http::header::HeaderName;
use http::request::Parts;

pub use self::client_ip::ClientIp;
pub use self::network::ToNetwork;
pub use self::peer::PeerAddr;
use crate::as_key::AsKey;

/// Whom a request is counted for: a client's address, a header, a path, or several of these together.
///
/// A request that lacks it has no key; what becomes of such a request is the layer's to say.
///
/// ```
/// use tidegate::http::{ClientIp, Key};
///
/// struct User { id: u64 }
///
/// let key = Key::all([
///     Key::client_ip(ClientIp::peer()),
///     Key::extension(|user: &User| user.id),
/// ]);
/// ```
#[derive(Clone)]
pub struct Key(Source);

type Closure = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

#[derive(Clone)]
enum Source {
    ClientIp(Arc<ClientIp>),
    Header(HeaderName),
    Path,
    #[cfg(feature = "axum")]
    PathTemplate,
    Constant(Arc<[u8]>),
    Closure(Arc<Closure>),
    All(Arc<[Key]>),
}

impl Key {
    /// The client's address: `203.0.113.7`, or an IPv6 network, `2001:db8:1:2::/64`. None if the
    /// [peer](PeerAddr) is not known.
    #[must_use]
    pub fn client_ip(ip: ClientIp) -> Self {
        Self(Source::ClientIp(Arc::new(ip)))
    }

    /// The value of a header, such as an API key. None if it is not there or empty; if it is there more
    /// than once, the first counts, as it does for `HeaderMap::get`.
    ///
    /// Clients write headers as they like. As a key, use one that is checked before: else each made-up
    /// value is a client of its own.
    ///
    /// # Panics
    ///
    /// If this can be no header's name.
    #[must_use]
    pub fn header(name: impl TryInto<HeaderName>) -> Self {
        Self(Source::Header(header_name(name)))
    }

    /// The path of the request as it was sent, without the query: `/users/42`. For gRPC this is the method,
    /// `/package.Service/Method`.
    ///
    /// Many paths may lead to one place (`/a`, `/a/`, `/%61`), and each is a key of its own: where there
    /// are templates, use them.
    #[must_use]
    pub fn path() -> Self {
        Self(Source::Path)
    }

    /// The route that axum matched: `/users/{id}`. None where no route has been matched yet: add the layer
    /// to the `Router` (or a route of it), not around it.
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn path_template() -> Self {
        Self(Source::PathTemplate)
    }

    /// The key that `f` takes from the extension `T` of the request, such as the user that an earlier layer found.
    /// None if there is no such extension.
    #[must_use]
    pub fn extension<T, K>(f: impl Fn(&T) -> K + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
        K: AsKey,
    {
        Self::from_fn(move |parts| Some(f(parts.extensions.get::<T>()?).as_key().to_vec()))
    }

    /// What `f` says.
    ///
    /// ```
    /// use tidegate::http::Key;
    ///
    /// let by_host = Key::from_fn(|parts| Some(parts.uri.host()?.to_lowercase().into_bytes()));
    /// ```
    #[must_use]
    pub fn from_fn(f: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Source::Closure(Arc::new(f)))
    }

    /// All of these, joined by `|`: `203.0.113.7|/login`. Two requests share the key only if they share each
    /// part, whatever bytes the parts hold: in a part, `|` and `\` are preceded by `\`. None if any part is.
    #[must_use]
    pub fn all(keys: impl IntoIterator<Item = Self>) -> Self {
        Self(Source::All(keys.into_iter().collect()))
    }

    /// The same for all requests: for a limit that all share, or to tell apart keys that share a gate.
    #[must_use]
    pub fn constant(key: impl AsKey) -> Self {
        Self(Source::Constant((*key.as_key()).into()))
    }

    /// The key of this request, or `None` if it has none: to look at what a setting yields.
    ///
    /// ```
    /// use tidegate::http::Key;
    ///
    /// let (parts, ()) = http::Request::get("/login?next=%2F").body(()).unwrap().into_parts();
    /// let key = Key::all([Key::constant("shop"), Key::path()]);
    /// assert_eq!(key.of(&parts).as_deref(), Some(&b"shop|/login"[..]));
    /// ```
    #[must_use]
    pub fn of(&self, parts: &Parts) -> Option<Vec<u8>> {
        match &self.0 {
            Source::ClientIp(ip) => ip.key(parts),
            Source::Header(name) => {
                let value = parts.headers.get(name)?.as_bytes();
                (!value.is_empty()).then(|| value.to_vec())
            }
            Source::Path => Some(path(parts).as_bytes().to_vec()),
            #[cfg(feature = "axum")]
            Source::PathTemplate => {
                let path = parts.extensions.get::<axum::extract::MatchedPath>()?;
                Some(path.as_str().as_bytes().to_vec())
            }
            Source::Constant(key) => Some(key.to_vec()),
            Source::Closure(f) => f(parts),
            Source::All(keys) => joined(keys, parts),
        }
    }
}

pub(super) fn path(parts: &Parts) -> &str {
    uri(parts).path()
}

/// As it was sent: inside a router that is nested in another, axum cuts off the path what led there.
pub(super) fn uri(parts: &Parts) -> &http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

fn joined(keys: &[Key], parts: &Parts) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        if place > 0 {
            all.push(b'|');
        }
        for byte in key.of(parts)? {
            if matches!(byte, b'|' | b'\\') {
                all.push(b'\\');
            }
            all.push(byte);
        }
    }
    Some(all)
}

fn header_name(name: impl TryInto<HeaderName>) -> HeaderName {
    name.try_into().unwrap_or_else(|_| panic!("no header can have this name"))
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::ClientIp(ip) => ip.fmt(f),
            Source::Header(name) => write!(f, "header({name})"),
            Source::Path => f.write_str("path"),
            #[cfg(feature = "axum")]
            Source::PathTemplate => f.write_str("path_template"),
            Source::Constant(key) => write!(f, "constant(\"{}\")", key.escape_ascii()),
            Source::Closure(_) => f.write_str("from_fn(…)"),
            Source::All(keys) => f.debug_tuple("all").field(keys).finish(),
        }
    }
}
