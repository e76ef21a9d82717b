//! Shows the key of each algorithm in Redis, with redis-cli.
//!
//!     cargo run --example keys
//!
//! Starts a separate Redis (see `scripts/redis`). Prints all times as if it were 2026-01-01 00:00 UTC, so
//! that every run has the same output.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::time::Duration;

use tidegate::{Acquired, Limiter, Quota, Rate};
use tidegate_testkit::Server;

type Failure = Box<dyn std::error::Error>;

const MINUTE: Duration = Duration::from_secs(60);
/// An hour, so that a clock-aligned window rarely ends during the run.
const HOUR: Duration = Duration::from_secs(3_600);
const NEW_YEAR_US: u64 = 1_767_225_600_000_000;
/// The default of `Builder::permit_ttl`.
const LEASE_US: u64 = 10_000_000;

const QUOTAS: [Quota; 6] = [
    Quota::token_bucket(5, Rate::per_minute(5)),
    Quota::leaky_bucket(5, Rate::per_minute(5)),
    Quota::fixed_window(5, MINUTE),
    Quota::fixed_window(5, HOUR).aligned_to_clock(),
    Quota::sliding_log(5, MINUTE),
    Quota::sliding_counter(5, MINUTE),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let server = Server::start()?;
    let limiter = Limiter::builder().url(server.url()).deadline(Duration::from_secs(5)).build()?;
    for quota in QUOTAS {
        let gate = limiter.gate("login", quota);
        let costs: &[u64] = if quota.algorithm() == "sliding_log" { &[1, 2] } else { &[3] };
        let mut stamps = Vec::new();
        for &cost in costs {
            stamps.push(gate.check_cost("user:42", cost).await?.server_now_us());
        }
        let key = gate.redis_key("user:42")?;
        println!("# {quota}: {} used", costs.iter().map(u64::to_string).collect::<Vec<_>>().join(", then "));
        match quota.algorithm() {
            "sliding_log" => look(&server, &["ZRANGE", &key, "0", "-1", "WITHSCORES"], &stamps)?,
            "fixed_window" => look(&server, &["GET", &key], &stamps)?,
            _ => look(&server, &["HGETALL", &key], &stamps)?,
        }
        if quota == QUOTAS[2] {
            look(&server, &["TTL", &key], &stamps)?;
        }
        println!();
    }
    look_at_permits(&server, &limiter).await
}

/// Prints the key of an in-flight limit, as if this process had a readable name.
async fn look_at_permits(server: &Server, limiter: &Limiter) -> Result<(), Failure> {
    let quota = Quota::in_flight(5);
    let gate = limiter.gate("login", quota);
    let Acquired::Admitted(permit, decision) = gate.key("user:42").cost(3).acquire().await? else {
        return Err("denied a permit although nothing is held".into());
    };
    let key = gate.redis_key("user:42")?;
    println!("# {quota}: 3 held by one process");
    let printed = at_new_year(server.cli(&["HGETALL", &key])?, &[decision.server_now_us()]);
    let lines = printed.lines().map(|line| match (line.split_once(" sure until "), line.split_once('/')) {
        (Some((held, _)), _) => format!("{held} sure until {}\"", NEW_YEAR_US + LEASE_US),
        (None, Some((name, ttl))) if name.contains(") \"") => {
            format!("{}) \"web-1.3f2a/{ttl}", &name[..name.find(')').unwrap_or_default()])
        }
        _ => line.to_owned(),
    });
    println!("$ redis-cli HGETALL {key}\n{}\n", lines.collect::<Vec<_>>().join("\n"));
    drop(permit);
    Ok(())
}

/// Prints a redis-cli command and its output.
fn look(server: &Server, command: &[&str], stamps: &[u64]) -> Result<(), Failure> {
    let printed = at_new_year(server.cli(command)?, stamps);
    println!("$ redis-cli {}\n{printed}", command.join(" "));
    Ok(())
}

/// Replaces the times of the checks, or of their windows, by times one second apart from the new year on.
fn at_new_year(mut printed: String, stamps: &[u64]) -> String {
    for (stamp, new) in stamps.iter().zip((NEW_YEAR_US..).step_by(1_000_000)) {
        for window in [Duration::from_micros(1), MINUTE, HOUR] {
            let start = stamp - stamp % window.as_micros() as u64;
            printed = printed.replace(&start.to_string(), &new.to_string());
        }
    }
    printed
}
