//! A primary that sentinels know by a name: asked for with each connection, so
//! that a failover is followed.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, RedisConnectionInfo, Value};

use super::from::{failed, like, to};
use super::login::Login;
use crate::error::Error;

/// For each of them: one that is dead should not use up the time of the others.
const ONE: Duration = Duration::from_secs(1);

/// Where they are, and whom they watch.
#[derive(Clone)]
pub(crate) struct Sentinels {
    sentinels: Vec<ConnectionInfo>,
    name: String,
    /// As the primary is reached, but for its host and port.
    like: ConnectionInfo,
}

impl Sentinels {
    /// The primary is reached as the first of them is, and has the database of its
    /// URL; they have none.
    pub(crate) fn new(urls: Vec<ConnectionInfo>, name: String) -> Result<Self, Error> {
        let Some(first) = urls.first() else {
            return Err(Error::config("no sentinel: give the builder at least one URL, better all"));
        };
        let database = RedisConnectionInfo::default().set_db(first.redis_settings().db());
        let like = first.clone().set_redis_settings(database);
        let sentinels = urls.into_iter().map(|url| {
            let settings = url.redis_settings().clone().set_db(0);
            url.set_redis_settings(settings)
        });
        Ok(Self { sentinels: sentinels.collect(), name, like })
    }

    /// To the first primary that one of them names and that says so itself. All
    /// are asked at once.
    pub(super) async fn connect(&self, login: &Login) -> Result<MultiplexedConnection, Error> {
        let mut asked: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| self.ask(sentinel)).collect();
        let mut tried = Vec::new();
        let (mut no_answer, mut no_primary) = (None, None);
        while let Some(told) = asked.next().await {
            match told {
                Ok(named) if tried.contains(&named) => {}
                Ok(named) => {
                    match self.primary(&named, login).await {
                        Ok(connection) => return Ok(connection),
                        Err(error) => no_primary = Some(error),
                    }
                    tried.push(named);
                }
                Err(error) => no_answer = Some(error),
            }
        }
        // Of a primary that is down more is to be told than of a sentinel that is too.
        Err(no_primary.or(no_answer).unwrap_or_else(|| Error::unavailable("there is no sentinel")))
    }

    /// Host and port of the primary.
    async fn ask(&self, sentinel: &ConnectionInfo) -> Result<(String, u16), Error> {
        let told = tokio::time::timeout(ONE, async {
            let mut connection = to(sentinel.clone()).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
            connection.send_packed_command(&command).await.map_err(failed)
        });
        match told.await {
            Ok(Ok(Value::Array(told))) => match &told[..] {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let port = text(port).parse().map_err(|_| self.unknown("names no port"))?;
                    Ok((text(host), port))
                }
                _ => Err(self.unknown("names no address")),
            },
            Ok(Ok(Value::Nil)) => Err(self.unknown("knows no primary of this name")),
            Ok(Ok(Value::ServerError(error))) => Err(failed(error.into())),
            Ok(Ok(_)) => Err(self.unknown("answers what no sentinel does: is it one")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(self.unknown("does not answer")),
        }
    }

    fn unknown(&self, why: &str) -> Error {
        Error::unavailable(format!("asked for \"{}\", a sentinel {why}", self.name))
    }

    async fn primary(
        &self,
        (host, port): &(String, u16),
        login: &Login,
    ) -> Result<MultiplexedConnection, Error> {
        let (host, port) = (host.clone(), *port);
        let at = format!("{host}:{port}");
        let info = login.apply(like(&self.like, host, port)).await?;
        let role = tokio::time::timeout(ONE, async {
            let mut connection = to(info).await?;
            let role = connection.send_packed_command(&redis::cmd("ROLE")).await.map_err(failed)?;
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

/// Whoever may not ask finds out by its first READONLY.
fn may_be_primary(role: &Value) -> bool {
    match role {
        Value::Array(role) => matches!(role.first(), Some(Value::BulkString(name)) if name == b"master"),
        Value::ServerError(error) => error.code() == "NOPERM",
        _ => false,
    }
}
