//! The Redis user with the least rights that suffice, as the README gives them.

use harness::Server;

pub(crate) const USER: &str = "tidegate";
pub(crate) const PASSWORD: &str = "PASSWORD";

/// What the limiter itself sends.
pub(crate) const SENT: [&str; 3] = ["EVAL", "EVALSHA", "PING"];

/// What the scripts call.
pub(crate) const CALLED: [&str; 23] = [
    "DECRBY",
    "GET",
    "HDEL",
    "HGET",
    "HGETALL",
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
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZREM",
    "ZREMRANGEBYRANK",
    "ZREMRANGEBYSCORE",
    "ZREVRANGE",
    "ZSCORE",
];

/// All of them, as an ACL names them.
pub(crate) fn rights() -> impl Iterator<Item = String> {
    SENT.iter().chain(&CALLED).map(|command| command.to_lowercase())
}

/// The command that makes the user.
pub(crate) fn line() -> String {
    let rights: Vec<String> = rights().map(|right| format!("+{right}")).collect();
    format!("ACL SETUSER {USER} reset on >{PASSWORD} ~tidegate:* {}", rights.join(" "))
}

/// Makes the user on a server, or makes it anew.
pub(crate) fn create_user(server: &Server) {
    let line = line();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(server.cli(&words).unwrap(), "OK");
}
