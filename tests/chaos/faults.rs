//! What is broken, each by a small function. One more is a line in [`FAULTS`] and a function.

use std::thread::sleep;
use std::time::{Duration, Instant};

use harness::Fault as Net;
use redis::Connection;

pub use super::ground::{Ground, Way};
use super::ground::{PASSWORD, wait_until};
use crate::support::load::now_us;

pub struct Fault {
    pub name: &'static str,
    pub way: Way,
    /// Makes it, holds it, mends it.
    pub happen: fn(&mut Ground),
    /// Whether asks must fail while it lasts. Where they need not, they may.
    pub fails: bool,
    /// Whether Redis is away once, and not again and again.
    pub is_one: bool,
}

use Way::{Clock, Direct, Proxied, Sentinels, User};
#[cfg(feature = "cluster")]
use Way::{Cluster, Primaries};

#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    Fault { name: "killed, restarted empty", way: Direct, happen: killed, fails: true, is_one: true },
    Fault { name: "paused", way: Direct, happen: paused, fails: true, is_one: true },
    Fault { name: "black-holed", way: Proxied, happen: black_holed, fails: true, is_one: true },
    Fault { name: "refused", way: Proxied, happen: refused, fails: true, is_one: true },
    Fault { name: "half-closed", way: Proxied, happen: half_closed, fails: true, is_one: true },
    Fault { name: "200 ms a reply", way: Proxied, happen: slow, fails: true, is_one: true },
    Fault { name: "cut at random bytes", way: Proxied, happen: cut, fails: false, is_one: false },
    Fault { name: "SCRIPT FLUSH in a loop", way: Direct, happen: scripts_flushed, fails: false, is_one: false },
    Fault { name: "FLUSHALL, thrice", way: Direct, happen: flushed, fails: false, is_one: false },
    Fault { name: "memory full, noeviction", way: Direct, happen: memory_full, fails: true, is_one: false },
    Fault { name: "clock +1 h, -2 h, +1 h", way: Clock, happen: clock_stepped, fails: false, is_one: false },
    Fault { name: "password rotated and back", way: User, happen: credentials_rotated, fails: true, is_one: true },
    Fault { name: "reconnects in a row", way: Proxied, happen: reconnects, fails: false, is_one: false },
    Fault { name: "all of the network's, in a row", way: Proxied, happen: in_a_row, fails: true, is_one: false },
    Fault { name: "Sentinel: primary killed", way: Sentinels, happen: primary_killed, fails: true, is_one: false },
    Fault { name: "Sentinel: primary demoted", way: Sentinels, happen: primary_demoted, fails: false, is_one: false },
    #[cfg(feature = "cluster")]
    Fault { name: "cluster: primary killed", way: Cluster, happen: owner_killed, fails: true, is_one: false },
    #[cfg(feature = "cluster")]
    Fault { name: "cluster: slots moved", way: Primaries, happen: slots_moved, fails: false, is_one: false },
];

impl Ground {
    fn network(&mut self, fault: Net) {
        self.broken();
        self.proxy().set(fault);
        sleep(self.hold);
        self.proxy().set(Net::None);
        self.mended();
    }

    /// Again and again, as long as things stay broken.
    fn repeat(&mut self, mut what: impl FnMut(&mut Self)) {
        self.broken();
        let start = Instant::now();
        while start.elapsed() < self.hold {
            what(self);
            sleep(Duration::from_millis(1));
        }
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
    ground.server().kill();
    ground.lost();
    sleep(ground.hold);
    ground.server().restart().unwrap();
    ground.mended();
}

fn paused(ground: &mut Ground) {
    let hold = ground.hold;
    let paused = ground.server().pause().unwrap();
    let broken_us = now_us();
    sleep(hold);
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
    ground.repeat(|_| tell(&mut redis, "SCRIPT FLUSH"));
    ground.mended();
}

fn flushed(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.broken();
    for _ in 0..3 {
        tell(&mut redis, "FLUSHALL");
        ground.lost();
        sleep(ground.hold / 3);
    }
    ground.mended();
}

/// By keys of others. What is there stays, and nothing can be added.
fn memory_full(ground: &mut Ground) {
    let mut redis = ground.redis();
    tell(&mut redis, "CONFIG SET maxmemory-policy noeviction");
    tell(&mut redis, "CONFIG SET maxmemory 8mb");
    let mut keys = 0;
    let mut fill = |bytes| {
        let filler = "x".repeat(bytes);
        while redis::cmd("SET").arg(format!("filler:{keys}")).arg(&filler).exec(&mut redis).is_ok() {
            keys += 1;
        }
    };
    // Large values first, so that the memory is full before the fault is over, however busy the machine.
    let mut is_first = true;
    ground.repeat(|_| {
        if std::mem::take(&mut is_first) {
            fill(500_000);
        }
        // Also takes the memory that others returned in the meantime.
        fill(10_000);
    });
    tell(&mut redis, "CONFIG SET maxmemory 0");
    ground.mended();
}

/// Far enough that asks show from when they are.
fn clock_stepped(ground: &mut Ground) {
    const HOUR: i64 = 3_600_000_000;
    ground.broken();
    let hold = ground.hold / 3;
    let mut step = |micros| {
        ground.server().shift_clock(micros);
        sleep(hold);
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

/// Each when all processes have connected again, and been answered.
fn reconnects(ground: &mut Ground) {
    ground.broken();
    let proxy = ground.proxy();
    let all = proxy.counts().open;
    for _ in 0..ground.times {
        let before = proxy.counts().connections;
        proxy.cut();
        wait_until("all connect again", || proxy.counts().connections >= before + all);
        let before = proxy.counts().to_client;
        wait_until("they are answered", || proxy.counts().to_client > before + 500 * all);
    }
    ground.mended();
}

/// Each only as long as it takes to be noticed.
fn in_a_row(ground: &mut Ground) {
    ground.broken();
    let slow = Net::Slow(Duration::from_millis(200));
    let faults = [Net::Refuse, Net::Cut(2_000), Net::BlackHole, Net::HalfClose, slow];
    for fault in faults.into_iter().cycle().take(ground.times as usize) {
        ground.proxy().set(fault);
        sleep(Duration::from_millis(4));
        ground.proxy().set(Net::None);
        sleep(Duration::from_millis(4));
    }
    ground.mended();
}

/// What was not replicated yet is lost.
fn primary_killed(ground: &mut Ground) {
    ground.broken();
    ground.sentinels().kill_primary();
    ground.lost();
    wait_until_promoted(ground);
    ground.mended();
}

/// What it still admits as long as it is not a replica is lost.
fn primary_demoted(ground: &mut Ground) {
    ground.broken();
    ground.sentinels().exchange().unwrap();
    wait_until_promoted(ground);
    let sentinels = ground.sentinels();
    let port = sentinels.replica().url().rsplit(':').next().unwrap().to_owned();
    // The sentinels do it too, after 8 s.
    sentinels.primary().unwrap().cli(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    ground.mended();
    ground.lost();
}

fn wait_until_promoted(ground: &mut Ground) {
    let replica = ground.sentinels().replica();
    wait_until("the replica is promoted", || {
        replica.cli(&["ROLE"]).is_ok_and(|role| role.contains("\"master\""))
    });
}

#[cfg(feature = "cluster")]
fn owner_killed(ground: &mut Ground) {
    ground.broken();
    ground.nodes().kill_owner();
    ground.mended();
    ground.lost();
}

#[cfg(feature = "cluster")]
fn slots_moved(ground: &mut Ground) {
    ground.repeat(|ground| ground.nodes().move_hot_slot());
    ground.mended();
}
