//! A cluster in which tests kill primaries and move slots.

use redis::Connection;
use tidegate_testkit::Cluster;

use super::ground::{connect, wait_until};

pub struct Nodes {
    pub cluster: Cluster,
}

/// The URL of a primary and a connection to it.
type Primary = (String, Connection);

/// The key that the hot gates check. The hash tag depends only on the key, so it is the same for all gates.
const HOT: &str = "0";

impl Nodes {
    /// Starts three primaries with one replica each. No primary fails over before
    /// [`kill_owner`](Self::kill_owner).
    pub fn start() -> Self {
        let cluster = Cluster::start().unwrap();
        cluster.prevent_failover().unwrap();
        Self { cluster }
    }

    /// Starts three primaries without replicas. No node ever considers another one failed.
    pub fn of_primaries() -> Self {
        Self { cluster: Cluster::with_shiftable_clock().unwrap() }
    }

    /// Returns the primaries that serve a key, and the others.
    fn primaries(&self, redis_key: &str) -> (Vec<Primary>, Vec<Primary>) {
        let nodes = self.cluster.urls().into_iter().map(|url| (url.clone(), connect(&url)));
        let primaries = nodes.filter_map(|(url, mut node)| is_primary(&mut node).then_some((url, node)));
        primaries
            .partition(|(url, _)| redis::cmd("EXISTS").arg(redis_key).query::<i64>(&mut connect(url)).is_ok())
    }

    /// Waits until a primary serves the hot keys. Returns it and another primary.
    fn owner(&self) -> (Primary, Primary) {
        let mut found = None;
        wait_until("the hot keys are served", || {
            let (mut owners, mut others) = self.primaries(&hot_key());
            found = owners.pop().zip(others.pop());
            found.is_some()
        });
        found.unwrap()
    }

    /// Kills the primary of the hot keys, and waits until its replica serves them.
    pub fn kill_owner(&mut self) {
        let ((owner, _), _) = self.owner();
        self.cluster.allow_failover().unwrap();
        self.cluster.kill(&owner);
        self.owner();
    }

    /// Moves the slot of the hot keys to another primary.
    pub fn move_hot_slot(&self) {
        let ((_, mut from), (to_url, mut to)) = self.owner();
        let (from, to) = (&mut from, &mut to);
        let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(hot_key()).query(from).unwrap();
        let id = |node: &mut Connection| -> String { redis::cmd("CLUSTER").arg("MYID").query(node).unwrap() };
        let ids = [id(from), id(to)];
        let set_slot = |node: &mut Connection, state: &str, id: &str| {
            redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(state).arg(id).exec(node).unwrap();
        };
        set_slot(to, "IMPORTING", &ids[0]);
        set_slot(from, "MIGRATING", &ids[1]);
        let (host, port) = to_url.trim_start_matches("redis://").split_once(':').unwrap();
        loop {
            let keys: Vec<String> =
                redis::cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(20).query(from).unwrap();
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg(host).arg(port).arg("").arg(0).arg(5_000).arg("KEYS").arg(keys);
            migrate.exec(from).unwrap();
        }
        set_slot(to, "NODE", &ids[1]);
        set_slot(from, "NODE", &ids[1]);
        // Race: a node that takes a slot before it has received the last config epoch may choose the same
        // epoch. So this waits until all nodes have received it.
        let epoch = epoch_of(to, &ids[1]);
        wait_until("all nodes have the new config epoch", || {
            self.cluster.urls().iter().all(|url| epoch_of(&mut connect(url), &ids[1]) == epoch)
        });
    }
}

/// Returns the config epoch that `node` reports for the node with this id.
fn epoch_of(node: &mut Connection, id: &str) -> Option<String> {
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(node).unwrap();
    let entry = nodes.lines().find(|entry| entry.starts_with(id))?;
    entry.split(' ').nth(6).map(str::to_owned)
}

fn is_primary(node: &mut Connection) -> bool {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(node).unwrap();
    role[0] == redis::Value::BulkString(b"master".to_vec())
}

/// Returns a Redis key in the slot of the hot keys.
fn hot_key() -> String {
    let url = "redis://127.0.0.1:1";
    let limiter = tidegate::Limiter::builder().cluster([url]).build().unwrap();
    limiter
        .gate("any", tidegate::Quota::fixed_window(1, crate::support::fixture::HOUR))
        .redis_key(HOT)
        .unwrap()
}
