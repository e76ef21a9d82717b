//! Calls the scripts of holds on a Redis with a frozen clock.

use redis::{Connection, FromRedisValue, Value};
use tidegate::Quota;
use tidegate::algorithm::{RESERVE, SETTLE};
use tidegate_testkit::Server;

use crate::support::acl::{self, PASSWORD, USER};
use crate::support::fixture::HOUR;
use crate::support::script::connect;
use crate::support::world::START;

pub const SECOND_US: u64 = 1_000_000;
pub const TTL_US: u64 = 60 * SECOND_US;
pub const START_US: u64 = START.as_micros() as u64;

/// A Redis with a frozen clock.
pub struct Redis {
    pub server: Server,
    connection: Connection,
    /// Runs the scripts with the rights in docs/operate/redis-user.md.
    user: Connection,
}

/// A key of a reservation.
#[derive(Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub quota: Quota,
}

impl Key {
    pub fn state(self) -> String {
        format!("tidegate:{}", self.name)
    }

    pub fn holds(self) -> String {
        format!("{}:holds", self.state())
    }
}

impl Redis {
    pub fn start() -> Self {
        let server = Server::with_shiftable_clock().unwrap();
        server.freeze_clock(START_US);
        acl::create_user(&server);
        let mut user = connect(server.url());
        redis::cmd("AUTH").arg(USER).arg(PASSWORD).exec(&mut user).unwrap();
        Self { connection: connect(server.url()), user, server }
    }

    /// Sets the clock to this time after the start.
    pub fn at(&self, since_start_us: u64) {
        self.server.freeze_clock(START_US + since_start_us);
    }

    pub fn command<T: FromRedisValue>(&mut self, words: &[&[u8]]) -> T {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.connection).unwrap()
    }

    pub fn text<T: FromRedisValue>(&mut self, command: &str) -> T {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        self.command(&words)
    }

    /// Takes groups of one key each. A key with an id becomes a hold.
    pub fn take(&mut self, what: &str, groups: &[(Key, u64, &[u8])]) -> Vec<Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(RESERVE.text).arg(2 * groups.len());
        groups.iter().for_each(|(key, ..)| {
            command.arg(key.state()).arg(key.holds());
        });
        command.arg(groups.len());
        groups.iter().for_each(|(key, ..)| append_quota(&mut command, key.quota));
        for (index, (_, cost, id)) in groups.iter().enumerate() {
            command.arg(1).arg(1).arg(id).arg(TTL_US).arg(what);
            command.arg(index + 1).arg(cost).arg("").arg(1);
        }
        reply_of(command.arg("").query(&mut self.user).unwrap())
    }

    pub fn settle(&mut self, what: &str, items: &[(Key, u64, u64, &[u8])]) -> Vec<Value> {
        let mut command = redis::cmd("EVAL");
        command.arg(SETTLE.text).arg(2 * items.len());
        items.iter().for_each(|(key, ..)| {
            command.arg(key.state()).arg(key.holds());
        });
        command.arg(items.len());
        items.iter().for_each(|(key, ..)| append_quota(&mut command, key.quota));
        for (index, (_, units, actual, id)) in items.iter().enumerate() {
            command.arg(index + 1).arg(id).arg(units).arg(TTL_US).arg(what).arg(actual);
        }
        reply_of(command.query(&mut self.user).unwrap())
    }

    /// Reserves one key, and returns whether it was admitted.
    pub fn reserves(&mut self, key: Key, cost: u64, what: &str, id: &[u8]) -> bool {
        match self.take(what, &[(key, cost, id)])[0] {
            Value::Int(-2) => true,
            Value::Int(-1) => false,
            ref other => panic!("{other:?}"),
        }
    }

    /// Returns the used units of a key, by a peek that ends its holds.
    pub fn used(&mut self, key: Key) -> u64 {
        match self.take("", &[(key, u64::MAX >> 12, b"")])[..] {
            [Value::Int(-1), Value::Int(used), ..] => used.unsigned_abs(),
            ref other => panic!("{other:?}"),
        }
    }

    /// Returns the members of a key's holds, and their scores.
    pub fn holds(&mut self, key: Key) -> Vec<(Vec<u8>, u64)> {
        self.command(&[b"ZRANGE", key.holds().as_bytes(), b"0", b"-1", b"WITHSCORES"])
    }

    pub fn expires_ms(&mut self, key: &str) -> i64 {
        self.command(&[b"PEXPIRETIME", key.as_bytes()])
    }
}

fn append_quota(command: &mut redis::Cmd, quota: Quota) {
    command.arg(quota.algorithm());
    quota.kind().args().iter().for_each(|arg| {
        command.arg(arg);
    });
}

/// Returns the rows of a reply without the time.
fn reply_of(reply: Value) -> Vec<Value> {
    let Value::Array(mut values) = reply else { panic!("{reply:?}") };
    values.remove(0);
    values
}

pub fn error(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

pub const NOTHING: Value = Value::Int(0);
pub const SETTLED: Value = Value::Int(1);
pub const LATE: Value = Value::Int(2);

pub fn window() -> Key {
    Key { name: "window", quota: Quota::fixed_window(10, HOUR) }
}
