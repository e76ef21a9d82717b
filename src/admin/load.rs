//! Reads the load of each server.

use super::Inspector;
use super::redis_load::RedisLoad;
use super::scan::{self, ScanNode};
use crate::error::Error;

/// # Load
impl Inspector {
    /// Returns the load of the server, or of each node of a cluster that stores keys. Needs the permission `+info`.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer, or if its user lacks the permission: the message names it.
    pub async fn redis_load(&self) -> Result<Vec<RedisLoad>, Error> {
        let nodes = scan::nodes(&self.0, self.0.pipeline.keyspace().hash_tags()).await?;
        let mut loads = Vec::with_capacity(nodes.len());
        for ScanNode { hash_tag, address: (host, port), .. } in nodes {
            let info = self.0.connection()?.info_of_load(self.0.call_target(hash_tag)).await?;
            let node = if host.is_empty() { String::new() } else { format!("{host}:{port}") };
            loads.push(RedisLoad::of_info(node, &info));
        }
        Ok(loads)
    }
}
