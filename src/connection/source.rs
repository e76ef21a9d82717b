//! The source of connections.

use deadpool_redis::{HookError, PoolError};
use redis::{ConnectionAddr, ConnectionInfo};

use super::address;
use super::connect::{Login, connect_error, connect_to};
use super::link::Link;
use super::sentinel::Sentinels;
use crate::error::Error;

#[derive(Clone)]
pub(super) enum ConnectionSource {
    Server(Box<ConnectionInfo>, Login),
    Sentinels(Box<Sentinels>, Login),
    Pool(deadpool_redis::Pool),
}

impl ConnectionSource {
    /// Returns the error message for an attempt that timed out without an error.
    pub(super) fn silence(&self) -> &'static str {
        match self {
            // A Redis without TLS reads the TLS handshake as an incomplete line, and waits for its end.
            Self::Server(info, _) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                "timed out connecting: does the server speak TLS on this port?"
            }
            _ => "timed out connecting",
        }
    }

    /// Returns the address of the server, without credentials.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Server(info, _) => address::of_server(info),
            Self::Sentinels(sentinels, _) => sentinels.address(),
            // A pool does not reveal the address in its settings.
            Self::Pool(_) => "the Redis of the pool that the builder was given".to_owned(),
        }
    }

    pub(super) async fn connect(&self) -> Result<Link, Error> {
        Ok(Link::new(match self {
            Self::Server(info, login) => connect_to(login.apply(ConnectionInfo::clone(info)).await?).await?,
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
