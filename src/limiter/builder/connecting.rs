//! Connections to the Redis servers of URLs, with a login and certificates.

use std::sync::Arc;

use redis::{ConnectionInfo, IntoConnectionInfo, RedisError};

#[cfg(feature = "cluster")]
use crate::connection::Cluster;
#[cfg(feature = "tls")]
use crate::connection::Tls;
use crate::connection::{Connection, Login, Sentinels, words};
use crate::error::Error;
use crate::error::redact::RedactedUrl;
use crate::runtime::background::Background;

/// Settings of the connection besides its URL.
#[derive(Default)]
pub(super) struct Connecting {
    pub(super) login: Login,
    #[cfg(feature = "tls")]
    pub(super) tls: Tls,
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

    #[cfg(feature = "cluster")]
    pub(super) fn by_cluster(
        self,
        urls: &[String],
        background: &Arc<Background>,
    ) -> Result<Connection, Error> {
        let nodes: Vec<_> = urls.iter().map(|url| self.understood(url)).collect::<Result<_, _>>()?;
        Ok(Connection::of_cluster(Cluster::new(&nodes, self.login, background.clone())?))
    }

    /// Parses a URL. An error shows no more of it than [`RedactedUrl`] does.
    pub(super) fn understood(&self, url: &str) -> Result<ConnectionInfo, Error> {
        if cfg!(not(feature = "tls")) && url.starts_with("rediss:") {
            return Err(Error::config("a rediss:// URL needs tidegate's feature `tls`: switch it on"));
        }
        let shown = RedactedUrl::new(url);
        if shown.is_ambiguous() {
            return Err(bad_url(shown, "an `@` follows a `/`, `?` or `#`, or the host is percent-encoded"));
        }
        let info = url.into_connection_info().map_err(|error| bad_url(shown, &cause(&error)))?;
        #[cfg(feature = "tls")]
        let info = self.tls.apply(info)?;
        Ok(info)
    }
}

fn bad_url(shown: RedactedUrl<'_>, cause: &str) -> Error {
    Error::config(format!(
        "the Redis URL {shown} cannot be used ({cause}): it should look like redis://127.0.0.1:6379; \
         percent-encode a user and password, or pass them to `credentials`"
    ))
}

/// Returns the text of an error without its details, which quote the URL.
fn cause(error: &RedisError) -> String {
    let text = words(error);
    let cause = error.detail().and_then(|detail| text.strip_suffix(detail)).unwrap_or(&text);
    cause.trim_end_matches([':', ' ']).to_owned()
}
