//! The Redis user with the minimal permissions, as in docs/operate/redis-user.md.

use tidegate_testkit::Server;

pub const USER: &str = "tidegate";
pub const PASSWORD: &str = "PASSWORD";

/// The commands that the limiter sends itself.
pub const SENT: [&str; 3] = ["EVAL", "EVALSHA", "PING"];

/// The commands that the scripts call.
pub const CALLED: [&str; 25] = [
    "DECRBY",
    "GET",
    "HDEL",
    "HGET",
    "HGETALL",
    "HMGET",
    "HSET",
    "INCRBY",
    "PEXPIREAT",
    "PEXPIRETIME",
    "PTTL",
    "SET",
    "TIME",
    "UNLINK",
    "ZADD",
    "ZCARD",
    "ZCOUNT",
    "ZMSCORE",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZREM",
    "ZREMRANGEBYRANK",
    "ZREMRANGEBYSCORE",
    "ZREVRANGE",
    "ZSCORE",
];

/// The commands that only the scripts of regions call: of limits that several regions share.
pub const CALLED_BY_REGIONS: [&str; 5] = ["HINCRBY", "HLEN", "HRANDFIELD", "XADD", "XTRIM"];

/// Returns all commands that a limiter needs, in the spelling of an ACL.
pub fn rights() -> impl Iterator<Item = String> {
    SENT.iter().chain(&CALLED).map(|command| command.to_lowercase())
}

/// Returns the command that creates the user.
pub fn line() -> String {
    let rights: Vec<String> = rights().map(|right| format!("+{right}")).collect();
    format!("ACL SETUSER {USER} reset on >{PASSWORD} ~tidegate:* {}", rights.join(" "))
}

/// Creates the user on a server, or recreates it.
pub fn create_user(server: &Server) {
    let line = line();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(server.cli(&words).unwrap(), "OK");
}
