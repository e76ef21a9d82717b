//! The key that a request is counted for.

mod address;
mod client_ip;
mod forwarded;
mod network;
mod path;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::HeaderName;
use http::request::Parts;
use tidegate::AsKey;
use tidegate::redact::RedactedKey;

pub use self::address::PeerAddr;
pub use self::client_ip::ClientIp;
pub(super) use self::client_ip::TrustMistake;
pub use self::network::ToNetwork;
#[cfg(feature = "actix")]
pub(super) use self::path::RoutePattern;
#[cfg(any(feature = "actix", feature = "axum"))]
pub(super) use self::path::pattern_of;
use super::missing_key::Absent;

/// The key that a request is counted for: a client's address, a header, a path, or several of these together.
///
/// A request without the property has no key; [`MissingKey`](super::MissingKey) decides how the layer handles
/// it.
///
/// ```
/// use tidegate_http::{ClientIp, Key};
///
/// struct User { id: u64 }
///
/// let key = Key::all([
///     Key::client_ip(ClientIp::peer()),
///     Key::extension(|user: &User| user.id),
/// ]);
/// ```
#[derive(Clone)]
pub struct Key(KeySource);

type Closure = dyn Fn(&Parts) -> Option<Vec<u8>> + Send + Sync;

#[derive(Clone)]
enum KeySource {
    ClientIp(Arc<ClientIp>),
    Header(HeaderName),
    Path,
    #[cfg(any(feature = "actix", feature = "axum"))]
    PathTemplate,
    Constant(Arc<[u8]>),
    Closure(Arc<Closure>),
    Extension(Arc<Extension>),
    All(Arc<[Key]>),
}

/// A key from an extension of the request.
struct Extension {
    key_of: Box<Closure>,
    type_name: &'static str,
    /// Whether a request had the extension. Distinguishes layers in the wrong order from requests that lack
    /// the extension on purpose. Written once, so that later requests share the cache line.
    was_seen: AtomicBool,
}

impl Key {
    /// Uses the client's address: `203.0.113.7`, or an IPv6 network, `2001:db8:1:2::/64`. None if the
    /// [peer](PeerAddr) is not known, which is a mistake in the setup of the server: the layer rejects the
    /// request with 500 by default.
    #[must_use]
    pub fn client_ip(ip: ClientIp) -> Self {
        Self(KeySource::ClientIp(Arc::new(ip)))
    }

    /// Uses the value of a header, such as an API key. None if the header is missing or empty. If it occurs
    /// more than once, the first value counts, as for `HeaderMap::get`.
    ///
    /// Clients can send any header. Use only headers that an earlier layer has verified: otherwise each
    /// invented value counts as a client.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name. To handle a name that is known only at run time, convert it with
    /// `HeaderName::try_from` first.
    #[must_use]
    #[track_caller]
    pub fn header(name: impl TryInto<HeaderName> + fmt::Debug) -> Self {
        Self(KeySource::Header(header_name(name)))
    }

    /// Uses the path of the request, without the query: `/users/42`. For gRPC this is the method,
    /// `/package.Service/Method`. Behind axum's `nest` and `nest_service`, this is the whole path, with the
    /// prefix that axum removes.
    ///
    /// The path is normalized as Envoy does it, so that a client cannot choose a key by its spelling:
    /// `/v1//login`, `/v1/./login` and `/v1/%6Cogin` are `/v1/login`. The page `docs/reference/spoofing.md` of
    /// the repository lists the rules and their limits: `%2F` is not a slash, `/a` and `/a/` are two keys, and
    /// so are `/A` and `/a`.
    ///
    /// Each value of a parameter in the path is a separate key. Use `Key::path_template` (feature `axum` or `actix`)
    /// for one key per route. Use the path where the framework does not know the route: behind axum's
    /// `nest_service`, in file servers, in proxies, and for gRPC.
    #[must_use]
    pub fn path() -> Self {
        Self(KeySource::Path)
    }

    /// Uses the route that axum or actix-web matched: `/users/{id}`. None if no route matches. With axum, also none
    /// if no route has been matched yet: add the layer to the `Router` (or a route of it), not around it. Prefer it
    /// to [`path`](Self::path) where the framework knows the route: clients cannot create keys, because the routes
    /// are a closed set.
    #[cfg(any(feature = "actix", feature = "axum"))]
    #[must_use]
    pub fn path_template() -> Self {
        Self(KeySource::PathTemplate)
    }

