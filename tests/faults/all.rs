//! The faults: caused in a real Redis if possible, else simulated by other bytes on the wire.

use std::time::Duration;

use harness::Fault as Net;

use super::scene::{Scene, redis_key};
use crate::support::wire::Answer;

pub struct Fault {
    pub name: &'static str,
    pub scene: fn() -> Scene,
    pub make: fn(&mut Scene),
    pub mend: fn(&mut Scene),
    /// Whether the limiter is connected when the fault begins. Otherwise it cannot connect.
    pub is_connected: bool,
}

/// Long, because these tests wait only for replies.
const LONG: Duration = Duration::from_secs(5);
/// For faults in which the server never replies.
const SHORT: Duration = Duration::from_millis(150);

const fn fault(name: &'static str, make: fn(&mut Scene), mend: fn(&mut Scene)) -> Fault {
    Fault { name, scene: plain, make, mend, is_connected: true }
}

const fn reply(name: &'static str, make: fn(&mut Scene)) -> Fault {
    fault(name, make, mend_wire)
}

fn plain() -> Scene {
    Scene::new(&[], LONG)
}

fn silent() -> Scene {
    Scene::new(&[], SHORT)
}

fn mend_wire(scene: &mut Scene) {
    scene.wire.answer(Answer::OfServer);
}

fn mend_network(scene: &mut Scene) {
    scene.network.set(Net::None);
}

fn say(scene: &mut Scene, bytes: &[u8]) {
    scene.wire.answer(Answer::Say(bytes.to_vec()));
}

