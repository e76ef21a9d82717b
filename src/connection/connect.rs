//! Connecting to one server: its time limit, settings and errors.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};

use super::reply;
use crate::error::Error;

/// The time limit of an attempt to connect. It is longer than most deadlines of a decision: after the first
/// caller has timed out, the attempt continues for later callers. It is not longer, because an attempt
/// without any reply blocks the next one.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of it in which a credentials provider returns, so that its delay is not taken for one of the server.
const PROVIDER_TIMEOUT: Duration = Duration::from_millis(900);

/// Connects to a server and sends a PING.
pub(super) async fn connect_to(info: ConnectionInfo) -> Result<MultiplexedConnection, Error> {
    #[cfg(feature = "tls")]
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        super::tls::choose_crypto();
    }
    let client = Client::open(without_client_setinfo(info)).map_err(connect_error)?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None) // bounded by the attempt, with all that follows it
        .set_response_timeout(None); // bounded by each call's deadline
    let connected = client.get_multiplexed_async_connection_with_config(&config).await;
    let mut connection = connected.map_err(connect_error)?;
    // Sends a PING first. If a password is required, Redis replies to a script call only that it is too long,
    // and disconnects.
    match connection.send_packed_command(&redis::cmd("PING")).await {
        Ok(Value::ServerError(error)) if reply::is_unusable(&error) => Err(connect_error(error.into())),
        Ok(_) => Ok(connection),
        Err(error) => Err(connect_error(error)),
    }
}

/// Returns whether a server can be a node of a cluster. Another one replies to all calls without a redirect, so it would count
/// apart from the nodes. HELLO needs no permission; a server that does not know it, or that accepts ASKING, may be a node.
pub(super) async fn is_cluster_node(connection: &mut MultiplexedConnection) -> Result<bool, Error> {
    let hello = connection.send_packed_command(&redis::cmd("HELLO")).await.map_err(connect_error)?;
    let fields: HashMap<String, Value> = redis::from_redis_value(hello).unwrap_or_default();
    if !matches!(fields.get("mode"), Some(Value::BulkString(mode)) if mode == b"standalone") {
        return Ok(true);
    }
    let asking = connection.send_packed_command(&redis::cmd("ASKING")).await.map_err(connect_error)?;
    Ok(!matches!(asking, Value::ServerError(_)))
}

/// Skips CLIENT SETINFO: saves a round trip and an ACL permission.
pub(super) fn without_client_setinfo(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    info.set_redis_settings(settings)
}

/// Returns the same settings for another host and port.
pub(super) fn with_address(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

/// Returns the error of an attempt to connect, with advice if the cause is known.
pub(super) fn connect_error(error: RedisError) -> Error {
    #[cfg(feature = "tls")]
    if let Some(advice) = super::tls::advice(&error.to_string()) {
        return Error::unavailable(format!("{}: {advice}", reply::words(&error)));
    }
    match error.kind() {
        // redis-rs does not expose the server's message.
        ErrorKind::AuthenticationFailed => Error::unavailable_since("WRONGPASS invalid user or password"),
        _ => Error::unavailable_since(&reply::words(&error)),
    }
}

// The credentials of a connection.

/// A user and a password.
type Pair = (String, String);
type Credentials = Result<Pair, Box<dyn StdError + Send + Sync>>;

#[derive(Clone, Default)]
pub(crate) enum Login {
    #[default]
    OfUrl,
    Fixed(Pair),
    /// Called for each connection.
    Provider(Arc<dyn Fn() -> BoxFuture<'static, Credentials> + Send + Sync>),
}

impl Login {
    pub(crate) fn provided<F, E>(provider: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Pair, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        Self::Provider(Arc::new(move || {
            let credentials = provider();
            async { credentials.await.map_err(Into::into) }.boxed()
        }))
    }

    pub(super) async fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        let (user, password) = match self {
            Self::OfUrl => return Ok(info),
            Self::Fixed(pair) => pair.clone(),
            Self::Provider(provider) => match tokio::time::timeout(PROVIDER_TIMEOUT, provider()).await {
                Ok(provided) => provided.map_err(|error| {
                    Error::unavailable(format!("the credentials provider failed: {error}"))
                })?,
                Err(_) => {
                    return Err(Error::unavailable(format!(
                        "the credentials provider took longer than {PROVIDER_TIMEOUT:?}: keep the credentials, and renew them in the background"
                    )));
                }
            },
        };
        let settings = info.redis_settings().clone().set_username(user).set_password(password);
        Ok(info.set_redis_settings(settings))
    }
}

/// Shows no secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OfUrl => "OfUrl",
            Self::Fixed(_) => "Fixed",
            Self::Provider(_) => "Provider",
        })
    }
}
