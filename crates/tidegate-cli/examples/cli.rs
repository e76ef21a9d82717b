//! Prints a session with the command-line tool.
//!
//!     cargo run -p tidegate-cli --example cli
//!
//! Runs the tool against a Redis of its own (see `scripts/redis`), whose clock is stopped, so that each run
//! has the same output. Build the tool first: `cargo build -p tidegate-cli`.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::env;
use std::process::Command;
use std::time::Duration;

use tidegate::admin::Inspector;
use tidegate::{Limiter, Quota, Rate};
use tidegate_testkit::Server;

type Failure = Box<dyn std::error::Error>;

/// 2026-01-01 00:20 UTC.
const NOW_US: u64 = 1_767_226_800_000_000;

const SESSION: [&str; 6] = [
    "inspect",
    "inspect user:42",
    "block user:43 --gate login --for 1h --yes",
    "top --once --limit 3",
    "switch api shadow --for 90m --yes",
    "forget user:42 --yes",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let server = Server::with_shiftable_clock()?;
    server.freeze_clock(NOW_US);
    let limiter = Limiter::builder().url(server.url()).deadline(Duration::from_secs(5)).build()?;
    let login = limiter.gate("login", Quota::token_bucket(5, Rate::per_minute(5)));
    let api = limiter.gate("api", Quota::fixed_window(1_000, Duration::from_secs(3_600)).aligned_to_clock());
    login.penalize("user:42", 6).await?;
    login.penalize("user:44", 2).await?;
    api.penalize("user:42", 17).await?;
    api.penalize("user:44", 250).await?;

    // The first heartbeat is sent in the background.
    let inspector = Inspector::new(&limiter)?;
    while inspector.instances().await? == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    let program = env::current_exe()?;
    let program =
        program.parent().and_then(|examples| examples.parent()).ok_or("no folder")?.join("tidegate");
    for (index, arguments) in SESSION.into_iter().enumerate() {
        let mut command = Command::new(&program);
        command
            .args(arguments.split(' '))
            .env("TIDEGATE_REDIS_URL", server.url())
            .env_remove("TIDEGATE_NAMESPACE");
        let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
        if !output.status.success() {
            return Err(format!("{arguments}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let separator = if index == 0 { "" } else { "\n" };
        println!("{separator}$ tidegate {arguments}\n{}", String::from_utf8_lossy(&output.stdout).trim_end());
    }
    Ok(())
}
