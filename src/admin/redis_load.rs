//! The load of a Redis, by its own report.

use std::time::Duration;

use super::Inspector;
use super::scan::{self, ScanNode};
use crate::error::Error;
use crate::observe::health::Server;

/// The load of one server, by INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisLoad {
    /// Host and port of a cluster's node. Empty for a single server.
    pub node: String,
    /// Name and version, such as `Redis 7.0.15`.
    pub version: String,
    /// Commands in the last second, of all clients.
    pub commands_per_second: u64,
    /// The memory of the data and the buffers.
    pub used_memory_bytes: u64,
    /// `maxmemory`; `None` without a limit.
    pub max_memory_bytes: Option<u64>,
    /// Connected clients.
    pub clients: u64,
    /// The processor time since the server's start. The difference of two reports is the load between them.
    pub cpu: Duration,
    /// The time since the server's start, in whole seconds.
    pub uptime: Duration,
}

impl RedisLoad {
    pub(super) fn of_info(node: String, info: &str) -> Self {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = |name: &str| field(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let seconds = |name: &str| {
            let seconds = field(name).and_then(|text| text.trim().parse::<f64>().ok()).unwrap_or(0.0);
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        };
        Self {
            node,
            version: Server::of_info(info).version,
            commands_per_second: number("instantaneous_ops_per_sec"),
            used_memory_bytes: number("used_memory"),
            max_memory_bytes: Some(number("maxmemory")).filter(|bytes| *bytes > 0),
            clients: number("connected_clients"),
            cpu: seconds("used_cpu_sys").saturating_add(seconds("used_cpu_user")),
            uptime: Duration::from_secs(number("uptime_in_seconds")),
        }
    }
}

// Reads the load of each server.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_parsed_and_missing_or_odd_fields_are_zero() {
        let info = "# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:61\r\n\r\n# Memory\r\nused_memory:1048576\r\n\
                    used_memory_human:1.00M\r\nmaxmemory:0\r\nconnected_clients:3\r\ninstantaneous_ops_per_sec:42\r\n\
                    used_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n";
        let load = RedisLoad::of_info(String::new(), info);
        assert_eq!((&*load.version, load.commands_per_second, load.clients), ("Redis 7.0.15", 42, 3));
        assert_eq!((load.used_memory_bytes, load.max_memory_bytes), (1 << 20, None));
        assert_eq!((load.cpu, load.uptime), (Duration::from_millis(3_750), Duration::from_secs(61)));

        let odd = RedisLoad::of_info("h:1".to_owned(), "maxmemory:7\nused_cpu_sys:-1\nused_cpu_user:1e300\n");
        assert_eq!((odd.max_memory_bytes, odd.cpu, odd.clients), (Some(7), Duration::ZERO, 0));
    }
}
