//! The settings of a builder that say where Redis is and how to log in.

use std::future::Future;

use super::{Backend, Builder};
use crate::connection::Login;

/// # Connection
impl Builder {
    /// Uses the Redis at this URL: `redis://[user:password@]host[:port][/database]` or `unix:///path`; with
    /// the feature `tls` also `rediss://…`.
    pub fn url(mut self, url: &str) -> Self {
        self.backend = Backend::Url(url.to_owned());
        self
    }

    /// Sets user and password as plain text; in a URL they would have to be percent-encoded. The user of a
    /// Redis without users is `default`.
    ///
    /// Default: those in the URL.
    pub fn credentials(mut self, user: &str, password: &str) -> Self {
        self.connecting.login = Login::Fixed((user.to_owned(), password.to_owned()));
        self
    }

    /// Sets a function that returns user and password for each new connection, for passwords that change.
    /// Replaces [`credentials`](Self::credentials). Redis keeps a connection open after its password has
    /// changed. The next connection needs the new one.
    ///
    /// ```
    /// # fn main() -> Result<(), tidegate::Error> {
    /// let limiter = tidegate::Limiter::builder()
    ///     .url("redis://127.0.0.1:6379")
    ///     .credentials_provider(|| async {
    ///         let password = tokio::fs::read_to_string("/run/secrets/redis").await?;
    ///         Ok::<_, std::io::Error>(("limits".to_owned(), password.trim().to_owned()))
    ///     })
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// The error of a check that needs a connection contains the provider's error, so it must not hold a
    /// secret. The provider is called for each attempt to connect, at most once a second in the long run. It has
    /// 900 ms, then its future is dropped and the attempt has failed: let a slower one keep the credentials, and renew
    /// them in the background.
    pub fn credentials_provider<F, E>(mut self, provider: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(String, String), E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.connecting.login = Login::provided(provider);
        self
    }

    /// Uses the primary that these sentinels know as `name`. Each new connection queries them, so it follows
    /// a failover. The limiter leaves a demoted primary when it rejects a write, or when the sentinels
    /// disconnect its clients. Sentinels take about 8 s to demote a primary that is still running (set
    /// `min-replicas-to-write` for those).
    ///
    /// User and password in the URLs (`redis://user:password@host:26379`) are for the sentinels; those for
    /// Redis are [`credentials`](Self::credentials). A database in the first URL applies to Redis. If the
    /// first URL is `rediss://`, Redis is reached over TLS too. An ACL should permit `ROLE`.
    pub fn sentinel<'a>(mut self, urls: impl IntoIterator<Item = &'a str>, name: &str) -> Self {
        let urls = urls.into_iter().map(str::to_owned).collect();
        self.backend = Backend::Sentinels { urls, name: name.to_owned() };
        self
    }

    /// Uses the Redis Cluster of these nodes, such as `redis://10.0.0.1:6379`. Any of them leads to the other
    /// nodes. Give several, so that a process can start while one is down. All have the same user and
    /// password.
    ///
    /// Keys have other names than with a single Redis: a `{tag}` precedes each key and spreads them over 48
    /// slots, and so over up to 48 primaries. All gates of one key share a slot. The keys of one
    /// [`check_all`](crate::Limiter::check_all) must share one too ([`Check::colocate_with`](crate::Check::colocate_with)).
    #[cfg(feature = "cluster")]
    pub fn cluster<S: AsRef<str>>(mut self, urls: impl IntoIterator<Item = S>) -> Self {
        self.backend = Backend::Cluster(urls.into_iter().map(|url| url.as_ref().to_owned()).collect());
        self
    }

    /// Sets the CA certificates, in PEM, for a `rediss://` server. Replaces the CAs that this system trusts.
    #[cfg(feature = "tls")]
    pub fn tls_ca(mut self, pem: &[u8]) -> Self {
        self.connecting.tls.ca = Some(pem.to_owned());
        self
    }

    /// Sets the certificate for a `rediss://` server that requires one: the client's certificate with its
    /// intermediate certificates, and its key, in PEM.
    #[cfg(feature = "tls")]
    pub fn tls_client_certificate(mut self, certificate: &[u8], key: &[u8]) -> Self {
        self.connecting.tls.client = Some((certificate.to_owned(), key.to_owned()));
        self
    }

    /// Uses the Redis of this pool: see [`Limiter::from_pool`](crate::Limiter::from_pool). The pool has its
    /// own credentials.
    pub fn pool(mut self, pool: deadpool_redis::Pool) -> Self {
        self.backend = Backend::Pool(pool);
        self
    }
}
