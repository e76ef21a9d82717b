//! What is broken, each by a small function. One more is a line in [`FAULTS`] and a function.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::{Fault as Net, Proxy, Server};
use redis::Connection;

use crate::support::load::now_us;

pub struct Fault {
    pub name: &'static str,
    pub way: Way,
    /// Makes it, holds it, mends it.
    pub happen: fn(&mut Ground),
    /// Whether asks must fail while it lasts. Where they need not, they may.
    pub fails: bool,
    /// How long after the repair Redis may take to decide again, and asks to stop failing.
    pub again: Duration,
}

/// How the limiter gets to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    Proxied,
    /// Direct, as a user of its own.
    User,
    /// Direct, to a server whose clock can be set.
    Clock,
}

use Way::{Clock, Direct, Proxied, User};

const SOON: Duration = Duration::from_secs(2);

/// Sentinel failover, a cluster's primary killed and slots moved under load have their place here.
#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    Fault { name: "killed, restarted empty", way: Direct, happen: killed, fails: true, again: SOON },
    Fault { name: "paused", way: Direct, happen: paused, fails: true, again: SOON },
    Fault { name: "black-holed", way: Proxied, happen: black_holed, fails: true, again: SOON },
    Fault { name: "refused", way: Proxied, happen: refused, fails: true, again: SOON },
    Fault { name: "half-closed", way: Proxied, happen: half_closed, fails: true, again: SOON },
    Fault { name: "200 ms a reply", way: Proxied, happen: slow, fails: true, again: SOON },
    Fault { name: "cut at random bytes", way: Proxied, happen: cut, fails: false, again: SOON },
    Fault { name: "SCRIPT FLUSH in a loop", way: Direct, happen: scripts_flushed, fails: false, again: SOON },
    Fault { name: "FLUSHALL, thrice", way: Direct, happen: flushed, fails: false, again: SOON },
    Fault { name: "memory full, noeviction", way: Direct, happen: memory_full, fails: true, again: SOON },
    Fault { name: "clock +1 h, -2 h, +1 h", way: Clock, happen: clock_stepped, fails: false, again: SOON },
    Fault { name: "password rotated and back", way: User, happen: credentials_rotated, fails: true, again: SOON },
    Fault { name: "1,000 CLIENT KILLs", way: Direct, happen: killed_clients, fails: false, again: SOON },
];

/// What a fault happens to, and what it did.
pub struct Ground {
    pub server: Server,
    pub proxy: Proxy,
    /// For how long things stay broken.
    pub hold: Duration,
    pub broken_us: u64,
    pub mended_us: u64,
    /// How often the state was lost.
    pub losses: u64,
    /// Where the clock was stepped: a time between the first step and the last, and by how much it was
    /// stepped back in all.
    pub stepped: Option<(u64, u64)>,
}

const PASSWORD: &str = "one";

impl Ground {
    pub fn new(way: Way, hold: Duration) -> Self {
        let server = match way {
            Clock => Server::with_shiftable_clock().unwrap(),
            _ => Server::process(&[]).unwrap(),
        };
        if way == User {
            let user = ["ACL", "SETUSER", "limiter", "on", "~*", "&*", "+@all"];
            server.cli(&[&user[..], &[&format!(">{PASSWORD}")]].concat()).unwrap();
        }
        let proxy = Proxy::start(server.url()).unwrap();
        Self { server, proxy, hold, broken_us: 0, mended_us: 0, losses: 0, stepped: None }
    }

    pub fn url(&self, way: Way) -> String {
        match way {
            Direct | Clock => self.server.url().to_owned(),
            Proxied => self.proxy.url(),
            User => self.server.url().replace("//", &format!("//limiter:{PASSWORD}@")),
        }
    }

    fn redis(&self) -> Connection {
        redis::Client::open(self.server.url()).unwrap().get_connection().unwrap()
    }

    fn broken(&mut self) {
        self.broken_us = now_us();
    }

    fn mended(&mut self) {
        self.mended_us = now_us();
    }

    fn network(&mut self, fault: Net) {
        self.broken();
        self.proxy.set(fault);
        sleep(self.hold);
        self.proxy.set(Net::None);
        self.mended();
    }
}

fn tell(redis: &mut Connection, command: &str) {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd.exec(redis).unwrap();
}

fn killed(ground: &mut Ground) {
    ground.broken();
    ground.server.kill();
    sleep(ground.hold);
    ground.server.restart().unwrap();
    ground.mended();
    ground.losses = 1;
}

fn paused(ground: &mut Ground) {
    let paused = ground.server.pause().unwrap();
    let broken_us = now_us();
    sleep(ground.hold);
    drop(paused);
    ground.broken_us = broken_us;
    ground.mended();
}

fn black_holed(ground: &mut Ground) {
    ground.network(Net::BlackHole);
}

fn refused(ground: &mut Ground) {
    ground.network(Net::Refuse);
}

fn half_closed(ground: &mut Ground) {
    ground.network(Net::HalfClose);
}

fn slow(ground: &mut Ground) {
    ground.network(Net::Slow(Duration::from_millis(200)));
}

fn cut(ground: &mut Ground) {
    ground.network(Net::Cut(20_000));
}

fn scripts_flushed(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.broken();
    let start = Instant::now();
    while start.elapsed() < ground.hold {
        tell(&mut redis, "SCRIPT FLUSH");
        sleep(Duration::from_millis(1));
    }
    ground.mended();
}

fn flushed(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.broken();
    for _ in 0..3 {
        tell(&mut redis, "FLUSHALL");
        ground.losses += 1;
        sleep(ground.hold / 3);
    }
    ground.mended();
}

/// By keys of others. What is there stays, and nothing can be added.
fn memory_full(ground: &mut Ground) {
    let mut redis = ground.redis();
    tell(&mut redis, "CONFIG SET maxmemory-policy noeviction");
    tell(&mut redis, "CONFIG SET maxmemory 8mb");
    ground.broken();
    let filler = "x".repeat(10_000);
    let start = Instant::now();
    let mut keys = 0;
    while start.elapsed() < ground.hold {
        let full = redis::cmd("SET").arg(format!("filler:{keys}")).arg(&filler).exec(&mut redis).is_err();
        keys += 1;
        if full {
            // What others gave back in the meantime is taken too.
            sleep(Duration::from_millis(1));
        }
    }
    tell(&mut redis, "CONFIG SET maxmemory 0");
    ground.mended();
}

/// Far enough that asks show from when they are.
fn clock_stepped(ground: &mut Ground) {
    const HOUR: i64 = 3_600_000_000;
    ground.broken();
    let step = |micros| {
        ground.server.shift_clock(micros);
        sleep(ground.hold / 3);
    };
    step(HOUR);
    step(-2 * HOUR);
    let middle_us = now_us();
    step(HOUR);
    ground.stepped = Some((middle_us, 2 * HOUR.unsigned_abs()));
    ground.mended();
}

/// Connections that there are would go on with the old one.
fn credentials_rotated(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.broken();
    tell(&mut redis, "ACL SETUSER limiter resetpass >two");
    tell(&mut redis, "CLIENT KILL USER limiter");
    sleep(ground.hold);
    tell(&mut redis, &format!("ACL SETUSER limiter resetpass >{PASSWORD}"));
    ground.mended();
}

fn killed_clients(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.broken();
    for _ in 0..1_000 {
        tell(&mut redis, "CLIENT KILL TYPE normal SKIPME yes");
        sleep(Duration::from_millis(1));
    }
    ground.mended();
}
