//! Sends commands to a server, over a connection and by redis-cli.

use std::{process::Command, time::Duration};

use crate::Error;

/// Long, for machines on which much else runs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns whether the server is Redis or Valkey, and its version. Ignores the Redis version that Valkey
/// reports for compatibility with old clients.
pub(crate) fn version(url: &str) -> Result<(&'static str, String), Error> {
    let mut connection = redis::Client::open(url)?.get_connection_with_timeout(CONNECT_TIMEOUT)?;
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let (name, version) = match field("valkey_version") {
        Some(version) => ("Valkey", version),
        None => ("Redis", field("redis_version").unwrap_or("of unknown version")),
    };
    Ok((name, version.trim().to_owned()))
}

/// Removes all keys.
pub(crate) fn flush(url: &str) -> Result<(), Error> {
    let mut connection = redis::Client::open(url)?.get_connection_with_timeout(CONNECT_TIMEOUT)?;
    Ok(redis::cmd("FLUSHALL").arg("SYNC").exec(&mut connection)?)
}

pub(crate) fn run_cli(url: &str, arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new("redis-cli")
        .args(["-u", url, "--no-raw"])
        .args(arguments)
        .output()
        .map_err(|error| Error::Cli(format!("{error}: run scripts/redis, or install Redis")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Cli(format!("{}: {stderr}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
