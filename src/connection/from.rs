//! Where connections come from.

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

/// How long an attempt may take. Longer than most deadlines of a decision: it goes on for
/// those who ask next when the one who began it has given up. No longer than that: one that was
/// begun in a black hole is what keeps Redis from being asked again.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

impl From {
    /// What it means that no connection came about, and no error either.
    pub(super) fn silence(&self) -> &'static str {
        match self {
            // A Redis without TLS waits for the end of what it takes for a line.
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
                // Never returned: the pool opens another one for its other users.
                deadpool_redis::Connection::take(connection)
            }
        }))
    }
}

/// As another server is reached, but for host and port.
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
    // To a script call without the password it needs, Redis says only that it is
    // too long, and hangs up.
    match connection.send_packed_command(&redis::cmd("PING")).await {
        Ok(Value::ServerError(error)) if reply::is_not_the_one(&error) => Err(failed(error.into())),
        Ok(_) => Ok(connection),
        Err(error) => Err(failed(error)),
    }
}

/// Who does not say which library it is by needs no right to, and a round trip less.
pub(super) fn unintroduced(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    info.set_redis_settings(settings)
}

/// The error of a pool. Where connecting failed, it is the one that a connection without a pool would have.
fn pool_failed(error: PoolError) -> Error {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => failed(error),
        error => Error::unavailable(error.to_string()),
    }
}

/// The error of an attempt to connect, with advice if the cause is known.
pub(super) fn failed(error: RedisError) -> Error {
    #[cfg(feature = "tls")]
    if let Some(advice) = super::tls::advice(&error.to_string()) {
        return Error::unavailable(format!("{}: {advice}", reply::words(&error)));
    }
    match error.kind() {
        // redis-rs keeps the server's words to itself.
        ErrorKind::AuthenticationFailed => {
            Error::unavailable_since("WRONGPASS it refuses this user and password")
        }
        _ => Error::unavailable_since(&reply::words(&error)),
    }
}
