//! The source of connections.

use deadpool_redis::{HookError, PoolError};
use redis::{ConnectionAddr, ConnectionInfo};

use super::connect::{Login, connect_error, connect_to, is_cluster_node};
use super::link::Link;
use super::sentinel::Sentinels;
use crate::error::Error;
use crate::error::redact::RedactedUrl;

/// The server that a URL is expected to lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Any,
    #[cfg(feature = "cluster")]
    ClusterNode,
}

#[derive(Clone)]
pub(super) enum ConnectionSource {
    Server(Box<ConnectionInfo>, Login, Expected),
    Sentinels(Box<Sentinels>, Login),
    Pool(deadpool_redis::Pool),
}

impl ConnectionSource {
    /// Returns the error message for an attempt that timed out without an error.
    pub(super) fn silence(&self) -> &'static str {
        match self {
            // A Redis without TLS reads the TLS handshake as an incomplete line, and waits for its end.
            Self::Server(info, ..) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                "timed out connecting: does the server speak TLS on this port?"
            }
            _ => "timed out connecting",
        }
    }

    /// Returns the address of the server, without credentials.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Server(info, ..) => address_of(info),
            Self::Sentinels(sentinels, _) => sentinels.address(),
            // A pool does not reveal the address in its settings.
            Self::Pool(_) => "the Redis of the pool that the builder was given".to_owned(),
        }
    }

    pub(super) async fn connect(&self) -> Result<Link, Error> {
        Ok(Link::new(match self {
            Self::Server(info, login, expected) => {
                let mut connection = connect_to(login.apply(ConnectionInfo::clone(info)).await?).await?;
                if *expected != Expected::Any && !is_cluster_node(&mut connection).await? {
                    let address = address_of(info);
                    return Err(Error::unavailable(format!(
                        "{address} is not a node of a Redis Cluster (its cluster mode is off): connect to it as to a single \
                         server"
                    )));
                }
                connection
            }
            Self::Sentinels(sentinels, login) => sentinels.connect(login).await?,
            Self::Pool(pool) => {
                let connection = pool.get().await.map_err(pool_error)?;
                // Never returned to the pool, which opens another one for its other users.
                deadpool_redis::Connection::take(connection)
            }
        }))
    }
}

/// Returns the error of a pool. A failed connection has the same error as one without a pool.
fn pool_error(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            connect_error(error)
        }
        error => Error::unavailable(error.to_string()),
    }
}

// Addresses of servers as errors and warnings name them: without user, password and options.

/// The number of addresses that a text names.
const MAX_NAMED: usize = 3;

/// Returns the URL of a server without its user, password and options.
pub(super) fn address_of(info: &ConnectionInfo) -> String {
    let at = |host: &str, port: u16| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => format!("redis://{}", at(host, *port)),
        ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{}", at(host, *port)),
        // A percent-encoded `?` puts the password into the path.
        ConnectionAddr::Unix(path) => RedactedUrl::new(&format!("unix://{}", path.display())).to_string(),
        _ => "the server of the URL".to_owned(),
    }
}

/// Joins the first addresses of a list.
pub(super) fn addresses_of<'a>(servers: impl ExactSizeIterator<Item = &'a ConnectionInfo>) -> String {
    let others = servers.len().saturating_sub(MAX_NAMED);
    let named = servers.take(MAX_NAMED).map(address_of).collect::<Vec<_>>().join(", ");
    if others == 0 { named } else { format!("{named} and {others} more") }
}
