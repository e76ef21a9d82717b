//! A Redis Cluster: redis-rs's cluster connection, and what it is told of slots
//! that move.
//!
//! Its own retries are off, since it would send a give-back again whose answer
//! was lost. A refusal (`MOVED`, `ASK`) says that nothing was done, so what was
//! refused is sent again from here.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, ConnectionInfo, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use self::importing::Importing;
use super::from::failed;
use super::login::Login;
use crate::error::Error;

mod importing;

/// How long one node may take to be connected to. redis-rs serves no node while
/// it waits for one.
const CONNECT: Duration = Duration::from_secs(1);

/// Before what was refused is sent again. A node that has just failed is named by
/// the others until another is promoted.
const PAUSES: [Duration; 7] = [ms(0), ms(5), ms(10), ms(20), ms(40), ms(80), ms(160)];

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How to connect to a cluster.
#[derive(Clone)]
pub(crate) struct ClusterClient {
    nodes: Vec<ConnectionInfo>,
    /// The limiter's.
    deadline: Duration,
}

impl ClusterClient {
    /// Fails where the nodes do not go together.
    pub(crate) fn new(nodes: Vec<ConnectionInfo>, deadline: Duration) -> RedisResult<Self> {
        let client = Self { nodes, deadline };
        client.open(client.nodes.clone()).map(|_| client)
    }

    fn open(&self, nodes: Vec<ConnectionInfo>) -> RedisResult<redis::cluster::ClusterClient> {
        if nodes.is_empty() {
            return Err(RedisError::from((ErrorKind::InvalidClientConfig, "no node is given")));
        }
        ClusterClientBuilder::new(nodes)
            .retries(0)
            .connection_timeout(CONNECT)
            // For what it asks by itself; a call ends with its deadline.
            .response_timeout(self.deadline.saturating_mul(2).clamp(CONNECT, Duration::from_secs(86_400)))
            .build()
    }

    pub(super) async fn connect(&self, login: &Login) -> Result<Cluster, Error> {
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            nodes.push(login.apply(node.clone()).await?);
        }
        let Some(node) = nodes.first().cloned() else { return Err(Error::config("no node is given")) };
        let client = self.open(nodes).map_err(failed)?;
        let connection = client.get_async_connection().await.map_err(failed)?;
        // How to connect to any of its nodes, but for the address.
        Ok(Cluster { connection, importing: Arc::new(Importing::new(node)) })
    }
}

#[derive(Clone)]
pub(super) struct Cluster {
    connection: ClusterConnection,
    importing: Arc<Importing>,
}

impl Cluster {
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut pauses = PAUSES.into_iter();
        loop {
            let reply = self.connection.req_packed_command(command).await;
            let mut refused = match reply.and_then(Value::extract_error) {
                Err(error) if is_elsewhere(&error) => error,
                reply => return reply,
            };
            if refused.kind() == ErrorKind::Server(ServerErrorKind::Ask) {
                match self.importing.send(&refused, command).await {
                    Err(error) if is_elsewhere(&error) => refused = error,
                    reply => return reply,
                }
            }
            // The connection has looked up the slots anew before it sends again.
            let Some(pause) = pauses.next() else { return Err(refused) };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// Whether another node is to be asked.
fn is_elsewhere(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask))
}
