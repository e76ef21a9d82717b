//! Connections to nodes that slots are moving to, for what they are asked before
//! a slot is theirs.
//!
//! redis-rs does not know a node that has no slot yet, and sends `ASKING` and the
//! command apart, so that another's command can come between and take its effect.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult,
    Value,
};
use tokio::sync::Mutex;

use super::CONNECT;

pub(super) struct Importing {
    /// How to connect to a node, but for the address.
    node: ConnectionInfo,
    connections: Mutex<HashMap<String, MultiplexedConnection>>,
}

impl Importing {
    pub(super) fn new(node: ConnectionInfo) -> Self {
        Self { node, connections: Mutex::default() }
    }

    /// Sends a command where its refusal says.
    pub(super) async fn send(&self, refusal: &RedisError, command: &Cmd) -> RedisResult<Value> {
        let address = refusal.redirect_node().map(|(address, _)| address).unwrap_or_default();
        let mut connection = self.connection(address).await?;
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command.clone());
        let replies = connection.send_packed_commands(&pipeline, 1, 1).await;
        let reply = replies.and_then(|mut replies| replies.pop().unwrap_or(Value::Nil).extract_error());
        if reply.as_ref().is_err_and(|error| error.is_io_error() || error.is_unrecoverable_error()) {
            self.connections.lock().await.remove(address);
        }
        reply
    }

    async fn connection(&self, address: &str) -> RedisResult<MultiplexedConnection> {
        // Held while connecting: whoever comes meanwhile needs the same one.
        let mut connections = self.connections.lock().await;
        if let Some(connection) = connections.get(address) {
            return Ok(connection.clone());
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
        let client = Client::open(self.node.clone().set_addr(self.addr(address)?))?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        connections.insert(address.to_owned(), connection.clone());
        Ok(connection)
    }

    fn addr(&self, address: &str) -> RedisResult<ConnectionAddr> {
        let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = parts.filter(|(host, _)| !host.is_empty()) else {
            let text = "a slot moves to a node without an address";
            return Err(RedisError::from((ErrorKind::UnexpectedReturnType, text)));
        };
        let host = host.to_owned();
        Ok(match self.node.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        })
    }
}
