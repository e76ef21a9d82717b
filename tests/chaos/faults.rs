//! The faults, each a small function. To add a fault, add a function and an entry in [`FAULTS`].

use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::Connection;
use tidegate_testkit::Fault as Net;

pub use super::ground::{Ground, Topology};
use super::ground::{PASSWORD, wait_until};
use crate::support::load::now_us;

pub struct Fault {
    pub name: &'static str,
    pub topology: Topology,
    /// Causes the fault, holds it, and repairs it.
    pub inject: fn(&mut Ground),
    /// Whether some checks must fail during the fault. If false, they may.
    pub fails: bool,
    /// Whether Redis is unavailable once, instead of repeatedly.
    pub is_single_outage: bool,
}

use Topology::{Clock, Direct, Proxied, Sentinels, User};
#[cfg(feature = "cluster")]
use Topology::{Cluster, Primaries};

#[rustfmt::skip]
pub const FAULTS: &[Fault] = &[
    Fault { name: "killed, restarted empty", topology: Direct, inject: killed, fails: true, is_single_outage: true },
    Fault { name: "paused", topology: Direct, inject: paused, fails: true, is_single_outage: true },
    Fault { name: "black-holed", topology: Proxied, inject: black_holed, fails: true, is_single_outage: true },
    Fault { name: "refused", topology: Proxied, inject: refused, fails: true, is_single_outage: true },
    Fault { name: "half-closed", topology: Proxied, inject: half_closed, fails: true, is_single_outage: true },
    Fault { name: "200 ms a reply", topology: Proxied, inject: slow, fails: true, is_single_outage: true },
    Fault { name: "cut at random bytes", topology: Proxied, inject: cut_off, fails: false, is_single_outage: false },
    Fault { name: "SCRIPT FLUSH in a loop", topology: Direct, inject: scripts_flushed, fails: false, is_single_outage: false },
    Fault { name: "FLUSHALL, three times", topology: Direct, inject: flushed, fails: false, is_single_outage: false },
    Fault { name: "memory full, noeviction", topology: Direct, inject: memory_full, fails: true, is_single_outage: false },
    Fault { name: "clock +1 h, -2 h, +1 h", topology: Clock, inject: clock_stepped, fails: false, is_single_outage: false },
    Fault { name: "password rotated and back", topology: User, inject: credentials_rotated, fails: true, is_single_outage: true },
    Fault { name: "repeated reconnects", topology: Proxied, inject: reconnects_repeated, fails: false, is_single_outage: false },
    Fault { name: "all network faults in sequence", topology: Proxied, inject: network_faults_in_sequence, fails: true, is_single_outage: false },
    Fault { name: "Sentinel: primary killed", topology: Sentinels, inject: primary_killed, fails: true, is_single_outage: false },
    Fault { name: "Sentinel: primary demoted", topology: Sentinels, inject: primary_demoted, fails: false, is_single_outage: false },
    #[cfg(feature = "cluster")]
    Fault { name: "cluster: primary killed", topology: Cluster, inject: owner_killed, fails: true, is_single_outage: false },
    #[cfg(feature = "cluster")]
    Fault { name: "cluster: slots moved", topology: Primaries, inject: slots_moved, fails: false, is_single_outage: false },
];

impl Ground {
    fn network(&mut self, fault: Net) {
        self.mark_broken();
        self.proxy().set(fault);
        sleep(self.hold);
        self.proxy().set(Net::None);
        self.mark_repaired();
    }

    /// Repeats an action for the duration of the fault.
    fn repeat(&mut self, mut action: impl FnMut(&mut Self)) {
        self.mark_broken();
        let start = Instant::now();
        while start.elapsed() < self.hold {
            action(self);
            sleep(Duration::from_millis(1));
        }
    }
}

fn execute(redis: &mut Connection, command: &str) {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd.exec(redis).unwrap();
}

fn killed(ground: &mut Ground) {
    ground.mark_broken();
    ground.server().kill();
    ground.mark_lost();
    sleep(ground.hold);
    ground.server().restart().unwrap();
    ground.mark_repaired();
}