#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    fault("OOM", no_memory, memory),
    fault("READONLY", demoted, promoted),
    Fault { scene: unknowing, ..fault("MASTERDOWN", demoted, promoted) },
    Fault { scene: slow_to_load, ..fault("LOADING", loading, loaded) },
    Fault { scene: soon_busy, ..fault("BUSY", busy, idle) },
    fault("NOREPLICAS", no_replicas, any_replicas),
    fault("NOPERM", without_right, with_right),
    Fault { is_connected: false, ..fault("WRONGPASS", other_password, right_password) },
    reply("NOAUTH", |scene| say(scene, b"-NOAUTH Authentication required.\r\n")),
    fault("WRONGTYPE", other_type, no_state),
    fault("garbage in a field", garbage, no_state),
    fault("NOSCRIPT", forgotten, |_| {}),
    Fault { scene: node, ..fault("CLUSTERDOWN", without_slots, with_slots) },
    reply("TRYAGAIN", |scene| say(scene, b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n")),
    reply("any other error", |scene| say(scene, b"-ERR something else\r\n")),
    Fault { is_connected: false, ..fault("connection refused", refused, mend_network) },
    Fault { is_connected: false, scene: silent, ..fault("black hole, from the first byte", |scene| scene.network.set(Net::BlackHole), mend_network) },
    Fault { scene: silent, ..reply("black hole, during a call", |scene| scene.wire.answer(Answer::Silence)) },
    reply("half-closed, during a call", |scene| scene.wire.answer(Answer::HalfClose)),
    reply("cut off, during a call", |scene| scene.wire.answer(Answer::HangUp)),
    reply("reply: nil", |scene| say(scene, b"$-1\r\n")),
    reply("reply: empty", |scene| say(scene, b"*0\r\n")),
    reply("reply: too short", |scene| say(scene, b"*2\r\n:1700000000000000\r\n:1\r\n")),
    reply("reply: nested", |scene| say(scene, b"*2\r\n:1700000000000000\r\n*2\r\n:1\r\n:0\r\n")),
    reply("reply: an error inside a row", |scene| say(scene, b"*4\r\n:1700000000000000\r\n-ERR inside\r\n:0\r\n:0\r\n")),
    reply("reply: a text where a number should be", |scene| say(scene, b"*4\r\n:1700000000000000\r\n$4\r\nword\r\n:0\r\n:0\r\n")),
    reply("reply: a number below 0", |scene| say(scene, b"*4\r\n:1700000000000000\r\n:-7\r\n:0\r\n:0\r\n")),
    reply("reply: a number beyond 64 bits", |scene| say(scene, b"*4\r\n:99999999999999999999\r\n:1\r\n:0\r\n:0\r\n")),
    reply("reply: numbers that cannot be", |scene| say(scene, b"*4\r\n:1700000000000000\r\n:1\r\n:0\r\n:9223372036854775807\r\n")),
    reply("reply: a text alone", |scene| say(scene, b"+OK\r\n")),
    reply("reply: not RESP", |scene| say(scene, b"HTTP/1.1 400 Bad Request\r\n\r\n")),
    Fault { scene: silent, ..reply("reply: endless", |scene| scene.wire.answer(Answer::Endless(b"*9223372036854775807\r\n", b":1\r\n"))) },
];

fn refused(scene: &mut Scene) {
    scene.network.set(Net::Refuse);
    while std::net::TcpStream::connect(scene.network.address()).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn no_memory(scene: &mut Scene) {
    scene.tell("CONFIG SET maxmemory-policy noeviction");
    scene.tell("CONFIG SET maxmemory 1");
}

fn memory(scene: &mut Scene) {
    scene.tell("CONFIG SET maxmemory 0");
}

/// Makes the server a replica of a server that does not exist.
fn demoted(scene: &mut Scene) {
    scene.tell("REPLICAOF 127.0.0.1 1");
}

fn promoted(scene: &mut Scene) {
    scene.tell("REPLICAOF NO ONE");
}

fn unknowing() -> Scene {
    Scene::new(&["--replica-serve-stale-data", "no"], LONG)
}

fn slow_to_load() -> Scene {
    let scene = Scene::new(&["--enable-debug-command", "yes"], LONG);
    scene.tell("DEBUG POPULATE 4000 filler 1000");
    scene.tell("CONFIG SET loading-process-events-interval-bytes 1024");
    scene
}

fn loading(scene: &mut Scene) {
    // Delays each of the 4,000 keys, so that loading takes longer than the test.
    scene.tell("CONFIG SET key-load-delay 2000");
    scene.let_another(&["DEBUG", "RELOAD"]);
    scene.until("PING", "LOADING");
}

fn loaded(scene: &mut Scene) {
    scene.tell("CONFIG SET key-load-delay 0");
    scene.other_ends();
}

fn soon_busy() -> Scene {
    Scene::new(&["--busy-reply-threshold", "10"], LONG)
}

fn busy(scene: &mut Scene) {
    scene.let_another(&["EVAL", "while true do end", "0"]);
    scene.until("PING", "BUSY");
}

fn idle(scene: &mut Scene) {
    scene.tell("SCRIPT KILL");
    scene.other_ends();
}

fn no_replicas(scene: &mut Scene) {
    scene.tell("CONFIG SET min-replicas-to-write 1");
}

fn any_replicas(scene: &mut Scene) {
    scene.tell("CONFIG SET min-replicas-to-write 0");
}

fn without_right(scene: &mut Scene) {
    scene.tell("ACL SETUSER limiter -evalsha -eval");
}

fn with_right(scene: &mut Scene) {
    scene.tell("ACL SETUSER limiter +evalsha +eval");
}

fn other_password(scene: &mut Scene) {
    scene.tell("ACL SETUSER limiter resetpass >two");
}

fn right_password(scene: &mut Scene) {
    scene.tell("ACL SETUSER limiter resetpass >one");
}

fn key(scene: &Scene) -> String {
    redis_key(&scene.limiter(|builder| builder))
}

fn other_type(scene: &mut Scene) {
    let key = key(scene);
    scene.tell(&format!("DEL {key}"));
    scene.tell(&format!("HSET {key} field text"));
}

fn garbage(scene: &mut Scene) {
    let key = key(scene);
    scene.tell(&format!("SET {key} x"));
}

fn no_state(scene: &mut Scene) {
    let key = key(scene);
    scene.tell(&format!("DEL {key}"));
}

fn forgotten(scene: &mut Scene) {
    scene.tell("SCRIPT FLUSH");
}

/// Starts a cluster of one node.
fn node() -> Scene {
    // After this timeout, a node that had no slots serves them again.
    let mut scene = Scene::new(&["--cluster-enabled", "yes", "--cluster-node-timeout", "500"], LONG);
    with_slots(&mut scene);
    scene
}

fn without_slots(scene: &mut Scene) {
    scene.tell("CLUSTER DELSLOTSRANGE 0 16383");
}

fn with_slots(scene: &mut Scene) {
    scene.tell("CLUSTER ADDSLOTSRANGE 0 16383");
    scene.until("CLUSTER INFO", "cluster_state:ok");
}
