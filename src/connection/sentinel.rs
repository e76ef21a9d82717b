//! A primary that sentinels know by a name. Each new connection queries them again, so it follows a failover.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, RedisConnectionInfo, ServerError, Value};

use super::connect::{CONNECT_TIMEOUT, Login, connect_error, connect_to, with_address};
use super::source::{address_of, addresses_of};
use crate::error::Error;

/// Bounds each of the two steps of an attempt: a sentinel's answer, and a connection to the primary
/// that it names. Both fit into the attempt's time, so its error tells which step failed.
const STEP: Duration = Duration::from_millis(CONNECT_TIMEOUT.as_millis() as u64 / 2);

/// The addresses of sentinels, and the name of their primary.
#[derive(Clone)]
pub(crate) struct Sentinels {
    sentinels: Vec<ConnectionInfo>,
    name: String,
    /// The settings to connect to the primary, except for its host and port.
    template: ConnectionInfo,
}

type SentinelAddress = (String, u16);

/// The step of an attempt that failed.
enum Failed {
    Sentinel(Error),
    Primary(Error),
}

impl Sentinels {
    /// Uses the settings and the database of the first URL for the connection to the primary. Sentinels have
    /// no databases.
    pub(crate) fn new(urls: Vec<ConnectionInfo>, name: String) -> Result<Self, Error> {
        let Some(first) = urls.first() else {
            return Err(Error::config(
                "no sentinel: pass the builder at least one URL, preferably those of all sentinels",
            ));
        };
        let database = RedisConnectionInfo::default().set_db(first.redis_settings().db());
        let template = first.clone().set_redis_settings(database);
        let sentinels = urls.into_iter().map(|url| {
            let settings = url.redis_settings().clone().set_db(0);
            url.set_redis_settings(settings)
        });
        Ok(Self { sentinels: sentinels.collect(), name, template })
    }

    /// Returns the name of the primary and the addresses of the sentinels, without credentials.
    pub(super) fn address(&self) -> String {
        format!("the primary \"{}\" of the sentinels {}", self.name, addresses_of(self.sentinels.iter()))
    }

    /// Connects to a primary that a sentinel names and that confirms its role. Queries all sentinels in
    /// parallel, and tries all primaries that they name in parallel: neither a lost sentinel nor one that
    /// names a lost primary delays the others.
    pub(super) async fn connect(&self, login: &Login) -> Result<MultiplexedConnection, Error> {
        let tried = Mutex::default();
        let mut attempts: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.connect_by(sentinel, &tried, login)).collect();
        let (mut no_answer, mut no_primary) = (None, None);
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(Some(connection)) => return Ok(connection),
                Ok(None) => {}
                Err(Failed::Primary(error)) => no_primary = Some(error),
                Err(Failed::Sentinel(error)) => no_answer = Some(error),
            }
        }
        // A primary that is down matters more than a sentinel that is down as well.
        Err(no_primary.or(no_answer).unwrap_or_else(|| Error::unavailable("no sentinel is configured")))
    }

    /// Connects to the primary that one sentinel names. Returns `None` if another sentinel has named it
    /// before: that attempt tries it.
    async fn connect_by(
        &self,
        sentinel: &ConnectionInfo,
        tried: &Mutex<Vec<SentinelAddress>>,
        login: &Login,
    ) -> Result<Option<MultiplexedConnection>, Failed> {
        let named = self.query(sentinel).await.map_err(Failed::Sentinel)?;
        {
            let mut tried = tried.lock().unwrap_or_else(PoisonError::into_inner);
            if tried.contains(&named) {
                return Ok(None);
            }
            tried.push(named.clone());
        }
        self.primary(&named, login).await.map(Some).map_err(Failed::Primary)
    }

    /// Queries one sentinel for the address of the primary.
    async fn query(&self, sentinel: &ConnectionInfo) -> Result<SentinelAddress, Error> {
        let reply = tokio::time::timeout(STEP, async {
            let mut connection = connect_to(sentinel.clone()).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
            connection.send_packed_command(&command).await.map_err(connect_error)
        });
        match reply.await {
            Ok(Ok(Value::Array(address))) => match &address[..] {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let port = text(port).parse().map_err(|_| self.query_failed("names no port"))?;
                    Ok((text(host), port))
                }
                _ => Err(self.query_failed("names no address")),
            },
            Ok(Ok(Value::Nil)) => Err(self.query_failed("knows no primary of this name")),
            Ok(Ok(Value::ServerError(error))) if is_unknown_command(&error) => {
                let address = address_of(sentinel);
                Err(Error::unavailable(format!(
                    "{address} is a Redis, not a sentinel: give the addresses of sentinels (usually port 26379)"
                )))
            }
            Ok(Ok(Value::ServerError(error))) => Err(connect_error(error.into())),
            Ok(Ok(_)) => Err(self.query_failed("sent an unexpected reply: is it a sentinel?")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.query_failed("does not answer")),
        }
    }

    fn query_failed(&self, reason: &str) -> Error {
        Error::unavailable(format!("query for the primary \"{}\": a sentinel {reason}", self.name))
    }

    /// Connects to a server and queries its role.
    async fn primary(
        &self,
        (host, port): &SentinelAddress,
        login: &Login,
    ) -> Result<MultiplexedConnection, Error> {
        let (host, port) = (host.clone(), *port);
        let at = format!("{host}:{port}");
        let info = login.apply(with_address(&self.template, host, port)).await?;
        let role = tokio::time::timeout(STEP, async {
            let mut connection = connect_to(info).await?;
            let role = connection.send_packed_command(&redis::cmd("ROLE")).await.map_err(connect_error)?;
            Ok((connection, role))
        });
        match role.await {
            Ok(Ok((connection, role))) if may_be_primary(&role) => Ok(connection),
            Ok(Ok(_)) => Err(Error::unavailable(format!("{at}, which a sentinel names, is a replica"))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::unavailable(format!("{at}, which a sentinel names, does not answer"))),
        }
    }
}

fn is_unknown_command(error: &ServerError) -> bool {
    error.details().is_some_and(|details| details.starts_with("unknown command"))
}

/// Returns true if the role is unknown: a user without permission for ROLE detects a replica by its first
/// READONLY.
fn may_be_primary(role: &Value) -> bool {
    match role {
        Value::Array(role) => matches!(role.first(), Some(Value::BulkString(name)) if name == b"master"),
        Value::ServerError(error) => error.code() == "NOPERM",
        _ => false,
    }
}