fn paused(ground: &mut Ground) {
    let hold = ground.hold;
    // Before the pause: checks can time out before this process continues.
    ground.mark_broken();
    let paused = ground.server().pause().unwrap();
    sleep(hold);
    drop(paused);
    ground.mark_repaired();
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

fn cut_off(ground: &mut Ground) {
    ground.network(Net::Cut(20_000));
}

fn scripts_flushed(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.repeat(|_| execute(&mut redis, "SCRIPT FLUSH"));
    ground.mark_repaired();
}

fn flushed(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.mark_broken();
    for _ in 0..3 {
        execute(&mut redis, "FLUSHALL");
        ground.mark_lost();
        sleep(ground.hold / 3);
    }
    ground.mark_repaired();
}

/// Fills the memory with other keys. Existing keys stay, and no key can be added.
fn memory_full(ground: &mut Ground) {
    let mut redis = ground.redis();
    execute(&mut redis, "CONFIG SET maxmemory-policy noeviction");
    execute(&mut redis, "CONFIG SET maxmemory 8mb");
    let mut keys = 0;
    let mut fill = |bytes| {
        let filler = "x".repeat(bytes);
        while redis::cmd("SET").arg(format!("filler:{keys}")).arg(&filler).exec(&mut redis).is_ok() {
            keys += 1;
        }
    };
    // Large values come first, so that the memory fills before the fault ends, even on a busy machine.
    let mut is_first = true;
    ground.repeat(|_| {
        if std::mem::take(&mut is_first) {
            fill(500_000);
        }
        // Fills memory that was freed in the meantime.
        fill(10_000);
    });
    execute(&mut redis, "CONFIG SET maxmemory 0");
    ground.mark_repaired();
}

/// Steps the clock so far that the server's time of a check shows at which step it was decided.
fn clock_stepped(ground: &mut Ground) {
    const HOUR: i64 = 3_600_000_000;
    ground.mark_broken();
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
    ground.mark_repaired();
}

/// Kills the connections, because established ones keep their login after the password changes.
fn credentials_rotated(ground: &mut Ground) {
    let mut redis = ground.redis();
    ground.mark_broken();
    execute(&mut redis, "ACL SETUSER limiter resetpass >two");
    execute(&mut redis, "CLIENT KILL USER limiter");
    sleep(ground.hold);
    execute(&mut redis, &format!("ACL SETUSER limiter resetpass >{PASSWORD}"));
    ground.mark_repaired();
}

/// Cuts all connections once all processes have reconnected and received replies.
fn reconnects_repeated(ground: &mut Ground) {
    ground.mark_broken();
    let proxy = ground.proxy();
    let all = proxy.counts().open;
    for _ in 0..ground.times {
        let before = proxy.counts().connections;
        proxy.cut();
        wait_until("all processes have reconnected", || proxy.counts().connections >= before + all);
        let before = proxy.counts().to_client;
        wait_until("the processes receive replies", || proxy.counts().to_client > before + 500 * all);
    }
    ground.mark_repaired();
}

/// Injects each network fault only for the 4 ms that the processes need to observe it.
fn network_faults_in_sequence(ground: &mut Ground) {
    ground.mark_broken();
    let slow = Net::Slow(Duration::from_millis(200));
    let faults = [Net::Refuse, Net::Cut(2_000), Net::BlackHole, Net::HalfClose, slow];
    for fault in faults.into_iter().cycle().take(ground.times as usize) {
        ground.proxy().set(fault);
        sleep(Duration::from_millis(4));
        ground.proxy().set(Net::None);
        sleep(Duration::from_millis(4));
    }
    ground.mark_repaired();
}

/// Loses the writes that were not replicated yet.
fn primary_killed(ground: &mut Ground) {
    ground.mark_broken();
    ground.sentinels().kill_primary();
    ground.mark_lost();
    wait_until_promoted(ground);
    ground.mark_repaired();
}

/// Loses the units that the old primary admits until it becomes a replica.
fn primary_demoted(ground: &mut Ground) {
    ground.mark_broken();
    ground.sentinels().exchange().unwrap();
    wait_until_promoted(ground);
    let sentinels = ground.sentinels();
    let port = sentinels.replica().url().rsplit(':').next().unwrap().to_owned();
    // The sentinels would do this after 8 s.
    sentinels.primary().unwrap().cli(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    ground.mark_repaired();
    ground.mark_lost();
}

fn wait_until_promoted(ground: &mut Ground) {
    let replica = ground.sentinels().replica();
    wait_until("the replica is promoted", || {
        replica.cli(&["ROLE"]).is_ok_and(|role| role.contains("\"master\""))
    });
}

#[cfg(feature = "cluster")]
fn owner_killed(ground: &mut Ground) {
    ground.mark_broken();
    ground.nodes().kill_owner();
    ground.mark_repaired();
    ground.mark_lost();
}

#[cfg(feature = "cluster")]
fn slots_moved(ground: &mut Ground) {
    ground.repeat(|ground| ground.nodes().move_hot_slot());
    ground.mark_repaired();
}