    /// Uses the key that `f` takes from the extension `T` of the request, such as the user that an earlier
    /// layer found. None if there is no such extension: the layer then rejects the request with 500 by default,
    /// since no client can add an extension. With actix-web, name `T` in `RateLimitLayer::actix_extension` too. If
    /// some requests lack it on purpose, such as those of anonymous users, set
    /// [`RateLimitLayer::missing_key`](super::RateLimitLayer::missing_key).
    #[must_use]
    pub fn extension<T, K>(f: impl Fn(&T) -> K + Send + Sync + 'static) -> Self
    where
        T: Send + Sync + 'static,
        K: AsKey,
    {
        Self(KeySource::Extension(Arc::new(Extension {
            key_of: Box::new(move |parts| Some(f(parts.extensions.get::<T>()?).as_key().to_vec())),
            type_name: std::any::type_name::<T>(),
            was_seen: AtomicBool::new(false),
        })))
    }

    /// Uses the key that `f` returns.
    ///
    /// ```
    /// use tidegate_http::Key;
    ///
    /// let by_host = Key::from_fn(|parts| Some(parts.uri.host()?.to_lowercase().into_bytes()));
    /// ```
    #[must_use]
    pub fn from_fn(f: impl Fn(&Parts) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(KeySource::Closure(Arc::new(f)))
    }

    /// Joins several keys by `|`: `203.0.113.7|/login`. Two requests share the key only if they share each
    /// part. Parts can hold any bytes: in a part, `|` and `\` are escaped by `\`. None if any part is none.
    #[must_use]
    pub fn all(keys: impl IntoIterator<Item = Self>) -> Self {
        Self(KeySource::All(keys.into_iter().collect()))
    }

    /// Uses the same key for all requests: for a limit that all share, or to distinguish keys that share a
    /// gate.
    #[must_use]
    pub fn constant(key: impl AsKey) -> Self {
        Self(KeySource::Constant((*key.as_key()).into()))
    }

    /// Returns the key of this request, or `None` if it has none; useful to test a setting.
    ///
    /// ```
    /// use tidegate_http::Key;
    ///
    /// let (parts, ()) = http::Request::get("/login?next=%2F").body(()).unwrap().into_parts();
    /// let key = Key::all([Key::constant("shop"), Key::path()]);
    /// assert_eq!(key.of(&parts).as_deref(), Some(&b"shop|/login"[..]));
    /// ```
    #[must_use]
    pub fn of(&self, parts: &Parts) -> Option<Vec<u8>> {
        self.find(parts).ok().map(Cow::into_owned)
    }

    /// Returns the key of this request, or the part that the request lacks.
    pub(super) fn find<'p>(&'p self, parts: &'p Parts) -> Result<Cow<'p, [u8]>, Absent> {
        let found = match &self.0 {
            KeySource::ClientIp(ip) => return ip.key(parts).map(Cow::Owned).ok_or(Absent::PeerAddress),
            KeySource::Extension(extension) => return extension.find(parts).map(Cow::Owned),
            KeySource::All(keys) => return joined(keys, parts).map(Cow::Owned),
            KeySource::Header(name) => {
                let value = parts.headers.get(name).map(|value| Cow::Borrowed(value.as_bytes()));
                value.filter(|value| !value.is_empty())
            }
            KeySource::Path => Some(path(parts)),
            // Requests to unknown paths lack it too, so it counts as a property that the client has not sent.
            #[cfg(any(feature = "actix", feature = "axum"))]
            KeySource::PathTemplate => {
                pattern_of(&parts.extensions).map(|pattern| Cow::Borrowed(pattern.as_bytes()))
            }
            KeySource::Constant(key) => Some(Cow::Borrowed(&**key)),
            KeySource::Closure(f) => f(parts).map(Cow::Owned),
        };
        found.ok_or(Absent::NotSent)
    }

    /// Returns whether the key is the route that matched, which actix-web has to look up.
    #[cfg(feature = "actix")]
    pub(super) fn reads_route(&self) -> bool {
        match &self.0 {
            KeySource::PathTemplate => true,
            KeySource::All(keys) => keys.iter().any(Self::reads_route),
            _ => false,
        }
    }

    /// Returns the mistake in the declaration of trusted proxies that this request shows. Allocates nothing.
    pub(super) fn trust_mistake(&self, parts: &Parts) -> Option<TrustMistake> {
        match &self.0 {
            KeySource::ClientIp(ip) => ip.trust_mistake(parts),
            KeySource::All(keys) => keys.iter().find_map(|key| key.trust_mistake(parts)),
            _ => None,
        }
    }
}

impl Extension {
    fn find(&self, parts: &Parts) -> Result<Vec<u8>, Absent> {
        let key = (self.key_of)(parts);
        let was_seen = self.was_seen.load(Ordering::Relaxed);
        if key.is_some() && !was_seen {
            self.was_seen.store(true, Ordering::Relaxed);
        }
        key.ok_or(Absent::Extension { type_name: self.type_name, was_seen })
    }
}

/// Returns the normalized path, without the query.
pub(super) fn path(parts: &Parts) -> Cow<'_, [u8]> {
    path::normalized(uri(parts).path())
}

/// Returns the URI as sent. Inside a nested router, axum removes the matched prefix from the path.
pub(super) fn uri(parts: &Parts) -> &http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

fn joined(keys: &[Key], parts: &Parts) -> Result<Vec<u8>, Absent> {
    let mut all = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        if index > 0 {
            all.push(b'|');
        }
        for &byte in &*key.find(parts)? {
            if matches!(byte, b'|' | b'\\') {
                all.push(b'\\');
            }
            all.push(byte);
        }
    }
    Ok(all)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            KeySource::ClientIp(ip) => ip.fmt(f),
            KeySource::Header(name) => write!(f, "header({name})"),
            KeySource::Path => f.write_str("path"),
            #[cfg(any(feature = "actix", feature = "axum"))]
            KeySource::PathTemplate => f.write_str("path_template"),
            KeySource::Constant(key) => write!(f, "constant({})", RedactedKey::new(key)),
            KeySource::Closure(_) => f.write_str("from_fn(…)"),
            KeySource::Extension(extension) => write!(f, "extension({})", extension.type_name),
            KeySource::All(keys) => f.debug_tuple("all").field(keys).finish(),
        }
    }
}

/// # Panics
///
/// If `name` is not a valid header name.
#[track_caller]
fn header_name(name: impl TryInto<HeaderName> + fmt::Debug) -> HeaderName {
    let shown = format!("{name:?}");
    match name.try_into() {
        Ok(name) => name,
        Err(_) => {
            panic!("not a valid header name: {shown}: use letters, digits and `-`, as in \"x-api-key\"")
        }
    }
}
