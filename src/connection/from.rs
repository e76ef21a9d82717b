//! The source of connections.

use std::time::Duration;

use deadpool_redis::{HookError, PoolError};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};

use super::link::Link;
use super::login::Login;
use super::reply;
use super::sentinel::Sentinels;
use crate::error::Error;

#[derive(Clone)]
pub(super) enum From {
    Server(Box<ConnectionInfo>, Login),
    Sentinels(Box<Sentinels>, Login),
    Pool(deadpool_redis::Pool),
}

/// The time limit of an attempt to connect. It is longer than most deadlines of a decision: after the first
/// caller has timed out, the attempt continues for later callers. It is not longer, because an attempt
/// without any reply blocks the next one.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

impl From {
    /// Returns the error message for an attempt that timed out without an error.
    pub(super) fn silence(&self) -> &'static str {
        match self {
            // A Redis without TLS reads the TLS handshake as an incomplete line, and waits for its end.
            Self::Server(info, _) if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) => {
                "it takes no connection: does it speak TLS on this port?"
            }
            _ => "it takes no connection",
        }
    }

    pub(super) async fn connect(&self) -> Result<Link, Error> {
        Ok(Link::new(match self {
            Self::Server(info, login) => to(login.apply(ConnectionInfo::clone(info)).await?).await?,
            Self::Sentinels(sentinels, login) => sentinels.connect(login).await?,
            Self::Pool(pool) => {
                let connection = pool.get().await.map_err(pool_failed)?;
                // Never returned to the pool, which opens another one for its other users.
                deadpool_redis::Connection::take(connection)
            }
        }))
    }
}

/// Returns the same settings for another host and port.
pub(super) fn like(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

pub(super) async fn to(info: ConnectionInfo) -> Result<MultiplexedConnection, Error> {
    #[cfg(feature = "tls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        super::tls::choose_crypto();
    }
    let client = Client::open(unintroduced(info)).map_err(failed)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None) // bounded by the attempt, with all that follows it
        .set_response_timeout(None); // bounded by each call's deadline
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut connection = connected.map_err(failed)?;
    // Sends a PING first. If a password is required, Redis replies to a script call only that it is too long,
    // and disconnects.
    match connection.send_packed_command(&redis::cmd("PING")).await {
        Ok(Value::ServerError(error)) if reply::is_not_the_one(&error) => Err(failed(error.into())),
        Ok(_) => Ok(connection),
        Err(error) => Err(failed(error)),
    }
}

/// Skips CLIENT SETINFO: saves a round trip and an ACL permission.
pub(super) fn unintroduced(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    info.set_redis_settings(settings)
}

/// Returns the error of a pool. A failed connection has the same error as one without a pool.
fn pool_failed(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => failed(error),
        error => Error::unavailable(error.to_string()),
    }
}

/// Returns the error of an attempt to connect, with advice if the cause is known.
pub(super) fn failed(error: RedisError) -> Error {
    #[cfg(feature = "tls")]
    if let Some(advice) = super::tls::advice(&error.to_string()) {
        return Error::unavailable(format!("{}: {advice}", reply::words(&error)));
    }
    match error.kind() {
        // redis-rs does not expose the server's message.
        ErrorKind::AuthenticationFailed => {
            Error::unavailable_since("WRONGPASS it refuses this user and password")
        }
        _ => Error::unavailable_since(&reply::words(&error)),
    }
}
