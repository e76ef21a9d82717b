//! What a connection is made of: one to a single Redis, or one to each node of a
//! cluster.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;

#[derive(Clone)]
pub(super) enum Link {
    One(MultiplexedConnection),
    #[cfg(feature = "cluster")]
    Cluster(Cluster),
}

impl Link {
    pub(super) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::One(connection) => connection.send_packed_command(command).await,
            #[cfg(feature = "cluster")]
            // Boxed, so that no caller's future is larger for it.
            Self::Cluster(cluster) => Box::pin(cluster.send(command)).await,
        }
    }

    /// Whether a part of it that was lost comes back by itself.
    pub(super) const fn mends_itself(&self) -> bool {
        match self {
            Self::One(_) => false,
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
        }
    }
}
