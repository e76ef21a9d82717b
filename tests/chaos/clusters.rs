//! A cluster whose nodes are told what to do.

use harness::Cluster;
use redis::Connection;

use super::ground::{connect, wait_until};

pub struct Nodes {
    pub cluster: Cluster,
}

/// Its URL and a connection to it.
type Primary = (String, Connection);

/// Of all gates: a key's place is chosen by what is asked for, and it is asked for under this.
const HOT: &str = "0";

impl Nodes {
    /// Three primaries, with a replica each.
    pub fn start() -> Self {
        Self { cluster: Cluster::start().unwrap() }
    }

    /// Three primaries, of which none is ever taken for gone.
    pub fn of_primaries() -> Self {
        Self { cluster: Cluster::with_shiftable_clock().unwrap() }
    }

    /// By whether they serve a key.
    fn primaries(&self, redis_key: &str) -> (Vec<Primary>, Vec<Primary>) {
        let nodes = self.cluster.urls().into_iter().map(|url| (url.clone(), connect(&url)));
        let primaries = nodes.filter_map(|(url, mut node)| is_primary(&mut node).then_some((url, node)));
        primaries
            .partition(|(url, _)| redis::cmd("EXISTS").arg(redis_key).query::<i64>(&mut connect(url)).is_ok())
    }

    /// The primary that has the hot keys, once it serves them, and another.
    fn owner(&self) -> (Primary, Primary) {
        let mut found = None;
        wait_until("the hot keys are served", || {
            let (mut owners, mut others) = self.primaries(&hot_key());
            found = owners.pop().zip(others.pop());
            found.is_some()
        });
        found.unwrap()
    }

    /// Kills the primary that has the hot keys, and waits until another is promoted.
    pub fn kill_owner(&mut self) {
        let ((owner, _), _) = self.owner();
        self.cluster.kill(&owner);
        self.owner();
    }

    /// The slot of the hot keys goes to the next primary.
    pub fn move_hot_slot(&self) {
        let ((_, mut from), (to_url, mut to)) = self.owner();
        let (from, to) = (&mut from, &mut to);
        let slot: u16 = redis::cmd("CLUSTER").arg("KEYSLOT").arg(hot_key()).query(from).unwrap();
        let id = |node: &mut Connection| -> String { redis::cmd("CLUSTER").arg("MYID").query(node).unwrap() };
        let ids = [id(from), id(to)];
        let set = |node: &mut Connection, what: &str, id: &str| {
            redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(what).arg(id).exec(node).unwrap();
        };
        set(to, "IMPORTING", &ids[0]);
        set(from, "MIGRATING", &ids[1]);
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
        set(to, "NODE", &ids[1]);
        set(from, "NODE", &ids[1]);
        // Whoever takes a slot before it knows who took one last may number itself alike.
        let epoch = epoch_of(to, &ids[1]);
        wait_until("all know of it", || {
            self.cluster.urls().iter().all(|url| epoch_of(&mut connect(url), &ids[1]) == epoch)
        });
    }
}

/// How a node numbers the last change of another, or of itself.
fn epoch_of(node: &mut Connection, id: &str) -> Option<String> {
    let nodes: String = redis::cmd("CLUSTER").arg("NODES").query(node).unwrap();
    let line = nodes.lines().find(|line| line.starts_with(id))?;
    line.split(' ').nth(6).map(str::to_owned)
}

fn is_primary(node: &mut Connection) -> bool {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(node).unwrap();
    role[0] == redis::Value::BulkString(b"master".to_vec())
}

/// One of the keys.
fn hot_key() -> String {
    let url = "redis://127.0.0.1:1";
    let limiter = tidegate::Limiter::builder().cluster([url]).build().unwrap();
    limiter
        .gate("any", tidegate::Quota::fixed_window(1, crate::support::fixture::HOUR))
        .redis_key(HOT)
        .unwrap()
}
