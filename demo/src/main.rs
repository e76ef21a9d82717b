//! The main use case in one command: several instances of a service, each a separate process, share limits
//! through one Redis, and admit no check beyond the limits.
//!
//!     scripts/demo
//!
//! For each algorithm, all instances check the same keys, each as fast as its checks complete. `ceiling` is
//! the maximum that the algorithm's definition permits over the time that Redis's clock measured. `allowed`
//! must not exceed it. p50 and p99 are the time that a caller waits for a decision, on a machine that all
//! instances and Redis keep busy.

mod ceiling;
mod fleet;
mod instance;
mod scenario;
mod table;

use std::fs::File;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use tidegate::Gate;
use tidegate_testkit::Server;

use crate::fleet::Fleet;
use crate::scenario::{KEYS, LIMIT, SCENARIOS, Scenario, WINDOW};
use crate::table::{Row, Table};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Instances of a service share limits through one Redis. Prints how many checks each algorithm admits, how
/// many its definition permits, and how long a decision takes.
///
/// Uses the Redis at TIDEGATE_REDIS_URL if set. Otherwise starts a redis-server process, which ends with the demo.
#[derive(Debug, Parser)]
#[command(
    bin_name = "scripts/demo",
    after_help = "Exit status: 0; 1 if anything was over-admitted or failed."
)]
struct Options {
    /// Seconds of checks per algorithm
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Number of instances
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    instances: u64,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run as an instance.
    #[arg(long = fleet::INSTANCE, hide = true)]
    is_instance: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.1 to 600".to_owned()),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::from);
    let done = done.and_then(|runtime| match options.is_instance {
        true => runtime.block_on(instance::run()).map(|()| true),
        false => runtime.block_on(run(&options)),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scripts/demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the limits held and no decision failed.
async fn run(options: &Options) -> Result<bool, Failure> {
    // Opens the file first, so that an unwritable path fails before the run and not after it.
    let mut json = match &options.json {
        Some(path) => Some(File::create(path).map_err(|error| format!("{}: {error}", path.display()))?),
        None => None,
    };
    let server = Server::given_or_start()?;
    // A random namespace, so that several demos can use the same Redis.
    let namespace = format!("demo-{:08x}", fastrand::u32(..));
    let limiter = instance::connect(server.url(), &namespace).await?;
    let mut fleet = Fleet::start(options.instances as usize, server.url(), &namespace).await?;

    // `println` would panic when the reader closes the pipe.
    let mut out = stdout();
    writeln!(out, "Redis: {}", server.how())?;
    writeln!(
        out,
        "{} instances check the same {} keys, {} s per algorithm; \
         each key's limit is {LIMIT} in {WINDOW:?}.\n",
        options.instances,
        KEYS.len(),
        options.seconds,
    )?;
    let mut table = Table::new(SCENARIOS.map(|scenario| scenario.title).to_vec(), options.instances as usize);
    let mut sessions = Vec::new();
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        let duration = Duration::from_secs_f64(options.seconds);
        let gate = limiter.gate(scenario.name, scenario.quota);
        begin_of_window(&gate).await?;
        let reports = fleet.run(index, duration, |offered, allowed| table.progress(offered, allowed)).await?;
        sessions.push(show_key(&server, &gate, scenario).await);
        table.rows.push(Row::new(*scenario, &reports)?);
        for key in KEYS {
            gate.reset(key).await?;
        }
    }
    table.finish()?;

    writeln!(out, "\nOne key of each algorithm at the end:\n\n{}", sessions.join("\n\n"))?;
    if let Some(file) = &mut json {
        let result = json!({
            "redis": { "version": server.version(), "how": server.how() },
            "instances": options.instances,
            "rows": table.rows.iter().map(Row::json).collect::<Vec<_>>(),
        });
        writeln!(file, "{result:#}")?;
    }
    Ok(limits_held(&table.rows))
}

/// Waits until a window of the server's clock begins. Near the end of a window, the definition permits more
/// checks than the instances can send.
async fn begin_of_window(gate: &Gate) -> Result<(), Failure> {
    let now = Duration::from_micros(gate.peek(KEYS[0]).await?.server_now_us());
    let gone = Duration::from_nanos((now.as_nanos() % WINDOW.as_nanos()) as u64);
    tokio::time::sleep(WINDOW - gone).await;
    Ok(())
}

/// Returns the redis-cli command that shows a key, with its output.
async fn show_key(server: &Server, gate: &Gate, scenario: &Scenario) -> String {
    let (command, rest) = scenario.look;
    let Ok(key) = gate.redis_key(KEYS[0]) else { return String::new() };
    // Ensures that the key exists: its window may have just ended.
    let _ = gate.check(KEYS[0]).await;
    let mut arguments = vec![command, &key];
    arguments.extend(rest);
    let printed = server.cli(&arguments).unwrap_or_else(|error| format!("({error})"));
    format!("$ redis-cli {}\n{printed}", arguments.join(" "))
}

/// Returns whether nothing was over-admitted and nothing failed. Prints each violation.
fn limits_held(rows: &[Row]) -> bool {
    let over: u64 = rows.iter().map(|row| row.over_admitted).sum();
    let failed: u64 = rows.iter().map(|row| row.failed).sum();
    if over > 0 {
        eprintln!("\nscripts/demo: {over} checks over-admitted");
    }
    if let Some(error) = rows.iter().find_map(|row| row.first_error.as_deref()) {
        eprintln!("\nscripts/demo: {failed} decisions failed; first error: {error}");
    }
    over == 0 && failed == 0
}
