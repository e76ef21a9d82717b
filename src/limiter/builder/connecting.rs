//! The Redis server to use, and the login.

use std::future::Future;
use std::sync::Arc;

use redis::{ConnectionInfo, IntoConnectionInfo, RedisError};

use super::{Backend, Builder};
use crate::background::Background;
#[cfg(feature = "tls")]
use crate::connection::Tls;
use crate::connection::{Connection, Login, Sentinels, words};
use crate::error::Error;

/// Settings of the connection besides its URL.
#[derive(Default)]
pub(super) struct Connecting {
    pub(super) login: Login,
    #[cfg(feature = "tls")]
    tls: Tls,
}

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
    /// secret. The provider is called for each attempt to connect, at most once a second in the long run.
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

impl Connecting {
    pub(super) fn by_url(self, url: &str, background: &Arc<Background>) -> Result<Connection, Error> {
        Ok(Connection::to_server(self.understood(url)?, self.login, background.clone()))
    }

    pub(super) fn by_sentinels(
        self,
        urls: &[String],
        name: String,
        background: &Arc<Background>,
    ) -> Result<Connection, Error> {
        let urls = urls.iter().map(|url| self.understood(url)).collect::<Result<_, _>>()?;
        Ok(Connection::by_sentinels(Sentinels::new(urls, name)?, self.login, background.clone()))
    }

    /// Parses a URL. The error omits the URL, which may hold a password.
    pub(super) fn understood(&self, url: &str) -> Result<ConnectionInfo, Error> {
        if cfg!(not(feature = "tls")) && url.starts_with("rediss:") {
            return Err(Error::config("a rediss:// URL needs tidegate's feature `tls`: switch it on"));
        }
        let info = url.into_connection_info().map_err(|error| bad_url(&error))?;
        #[cfg(feature = "tls")]
        let info = self.tls.apply(info)?;
        Ok(info)
    }
}

/// The error omits the URL, which may hold a password.
fn bad_url(error: &RedisError) -> Error {
    Error::config(format!(
        "the Redis URL cannot be used ({}): it should look like redis://127.0.0.1:6379",
        words(error)
    ))
}
