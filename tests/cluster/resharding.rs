//! Slots that move while their keys are checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{Ban, Gate, Quota};
use tidegate_testkit::{Cluster, Server};
use tokio::task::JoinSet;

use super::{MINUTE, builder, number, owner};
use crate::support::acl::{self, PASSWORD, USER};
use crate::support::acquired::AcquiredParts;

const KEYS: usize = 480;
const TASKS: usize = 64;

fn id(node: &Server) -> String {
    node.cli(&["CLUSTER", "MYID"]).unwrap().trim_matches('"').to_owned()
}

/// Starts to move the slot of a key. Returns the slot and the id of the target node.
fn begin_to_move(redis_key: &str, from: &Server, to: &Server) -> (String, String) {
    let slot = number(&from.cli(&["CLUSTER", "KEYSLOT", redis_key]).unwrap()).to_string();
    let (from_id, to_id) = (id(from), id(to));
    assert_eq!(to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).unwrap(), "OK");
    assert_eq!(from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).unwrap(), "OK");
    (slot, to_id)
}

fn key(n: usize) -> String {
    format!("user:{n}")
}

/// Moves the first 1,100 slots of the first node to a node that had none. These include the slots of three
/// hash tags.
pub fn reshard(cluster: &Cluster, to: usize) {
    let nodes: Vec<&Server> = cluster.nodes().collect();
    let address = nodes[0].url().trim_start_matches("redis://");
    let (from, to) = (id(nodes[0]), id(nodes[to]));
    #[rustfmt::skip]
    let output = cluster.cli(&[
        "--cluster", "reshard", address, "--cluster-from", &from, "--cluster-to", &to,
        "--cluster-slots", "1100", "--cluster-pipeline", "1", "--cluster-yes",
    ]).unwrap();
    assert!(!output.contains("ERR"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slots_under_load_neither_loses_nor_duplicates_units() {
    let mut cluster = Cluster::start().unwrap();
    let new = cluster.add_node().unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = builder(&cluster).build().unwrap();
    let alone = limiter.gate("alone", Quota::fixed_window(1_000_000, 60 * MINUTE));
    let pair = [
        limiter.gate("log", Quota::sliding_log(100_000, 60 * MINUTE)),
        limiter.gate("bucket", Quota::fixed_window(1_000_000, 60 * MINUTE)),
    ];
    let admitted: Arc<Vec<[AtomicU64; 2]>> = Arc::new((0..KEYS).map(|_| Default::default()).collect());
    let (is_over, split) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (alone, pair, limiter) = (alone.clone(), pair.clone(), limiter.clone());
        let (admitted, is_over, split) = (admitted.clone(), is_over.clone(), split.clone());
        tasks.spawn(async move {
            let mut n = task;
            while !is_over.load(Ordering::Relaxed) {
                n = (n + 7) % KEYS;
                assert!(alone.check(key(n)).await.unwrap().is_allowed());
                admitted[n][0].fetch_add(1, Ordering::Relaxed);
                match limiter.check_all(pair.iter().map(|gate| gate.key(key(n)))).await {
                    Ok(decision) => {
                        assert!(decision.is_allowed());
                        admitted[n][1].fetch_add(1, Ordering::Relaxed);
                    }
                    // While the slot moves, a node may own only one of the two keys.
                    Err(error) => {
                        assert!(error.is_unavailable() && error.to_string().contains("TRYAGAIN"), "{error}");
                        split.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
    }
    let (cluster, tasks) = tokio::task::spawn_blocking(move || {
        reshard(&cluster, new);
        is_over.store(true, Ordering::Relaxed);
        (cluster, tasks)
    })
    .await
    .unwrap();
    tasks.join_all().await;
    let keys_on_new_node = number(&cluster.nodes().nth(new).unwrap().cli(&["DBSIZE"]).unwrap());
    assert!(keys_on_new_node > 60, "{keys_on_new_node} keys have moved");
    let mut units = 0;
    for n in 0..KEYS {
        for (gate, of) in [(&alone, 0), (&pair[0], 1), (&pair[1], 1)] {
            let peek = gate.peek(key(n)).await.unwrap();
            let admitted = admitted[n][of].load(Ordering::Relaxed);
            assert_eq!(peek.limit() - peek.remaining(), admitted, "{gate:?} {n}");
            units += admitted;
        }
    }
    eprintln!("{units} units while slots moved, {} groups rejected", split.load(Ordering::Relaxed));
}

/// Halfway through a move, some keys of the slot are on the target node, some are still on the source node,
/// and new keys are on neither.
#[tokio::test]
async fn keys_of_a_moving_slot_are_served_and_groups_fail_until_it_has_moved() {
    let mut cluster = Cluster::start().unwrap();
    let new = cluster.add_node().unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = builder(&cluster).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(5, 60 * MINUTE));
    let other = limiter.gate("other", Quota::fixed_window(5, 60 * MINUTE));
    // All keys share one slot.
    let redis_key = gate.redis_key("user:1").unwrap();
    let tag = |key: &str| gate.redis_key(key).unwrap()[..redis_key.find('}').unwrap()].to_owned();
    let mut same = (1..).map(key).filter(|key| tag(key) == tag("user:1"));
    let (stays, moves, fresh): (Vec<_>, Vec<_>, Vec<_>) =
        (same.by_ref().take(3).collect(), same.by_ref().take(3).collect(), same.take(3).collect());
    for key in stays.iter().chain(&moves) {
        assert_eq!(gate.check(key).await.unwrap().remaining(), 4);
    }

    let (from, to) = (owner(&cluster, &redis_key), cluster.nodes().nth(new).unwrap());
    let (slot, to_id) = begin_to_move(&redis_key, from, to);
    let migrate = |key: &str| {
        let address = to.url().trim_start_matches("redis://").split_once(':').unwrap();
        let moved = from.cli(&["MIGRATE", address.0, address.1, key, "0", "5000"]).unwrap();
        assert_eq!(moved, "OK");
    };
    moves.iter().for_each(|key| migrate(&gate.redis_key(key).unwrap()));

    // First alone, then in one call whose keys are partly on the node.
    for left in [3, 2] {
        for key in stays.iter().chain(&moves) {
            assert_eq!(gate.check(key).await.unwrap().remaining(), left, "{key}");
        }
    }
    let all: Vec<&String> = stays.iter().chain(&moves).chain(&fresh).collect();
    let left: Vec<u64> =
        gate.check_many(&all).await.into_iter().map(|decision| decision.unwrap().remaining()).collect();
    assert_eq!(left, [1, 1, 1, 1, 1, 1, 4, 4, 4]);
    // A refund finds its key as well, although no node has loaded its script yet.
    gate.refund(&moves[0], 1).await.unwrap();
    assert_eq!(gate.peek(&moves[0]).await.unwrap().remaining(), 2);

    let pair = |key: &str| limiter.check_all([gate.key(key), other.key(key)]);
    for key in [&stays[0], &moves[0], "user:new"] {
        let check = |gate: &Gate| gate.key(key).colocate_with("user:1").deadline(Duration::from_millis(300));
        let error = limiter.check_all([check(&gate), check(&other)]).await.unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains("TRYAGAIN"), "{key}: {error}");
    }
    for key in &stays {
        migrate(&gate.redis_key(key).unwrap());
    }
    for node in [to, from] {
        assert_eq!(node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).unwrap(), "OK");
    }
    assert!(pair(&stays[0]).await.unwrap().is_allowed());
    assert_eq!(gate.peek(&stays[0]).await.unwrap().remaining(), 0);
}

/// The state and the count of a key are two keys, of which one may not exist or may have moved.
#[tokio::test]
async fn gate_with_a_ban_decides_while_a_slot_moves_and_counts_afterwards() {
    let mut cluster = Cluster::start().unwrap();
    let new = cluster.add_node().unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = builder(&cluster).build().unwrap();
    let ban = Ban::after(3, 10 * MINUTE).lasting(60 * MINUTE);
    let gate = limiter.gate("gate", Quota::fixed_window(1, 30 * MINUTE)).ban(ban);
    let redis_key = gate.redis_key("user:1").unwrap();
    let tag = |key: &str| gate.redis_key(key).unwrap()[..redis_key.find('}').unwrap()].to_owned();
    let mut same = (2..).map(key).filter(|key| tag(key) == tag("user:1"));
    let (other, fresh) = (same.next().unwrap(), same.next().unwrap());
    for key in ["user:1", &other] {
        assert!(gate.check(key).await.unwrap().is_allowed());
    }
    let (from, to) = (owner(&cluster, &redis_key), cluster.nodes().nth(new).unwrap());
    let (slot, to_id) = begin_to_move(&redis_key, from, to);
    for _ in 0..5 {
        let denied = gate.check("user:1").await.unwrap();
        assert!(!denied.is_allowed() && denied.retry_after() <= 30 * MINUTE, "{denied:?}");
        assert!(!gate.peek("user:1").await.unwrap().is_allowed());
        let many = gate.check_many(["user:1", &other]).await;
        assert!(many.iter().all(|check| !check.as_ref().unwrap().is_allowed()));
    }
    assert!(gate.check(&fresh).await.unwrap().is_allowed());
    let count_key = redis_key.replace(":gate:", ":gate:denials/");
    for node in [from, to] {
        assert_eq!(
            node.cli(&["EVAL", "return #redis.call('KEYS', '*denials*')", "0"]).unwrap(),
            "(integer) 0"
        );
    }
    let address = to.url().trim_start_matches("redis://").split_once(':').unwrap();
    for key in ["user:1", &other] {
        let redis_key = gate.redis_key(key).unwrap();
        assert_eq!(from.cli(&["MIGRATE", address.0, address.1, &redis_key, "0", "5000"]).unwrap(), "OK");
        assert!(!gate.check(key).await.unwrap().is_allowed());
    }
    for node in [to, from] {
        assert_eq!(node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).unwrap(), "OK");
    }
    for denial in 1..=3 {
        let denied = gate.check("user:1").await.unwrap();
        assert_eq!(denied.retry_after() > 30 * MINUTE, denial == 3, "denial {denial}: {denied:?}");
    }
    assert_eq!(to.cli(&["EXISTS", &count_key]).unwrap(), "(integer) 0");
}

/// A slot of which keys are moved one by one.
struct Move<'a> {
    from: &'a Server,
    to: &'a Server,
    slot: String,
    to_id: String,
}

impl<'a> Move<'a> {
    fn begin(cluster: &'a Cluster, to: usize, redis_key: &str) -> Self {
        let (from, to) = (owner(cluster, redis_key), cluster.nodes().nth(to).unwrap());
        let (slot, to_id) = begin_to_move(redis_key, from, to);
        Self { from, to, slot, to_id }
    }

    fn key(&self, redis_key: &str) {
        let address = self.to.url().trim_start_matches("redis://").split_once(':').unwrap();
        let moved = self.from.cli(&["MIGRATE", address.0, address.1, redis_key, "0", "5000"]).unwrap();
        assert_eq!(moved, "OK", "{redis_key}");
    }

    /// Moves the keys that are left.
    fn end(&self) {
        let keys = self.from.cli(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"]).unwrap();
        keys.lines().filter_map(|line| line.split('"').nth(1)).for_each(|key| self.key(key));
        for node in [self.to, self.from] {
            assert_eq!(node.cli(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.to_id]).unwrap(), "OK");
        }
    }
}

/// Returns further keys that share the slot of `user:1`.
fn keys_of_one_slot(gate: &Gate) -> impl Iterator<Item = String> {
    let redis_key = gate.redis_key("user:1").unwrap();
    let tag = redis_key[..redis_key.find('}').unwrap()].to_owned();
    let gate = gate.clone();
    (2..).map(key).filter(move |key| gate.redis_key(key).unwrap().starts_with(&tag))
}

/// The state and the holds of a key are two keys, of which one may not exist or may have moved.
#[tokio::test]
async fn gate_with_holds_is_checked_while_a_slot_moves() {
    let mut cluster = Cluster::start().unwrap();
    let new = cluster.add_node().unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = builder(&cluster).build().unwrap();
    // MIGRATE can shift the expiry of a key, which is the end of a fixed window, by a millisecond.
    let gate = limiter.gate("gate", Quota::sliding_log(9, 60 * MINUTE)).holds();
    let fresh = keys_of_one_slot(&gate).next().unwrap();
    let reserved = limiter.reserve([gate.key("user:1").cost(4)]).await.unwrap();
    let moving = Move::begin(&cluster, new, &gate.redis_key("user:1").unwrap());
    // First both keys of `user:1` stay, then they are on two nodes.
    for moves in [false, true] {
        if moves {
            moving.key(&gate.redis_key("user:1").unwrap());
        }
        assert!(gate.check("user:1").await.unwrap().is_allowed());
        assert!(gate.check(&fresh).await.unwrap().is_allowed());
        assert!(gate.peek("user:1").await.unwrap().is_allowed());
        let many = gate.check_many(["user:1", &fresh]).await;
        assert!(many.iter().all(|check| check.as_ref().unwrap().is_allowed()));
    }
    moving.end();
    assert_eq!(gate.peek("user:1").await.unwrap().remaining(), 1);
    limiter.cancel(reserved.token().unwrap()).await.unwrap();
    assert_eq!(gate.peek("user:1").await.unwrap().remaining(), 5);
    assert_eq!(gate.peek(&fresh).await.unwrap().remaining(), 5);
}

/// An in-flight limit needs the key of the leases too.
#[tokio::test]
async fn permits_wait_for_a_moving_slot_and_peeks_do_not() {
    let mut cluster = Cluster::start().unwrap();
    let new = cluster.add_node().unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = builder(&cluster).build().unwrap();
    let gate = limiter.gate("gate", Quota::in_flight(5));
    let kept = gate.acquire("user:1").cost(2).await.unwrap().permit().unwrap();
    let released = gate.acquire("user:1").await.unwrap().permit().unwrap();
    let moving = Move::begin(&cluster, new, &gate.redis_key("user:1").unwrap());
    moving.key(&gate.redis_key("user:1").unwrap());
    assert_eq!(gate.peek("user:1").await.unwrap().remaining(), 2);
    let short = gate.acquire("user:1").deadline(Duration::from_millis(100)).await.unwrap_err();
    assert!(short.is_unavailable(), "{short}");

    let (acquired, (), release) = tokio::join!(
        async { gate.acquire("user:1").cost(2).await },
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            moving.end();
        },
        released.release(),
    );
    release.unwrap();
    let acquired = acquired.unwrap().permit().unwrap();
    assert_eq!(gate.peek("user:1").await.unwrap().remaining(), 1);
    assert!(kept.is_held() && acquired.is_held());
}

#[tokio::test]
async fn group_waits_for_a_moving_slot_until_its_deadline() {
    let mut cluster = Cluster::start().unwrap();
    let new = cluster.add_node().unwrap();
    cluster.prevent_failover().unwrap();
    let limiter = builder(&cluster).build().unwrap();
    let gates = ["one", "two"].map(|name| limiter.gate(name, Quota::fixed_window(5, 60 * MINUTE)));
    let both = || limiter.check_all(gates.iter().map(|gate| gate.key("user:1")));
    assert!(both().await.unwrap().is_allowed());
    let moving = Move::begin(&cluster, new, &gates[0].redis_key("user:1").unwrap());
    moving.key(&gates[0].redis_key("user:1").unwrap());
    let (checked, ()) = tokio::join!(both(), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        moving.end();
    });
    assert!(checked.unwrap().is_allowed());
    assert_eq!(gates[1].peek("user:1").await.unwrap().remaining(), 3);
}

#[tokio::test]
async fn moving_slot_needs_the_asking_permission_which_the_error_names() {
    let cluster = Cluster::start().unwrap();
    cluster.prevent_failover().unwrap();
    cluster.nodes().for_each(acl::create_user);
    let builder = builder(&cluster).namespace("tidegate").credentials(USER, PASSWORD);
    let gate = builder.build().unwrap().gate("gate", Quota::fixed_window(5, 60 * MINUTE));
    let redis_key = gate.redis_key("key").unwrap();
    let from = owner(&cluster, &redis_key);
    let to = cluster.nodes().take(3).find(|node| node.url() != from.url()).unwrap();
    begin_to_move(&redis_key, from, to);
    let error = gate.check("key").await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("`+asking`"), "{error}");
    cluster
        .nodes()
        .for_each(|node| assert_eq!(node.cli(&["ACL", "SETUSER", USER, "+asking"]).unwrap(), "OK"));
    assert_eq!(gate.check("key").await.unwrap().remaining(), 4);
}
