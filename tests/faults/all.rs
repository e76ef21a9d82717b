//! The faults: caused in a real Redis if possible, else simulated by other bytes on the wire.

use std::time::Duration;

use tidegate::Quota;
use tidegate::quota::Calendar;
use tidegate_testkit::Fault as Net;

use super::scene::Scene;
use crate::support::wire::Answer;

pub struct Fault {
    pub name: &'static str,
    pub scene: fn() -> Scene,
    pub make: fn(&mut Scene),
    pub repair: fn(&mut Scene),
    /// Whether the limiter is connected when the fault begins. Otherwise it cannot connect.
    pub is_connected: bool,
}

/// Long, because these tests wait only for replies.
const LONG: Duration = Duration::from_secs(5);
/// For faults in which the server never replies. Long enough that the wire counts a call before this deadline,
/// also on a busy machine.
const SHORT: Duration = Duration::from_millis(400);

const fn fault(name: &'static str, make: fn(&mut Scene), repair: fn(&mut Scene)) -> Fault {
    Fault { name, scene: plain, make, repair, is_connected: true }
}

const fn reply(name: &'static str, make: fn(&mut Scene)) -> Fault {
    fault(name, make, repair_wire)
}

fn plain() -> Scene {
    Scene::new(&[], LONG)
}

fn silent() -> Scene {
    Scene::new(&[], SHORT)
}

fn repair_wire(scene: &mut Scene) {
    scene.wire.answer(Answer::OfServer);
}

fn repair_network(scene: &mut Scene) {
    scene.network.set(Net::None);
}

fn reply_with(scene: &mut Scene, bytes: &[u8]) {
    scene.wire.answer(Answer::Say(bytes.to_vec()));
}

