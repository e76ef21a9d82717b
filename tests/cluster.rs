//! Rate limiting on a Redis Cluster.

mod failover;
mod groups;
mod keys;
mod lost_primary;
mod nodes;
mod refusals;
#[cfg(feature = "regions")]
mod regions;
mod resharding;

use std::time::Duration;

use tidegate::{Builder, Limiter};
use tidegate_testkit::{Cluster, Server};

use crate::support::fixture::{PATIENCE, namespace};

fn builder(cluster: &Cluster) -> Builder {
    let builder = Limiter::builder()
        .stderr_warnings(false)
        .cluster(cluster.urls())
        .namespace(&namespace())
        .deadline(PATIENCE);
    builder.on_failure(tidegate::OnFailure::Error)
}

/// Runs redis-cli on the node that owns the key, and returns its reply.
fn on_owner(cluster: &Cluster, command: &[&str]) -> String {
    let reply = cluster.cli(&[&["-c"], command].concat()).unwrap();
    reply.lines().last().unwrap_or_default().to_owned()
}

/// Parses the number that redis-cli prints.
fn number(reply: &str) -> u64 {
    reply.trim_start_matches("(integer) ").parse().unwrap_or_else(|_| panic!("{reply}"))
}

/// Returns the primary that owns the slot of a key.
fn owner<'a>(cluster: &'a Cluster, redis_key: &str) -> &'a Server {
    let is_owner = |node: &&Server| {
        let is_primary = node.cli(&["ROLE"]).unwrap().contains("\"master\"");
        is_primary && !node.cli(&["EXISTS", redis_key]).unwrap().contains("MOVED")
    };
    cluster.nodes().find(is_owner).unwrap()
}

const MINUTE: Duration = Duration::from_secs(60);
