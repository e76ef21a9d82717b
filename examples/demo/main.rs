//! The main job in one command: several instances of a service, each a process
//! of its own, share limits through one Redis, and admit not one ask more than
//! the limits permit.
//!
//!     scripts/demo
//!
//! For each algorithm, all instances ask for the same keys as fast as they are
//! answered. `ceiling` is what the algorithm's definition permits over the time
//! that Redis's own clock measured; `allowed` may not be above it. p50 and p99
//! are of a whole decision, as a caller waits for it, on a machine that is kept
//! busy by all instances and Redis together.

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
use harness::Server;
use serde_json::json;
use tidegate::Gate;

use crate::fleet::Fleet;
use crate::scenario::{KEYS, LIMIT, SCENARIOS, Scenario, WINDOW};
use crate::table::{Row, Table};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Instances of a service share limits through one Redis: how many asks each
/// algorithm admits, how many its definition permits, and how long a decision
/// takes.
///
/// The Redis is the one at TIDEGATE_REDIS_URL, where that is set; else a
/// container where a Docker engine answers, else a redis-server process, which
/// ends with the demo.
#[derive(Debug, Parser)]
#[command(
    bin_name = "scripts/demo",
    after_help = "Exit status: 0; 1 if anything was over-admitted or failed."
)]
struct Options {
    /// How long to ask, for each algorithm
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// How many instances ask
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=64))]
    instances: u64,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Be an instance.
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

/// Whether the limits held and all decisions were made.
async fn run(options: &Options) -> Result<bool, Failure> {
    // First of all: a result that cannot be written would be found out last.
    let mut json = match &options.json {
        Some(path) => Some(File::create(path).map_err(|error| format!("{}: {error}", path.display()))?),
        None => None,
    };
    let server = Server::given_or_start()?;
    // Own keys, also beside another demo on the same Redis.
    let namespace = format!("demo-{:08x}", rand::random::<u32>());
    let limiter = instance::connect(server.url(), &namespace).await?;
    let mut fleet = Fleet::start(options.instances as usize, server.url(), &namespace).await?;

    // Not `println`, which panics when its reader has seen enough.
    let mut out = stdout();
    writeln!(out, "Redis: {}", server.how())?;
    writeln!(
        out,
        "{} instances ask for the same {} keys, {} s for each algorithm; each key's limit is {LIMIT} in {WINDOW:?}.\n",
        options.instances,
        KEYS.len(),
        options.seconds,
    )?;
    let mut table = Table::new(SCENARIOS.map(|it| it.title).to_vec(), options.instances as usize);
    let mut looks = Vec::new();
    for (index, scenario) in SCENARIOS.iter().enumerate() {
        let duration = Duration::from_secs_f64(options.seconds);
        let gate = limiter.gate(scenario.name, scenario.quota);
        begin_of_window(&gate).await?;
        let reports = fleet.ask(index, duration, |offered, allowed| table.progress(offered, allowed)).await?;
        looks.push(look(&server, &gate, scenario).await);
        table.rows.push(Row::new(*scenario, &reports)?);
        for key in KEYS {
            gate.reset(key).await?;
        }
    }
    table.finish()?;

    writeln!(out, "\nOne key of each algorithm, as it was at the end:\n\n{}", looks.join("\n\n"))?;
    if let Some(file) = &mut json {
        let result = json!({
            "redis": { "version": server.version(), "how": server.how() },
            "instances": options.instances,
            "rows": table.rows.iter().map(Row::json).collect::<Vec<_>>(),
        });
        writeln!(file, "{result:#}")?;
    }
    Ok(verdict(&table.rows))
}

/// Waits until a window of the server's clock has just begun: in the last
/// instants of one, more is permitted than can be asked for.
async fn begin_of_window(gate: &Gate) -> Result<(), Failure> {
    let now = Duration::from_micros(gate.peek(KEYS[0]).await?.server_now_us());
    let gone = Duration::from_nanos((now.as_nanos() % WINDOW.as_nanos()) as u64);
    tokio::time::sleep(WINDOW - gone).await;
    Ok(())
}

/// The redis-cli line that shows a key, and what it prints.
async fn look(server: &Server, gate: &Gate, scenario: &Scenario) -> String {
    let (command, rest) = scenario.look;
    let Ok(key) = gate.redis_key(KEYS[0]) else { return String::new() };
    // So that its window has not just ended.
    let _ = gate.check(KEYS[0]).await;
    let mut arguments = vec![command, &key];
    arguments.extend(rest);
    let printed = server.cli(&arguments).unwrap_or_else(|error| format!("({error})"));
    format!("$ redis-cli {}\n{printed}", arguments.join(" "))
}

fn verdict(rows: &[Row]) -> bool {
    let over: u64 = rows.iter().map(|row| row.over_admitted).sum();
    let failed: u64 = rows.iter().map(|row| row.failed).sum();
    if over > 0 {
        eprintln!("\nscripts/demo: {over} over-admitted");
    }
    if let Some(error) = rows.iter().find_map(|row| row.first_error.as_deref()) {
        eprintln!("\nscripts/demo: {failed} decisions failed, the first one with: {error}");
    }
    over == 0 && failed == 0
}
