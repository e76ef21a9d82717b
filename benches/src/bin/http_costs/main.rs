//! Counts the work of a rate limit per HTTP request: allocations, their bytes, and instructions, above the same
//! service without the limit. The services run in this process, without sockets. So the figures do not depend on
//! other load of the machine, unlike times.
//!
//!     scripts/bench http-costs
//!
//! To find where the instructions are, run one service alone, which prints the headers of its last response:
//!
//!     valgrind --tool=callgrind benches/target/release/http-costs run axum one-gate memory 7168 redis://127.0.0.1

mod count;
#[path = "../../http/peers.rs"]
mod peers;
mod services;

use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use tidegate_testkit::Server;

use self::count::Count;
use self::services::{Case, Framework, Limit, Store};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Requests per run of callgrind: the instructions of the difference are those of the requests alone.
const INSTRUCTED: [u64; 2] = [1_024, 7_168];

/// Counts allocations, bytes and instructions per request that a rate limit adds to an HTTP service.
///
/// Uses the Redis at TIDEGATE_REDIS_URL if set, else starts a redis-server process that ends with the run.
/// Instructions need valgrind.
#[derive(Debug, Parser)]
#[command(bin_name = "scripts/bench http-costs")]
struct Options {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Counted requests of each service
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    requests: u64,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Sends requests to one of the services, to be observed by another tool
    #[command(hide = true)]
    Run { framework: Framework, limit: Limit, store: Store, requests: u64, redis: String },
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripts/bench http-costs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    if let Some(Mode::Run { framework, limit, store, requests, redis }) = &options.mode {
        let case = Case { framework: *framework, limit: *limit, store: *store };
        let (_, headers) = services::count(case, *requests, redis)?;
        headers.iter().for_each(|(name, value)| println!("{name}: {value:?}"));
        return Ok(());
    }
    let server = Server::given_or_start()?;
    println!(
        "| service | limit | state | headers | allocations | bytes | instructions |\n\
         | --- | --- | --- | ---: | ---: | ---: | ---: |"
    );
    for framework in Framework::ALL {
        let mut without: Option<Measured> = None;
        for case in Case::all(framework) {
            let measured = Measured::of(case, options.requests, server.url())?;
            let Some(without) = &without else {
                without = Some(measured);
                continue;
            };
            let (limit, store) = (case.limit.name(), case.store.name());
            println!("| {} | {limit} | {store} | {} |", framework.name(), measured.above(without));
        }
    }
    Ok(())
}

/// The work of a service per request.
struct Measured {
    headers: usize,
    count: Count,
    instructions: Option<f64>,
}

impl Measured {
    fn of(case: Case, requests: u64, redis: &str) -> Result<Self, Failure> {
        let (count, headers) = services::count(case, requests, redis)?;
        Ok(Self { headers: headers.len(), count, instructions: instructions(case, redis)? })
    }

    /// Returns the cells of the difference.
    fn above(&self, other: &Self) -> String {
        let instructions = self.instructions.zip(other.instructions).map(|(with, without)| with - without);
        let instructions = instructions.map_or_else(|| "-".to_owned(), |it| format!("{it:.0}"));
        let headers = self.headers - other.headers;
        let allocations = self.count.allocations - other.count.allocations;
        let bytes = self.count.bytes - other.count.bytes;
        format!("{headers} | {allocations:.1} | {bytes:.0} | {instructions}")
    }
}

/// Returns the instructions per request as callgrind counts them. `None` without valgrind.
fn instructions(case: Case, redis: &str) -> Result<Option<f64>, Failure> {
    let mut counted = [0.0; 2];
    for (requests, counted) in INSTRUCTED.into_iter().zip(&mut counted) {
        let Case { framework, limit, store } = case;
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe()?)
            .args(["run", framework.name(), limit.name(), store.name(), &requests.to_string(), redis])
            .output();
        let Ok(output) = output else { return Ok(None) };
        let report = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("valgrind: {report}").into());
        }
        // `==42== Collected : 123456`
        let collected = report.lines().find_map(|line| line.split_once("Collected : "));
        *counted = collected.ok_or("valgrind reported no number of instructions")?.1.trim().parse()?;
    }
    let [few, many] = counted;
    Ok(Some((many - few) / (INSTRUCTED[1] - INSTRUCTED[0]) as f64))
}