#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    fault("OOM", memory_full, memory_free),
    fault("READONLY", demoted, promoted),
    Fault { scene: without_stale_reads, ..fault("MASTERDOWN", demoted, promoted) },
    Fault { scene: slow_to_load, ..fault("LOADING", loading, loaded) },
    Fault { scene: low_busy_threshold, ..fault("BUSY", busy, script_killed) },
    fault("NOREPLICAS", no_replicas, no_replicas_needed),
    fault("NOPERM", without_permission, with_permission),
    Fault { is_connected: false, ..fault("WRONGPASS", wrong_password, correct_password) },
    reply("NOAUTH", |scene| reply_with(scene, b"-NOAUTH Authentication required.\r\n")),
    fault("WRONGTYPE", wrong_type, state_deleted),
    fault("garbage in a field", garbage, state_deleted),
    fault("NOSCRIPT", scripts_flushed, |_| {}),
    Fault { scene: single_node_cluster, ..fault("CLUSTERDOWN", without_slots, with_slots) },
    reply("TRYAGAIN", |scene| reply_with(scene, b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n")),
    Fault { scene: calendar_window, ..reply("clock outside of each calendar window", |scene| reply_with(scene, b"$6\r\nSPAN 0\r\n")) },
    reply("any other error", |scene| reply_with(scene, b"-ERR something else\r\n")),
    Fault { is_connected: false, ..fault("connection refused", refused, repair_network) },
    Fault { is_connected: false, scene: silent, ..fault("black hole, from the first byte", |scene| scene.network.set(Net::BlackHole), repair_network) },
    Fault { scene: silent, ..reply("black hole, during a call", |scene| scene.wire.answer(Answer::Silence)) },
    reply("half-closed, during a call", |scene| scene.wire.answer(Answer::HalfClose)),
    reply("cut off, during a call", |scene| scene.wire.answer(Answer::HangUp)),
    reply("reply: nil", |scene| reply_with(scene, b"$-1\r\n")),
    reply("reply: empty", |scene| reply_with(scene, b"*0\r\n")),
    reply("reply: too short", |scene| reply_with(scene, b"*2\r\n:1700000000000000\r\n:1\r\n")),
    reply("reply: nested", |scene| reply_with(scene, b"*2\r\n:1700000000000000\r\n*2\r\n:1\r\n:0\r\n")),
    reply("reply: an error inside an array", |scene| reply_with(scene, b"*4\r\n:1700000000000000\r\n-ERR inside\r\n:0\r\n:0\r\n")),
    reply("reply: text instead of a number", |scene| reply_with(scene, b"*4\r\n:1700000000000000\r\n$4\r\nword\r\n:0\r\n:0\r\n")),
    reply("reply: a number below 0", |scene| reply_with(scene, b"*4\r\n:1700000000000000\r\n:-7\r\n:0\r\n:0\r\n")),
    reply("reply: a number beyond 64 bits", |scene| reply_with(scene, b"*4\r\n:99999999999999999999\r\n:1\r\n:0\r\n:0\r\n")),
    reply("reply: impossible numbers", |scene| reply_with(scene, b"*4\r\n:1700000000000000\r\n:1\r\n:0\r\n:9223372036854775807\r\n")),
    reply("reply: only a string", |scene| reply_with(scene, b"+OK\r\n")),
    reply("reply: not RESP", |scene| reply_with(scene, b"HTTP/1.1 400 Bad Request\r\n\r\n")),
    Fault { scene: silent, ..reply("reply: endless", |scene| scene.wire.answer(Answer::Endless(b"*9223372036854775807\r\n", b":1\r\n"))) },
];

fn refused(scene: &mut Scene) {
    scene.network.set(Net::Refuse);
    while std::net::TcpStream::connect(scene.network.address()).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn memory_full(scene: &mut Scene) {
    scene.execute("CONFIG SET maxmemory-policy noeviction");
    scene.execute("CONFIG SET maxmemory 1");
}

fn memory_free(scene: &mut Scene) {
    scene.execute("CONFIG SET maxmemory 0");
}

/// Makes the server a replica of a server that does not exist.
fn demoted(scene: &mut Scene) {
    scene.execute("REPLICAOF 127.0.0.1 1");
}

fn promoted(scene: &mut Scene) {
    scene.execute("REPLICAOF NO ONE");
}

fn without_stale_reads() -> Scene {
    Scene::new(&["--replica-serve-stale-data", "no"], LONG)
}

fn slow_to_load() -> Scene {
    let scene = Scene::new(&["--enable-debug-command", "yes"], LONG);
    scene.execute("DEBUG POPULATE 4000 filler 1000");
    scene.execute("CONFIG SET loading-process-events-interval-bytes 1024");
    scene
}

fn loading(scene: &mut Scene) {
    // Delays each of the 4,000 keys, so that loading takes longer than the test.
    scene.execute("CONFIG SET key-load-delay 2000");
    scene.spawn_cli(&["DEBUG", "RELOAD"]);
    scene.wait_for_reply("PING", "LOADING");
}

fn loaded(scene: &mut Scene) {
    scene.execute("CONFIG SET key-load-delay 0");
    scene.wait_for_cli();
}

fn low_busy_threshold() -> Scene {
    Scene::new(&["--busy-reply-threshold", "10"], LONG)
}

fn busy(scene: &mut Scene) {
    scene.spawn_cli(&["EVAL", "while true do end", "0"]);
    scene.wait_for_reply("PING", "BUSY");
}

fn script_killed(scene: &mut Scene) {
    scene.execute("SCRIPT KILL");
    scene.wait_for_cli();
}

fn no_replicas(scene: &mut Scene) {
    scene.execute("CONFIG SET min-replicas-to-write 1");
}

fn no_replicas_needed(scene: &mut Scene) {
    scene.execute("CONFIG SET min-replicas-to-write 0");
}

fn without_permission(scene: &mut Scene) {
    scene.execute("ACL SETUSER limiter -evalsha -eval");
}

fn with_permission(scene: &mut Scene) {
    scene.execute("ACL SETUSER limiter +evalsha +eval");
}

fn wrong_password(scene: &mut Scene) {
    scene.execute("ACL SETUSER limiter resetpass >two");
}

fn correct_password(scene: &mut Scene) {
    scene.execute("ACL SETUSER limiter resetpass >one");
}

fn wrong_type(scene: &mut Scene) {
    let key = scene.redis_key();
    scene.execute(&format!("DEL {key}"));
    scene.execute(&format!("HSET {key} field text"));
}

fn garbage(scene: &mut Scene) {
    let key = scene.redis_key();
    scene.execute(&format!("SET {key} x"));
}

fn state_deleted(scene: &mut Scene) {
    let key = scene.redis_key();
    scene.execute(&format!("DEL {key}"));
}

fn scripts_flushed(scene: &mut Scene) {
    scene.execute("SCRIPT FLUSH");
}

fn calendar_window() -> Scene {
    let mut scene = plain();
    scene.quota = Quota::calendar_window(1_000_000, Calendar::MONTH);
    scene
}

/// Starts a cluster of one node.
fn single_node_cluster() -> Scene {
    // After this timeout, a node that had no slots serves them again.
    let mut scene = Scene::new(&["--cluster-enabled", "yes", "--cluster-node-timeout", "500"], LONG);
    with_slots(&mut scene);
    scene
}

fn without_slots(scene: &mut Scene) {
    scene.execute("CLUSTER DELSLOTSRANGE 0 16383");
}

fn with_slots(scene: &mut Scene) {
    scene.execute("CLUSTER ADDSLOTSRANGE 0 16383");
    scene.wait_for_reply("CLUSTER INFO", "cluster_state:ok");
}
