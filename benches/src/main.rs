//! Compares tidegate with other crates that decide in Redis: everything in one run, in interleaved rounds, against the same Redis.
//!
//!     scripts/bench --quick
//!
//! README.md describes each subject and how they differ.

mod bans;
mod bytes;
mod calendar;
mod case;
mod entrant;
#[cfg(feature = "serve")]
mod grpc;
mod holds;
#[cfg(feature = "http")]
mod http;
mod keys;
mod machine;
mod measure;
mod permits;
mod ratios;
#[cfg(feature = "regions")]
mod regions;
mod report;
mod rounds;
mod script_alone;
mod script_cases;
mod server;
mod subjects;

use std::fs::File;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use serde_json::{Value as Json, json};
use tidegate_testkit::Server;
use tokio::runtime::Runtime;

use crate::case::Case;
use crate::report::Report;
use crate::rounds::Row;
use crate::server::Target;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Compares tidegate with other crates that decide in Redis, in interleaved rounds against one Redis.
///
/// Uses the Redis at TIDEGATE_REDIS_URL if set, else starts a redis-server process that ends with the run.
/// Prints a table as Markdown.
#[derive(Debug, Parser)]
#[command(
    bin_name = "scripts/bench",
    after_help = "Exit status: 0; 1 if tidegate failed or decided wrongly. A failed peer only marks its row."
)]
struct Options {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// 5 rounds of 0.25 s: less than 3 minutes
    #[arg(long, global = true)]
    quick: bool,
    /// Number of rounds [default: 7, or 5 with --quick]
    #[arg(long, global = true, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Measured seconds per subject and round [default: 1.5, or 0.25 with --quick]
    #[arg(long, global = true, value_parser = seconds)]
    seconds: Option<f64>,
    /// Only these cases, separated by commas
    #[arg(long, value_parser = case_by_name, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Also write all figures as JSON to this file
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// Also write a chart as SVG to this file
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Ten million distinct keys in tenths, beside a minimal script
    Keys {
        /// Number of keys
        #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
        count: u64,
    },
    /// The scripts of in-flight limits, beside the token bucket and a script written by hand
    Permits,
    /// The script of calendar windows, beside those of other fixed windows
    Calendar,
    /// The scripts of reservations, beside plain groups and scripts written by hand
    Holds,
    /// The script of gates with a ban, beside those of the same gates without one
    Bans,
    /// Limits of several regions: the cost of a check, traffic, load and cuts
    #[cfg(feature = "regions")]
    Regions {
        /// Only these parts [default: all]
        parts: Vec<regions::Part>,
    },
    /// A service without limits, with tidegate's layer, and with its peers' layers
    #[cfg(feature = "http")]
    Http,
    /// One of those services, in a process of its own
    #[cfg(feature = "http")]
    #[command(hide = true)]
    HttpService { service: http::Service, pattern: http::Pattern, redis: String },
    /// The rate-limit service over gRPC, beside one that decides nothing and one written by hand
    #[cfg(feature = "serve")]
    Serve,
    /// Instructions and allocations of these services per decision, under valgrind
    #[cfg(feature = "serve")]
    ServeCosts,
    /// One of those services, in a process of its own
    #[cfg(feature = "serve")]
    #[command(hide = true)]
    GrpcService { service: grpc::Service, prefix: String, redis: String },
}

impl Options {
    fn rounds_and_length(&self) -> (usize, Length) {
        let rounds = self.rounds.unwrap_or(if self.quick { 5 } else { 7 }) as usize;
        let measured = self.seconds.unwrap_or(if self.quick { 0.25 } else { 1.5 });
        let measured = Duration::from_secs_f64(measured);
        let warm = (measured / 5).clamp(Duration::from_millis(100), Duration::from_millis(500));
        (rounds, Length { warm, measured })
    }
}

/// The time of a subject in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    pub(crate) warm: Duration,
    pub(crate) measured: Duration,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.05 to 600".to_owned()),
    }
}

fn case_by_name(text: &str) -> Result<Case, String> {
    let names = Case::ALL.map(Case::name).join(", ");
    Case::ALL.into_iter().find(|case| case.name() == text).ok_or_else(|| format!("none of {names}"))
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scripts/bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every round of tidegate succeeded.
fn run(options: &Options) -> Result<bool, Failure> {
    // Creates the files first, so that a path that cannot be written fails before the benchmark and not after
    // it.
    let json = options.json.as_deref().map(create).transpose()?;
    let chart = options.chart.as_deref().map(create).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match options.mode {
        Some(Mode::Keys { count }) => run_keys(&runtime, count, json),
        Some(Mode::Permits) => run_scripts(options, json, "token bucket", permits::run),
        Some(Mode::Calendar) => run_scripts(options, json, "fixed window", calendar::run),
        Some(Mode::Holds) => run_scripts(options, json, "plain group", holds::run),
        Some(Mode::Bans) => run_scripts(options, json, "take", bans::run),
        #[cfg(feature = "regions")]
        Some(Mode::Regions { ref parts }) => run_regions(&runtime, options, parts, json),
        #[cfg(feature = "http")]
        Some(Mode::Http) => run_http(&runtime, options, json),
        #[cfg(feature = "http")]
        Some(Mode::HttpService { service, pattern, ref redis }) => {
            runtime.block_on(http::serve(service, pattern, redis)).map(|()| true)
        }
        #[cfg(feature = "serve")]
        Some(Mode::Serve) => run_serve(&runtime, options, json),
        #[cfg(feature = "serve")]
        Some(Mode::ServeCosts) => {
            write!(stdout(), "{}", runtime.block_on(grpc::costs(&main_server()?))?)?;
            Ok(true)
        }
        #[cfg(feature = "serve")]
        Some(Mode::GrpcService { service, ref prefix, ref redis }) => {
            runtime.block_on(grpc::serve(service, prefix, redis)).map(|()| true)
        }
        None => run_cases(&runtime, options, json, chart),
    }
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn run_keys(runtime: &Runtime, count: u64, json: Option<File>) -> Result<bool, Failure> {
    let target = Arc::new(main_server()?);
    // A server given by URL has no second one to compare with.
    let is_given = variable("TIDEGATE_REDIS_URL").is_some();
    let by_hand = if is_given { None } else { Some(main_server()?) };
    let slices = keys::run(runtime, &target, by_hand.as_ref(), count, 10)?;
    if is_given {
        target.clean()?;
    }
    progress("");
    writeln!(stdout(), "{} cores; {}\n\n{}", measure::cores(), target.how(), report::keys(&slices))?;
    if let Some(mut file) = json {
        let machine: serde_json::Map<_, _> =
            machine::machine(&[target]).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let slices: Vec<_> = slices.iter().map(keys::Slice::json).collect();
        writeln!(file, "{:#}", json!({ "machine": machine, "keys": slices }))?;
    }
    Ok(true)
}

/// Runs scripts without a client. `unit` names the script whose speed is 1.
fn run_scripts(
    options: &Options,
    json: Option<File>,
    unit: &str,
    run: fn(&Target, usize, u64) -> Result<Vec<Json>, Failure>,
) -> Result<bool, Failure> {
    let target = Arc::new(main_server()?);
    let (rounds, length) = options.rounds_and_length();
    // About as many keys as Redis handles in the time of a round.
    let calls = (length.measured.as_secs_f64() * 40_000.0) as u64;
    let rows = run(&target, rounds, calls)?;
    if variable("TIDEGATE_REDIS_URL").is_some() {
        target.clean()?;
    }
    writeln!(
        stdout(),
        "{} cores; {}\n\n{}",
        measure::cores(),
        target.how(),
        script_cases::table(&rows, unit)
    )?;
    if let Some(mut file) = json {
        let machine: serde_json::Map<_, _> =
            machine::machine(&[target]).into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        writeln!(file, "{:#}", json!({ "machine": machine, "scripts": rows }))?;
    }
    Ok(true)
}

#[cfg(feature = "regions")]
fn run_regions(
    runtime: &Runtime,
    options: &Options,
    parts: &[regions::Part],
    json: Option<File>,
) -> Result<bool, Failure> {
    let parts = if parts.is_empty() { clap::ValueEnum::value_variants() } else { parts };
    writeln!(stdout(), "{} cores; {}\n", measure::cores(), machine::processor())?;
    let mut results = serde_json::Map::new();
    for part in parts {
        let (table, figures) = part.run(runtime, options)?;
        writeln!(stdout(), "{table}")?;
        results.insert(format!("{part:?}").to_lowercase(), figures);
    }
    if let Some(mut file) = json {
        writeln!(file, "{:#}", Json::from(results))?;
    }
    Ok(true)
}

#[cfg(feature = "http")]
fn run_http(runtime: &Runtime, options: &Options, json: Option<File>) -> Result<bool, Failure> {
    let target = Arc::new(main_server()?);
    let (rounds, length) = options.rounds_and_length();
    let cases = runtime.block_on(http::run(&target, rounds, length))?;
    write_services(options, &target, &http::table(&cases), http::json(&cases), json)
}

#[cfg(feature = "serve")]
fn run_serve(runtime: &Runtime, options: &Options, json: Option<File>) -> Result<bool, Failure> {
    let target = Arc::new(main_server()?);
    let (rounds, length) = options.rounds_and_length();
    let cases = runtime.block_on(grpc::run(&target, rounds, length))?;
    if variable("TIDEGATE_REDIS_URL").is_some() {
        target.clean()?;
    }
    write_services(options, &target, &grpc::table(&cases), grpc::json(&cases), json)
}

/// Writes the results of services that ran as processes.
#[cfg(any(feature = "http", feature = "serve"))]
fn write_services(
    options: &Options,
    target: &Arc<Target>,
    table: &str,
    mut results: Json,
    json: Option<File>,
) -> Result<bool, Failure> {
    let (rounds, length) = options.rounds_and_length();
    writeln!(stdout(), "{} cores; {}\n\n{table}", measure::cores(), target.how())?;
    if let Some(mut file) = json {
        let machine = machine::machine(std::slice::from_ref(target)).into_iter();
        let mut machine: serde_json::Map<_, _> =
            machine.map(|(name, value)| (name.to_owned(), value)).collect();
        machine.insert(
            "rounds".to_owned(),
            json!(format!("{rounds} of {:.2} s", length.measured.as_secs_f64())),
        );
        results["machine"] = machine.into();
        writeln!(file, "{results:#}")?;
    }
    Ok(true)
}

fn run_cases(
    runtime: &Runtime,
    options: &Options,
    json: Option<File>,
    chart: Option<File>,
) -> Result<bool, Failure> {
    let (rounds, length) = options.rounds_and_length();
    let all = options.cases.is_empty();

    let targets = servers()?;
    let mut machine = machine::machine(&targets);
    machine.push(("rounds", json!(format!("{rounds} of {:.2} s", length.measured.as_secs_f64()))));
    let mut rows = Vec::new();
    for case in Case::ALL {
        if all || options.cases.contains(&case) {
            rows.extend(rounds::run(runtime, case, &targets, rounds, length));
        }
    }
    let scripts = if all { Some(script_alone::run(&targets[0], rounds, length)?) } else { None };
    let bytes_per_key = if all { bytes::run(runtime, &targets[0])? } else { Vec::new() };
    if variable("TIDEGATE_REDIS_URL").is_some() {
        targets[0].clean()?;
    }
    let ratios = ratios::all(&rows, scripts.as_ref());
    let report = Report { machine, rows, ratios, scripts, bytes_per_key };

    // `println` would panic when the reader closes the pipe.
    write!(stdout(), "{}", report::table(&report))?;
    if let Some(mut file) = json {
        writeln!(file, "{:#}", report::json(&report))?;
    }
    if let Some(mut file) = chart {
        file.write_all(report::svg(&report).as_bytes())?;
    }
    for row in &report.rows {
        if let Some(reason) = &row.failed {
            eprintln!("scripts/bench: {} in {} on {}: {reason}", row.info.name, row.case.name(), row.server);
        }
    }
    Ok(!report.rows.iter().any(Row::fails_the_run))
}

/// Returns the server given by URL, or starts a process, with the redis-cell module if its path is given.
fn main_server() -> Result<Target, Failure> {
    if variable("TIDEGATE_REDIS_URL").is_some() {
        return Target::new(Server::given_or_start()?);
    }
    let server = match variable("TIDEGATE_REDIS_CELL") {
        Some(module) => Server::process(&["--loadmodule", &module])?,
        None => Server::process(&[])?,
    };
    Target::new(server)
}

/// Returns the servers to run on. All subjects run on the first. trypema needs a newer version than many
/// systems have. If the first is too old and a newer one is given, trypema runs on the newer one, together
/// with tidegate and a baseline.
fn servers() -> Result<Vec<Arc<Target>>, Failure> {
    let main = main_server()?;
    let mut targets = vec![Arc::new(main)];
    if let (false, Some(program)) = (targets[0].is_7_2, variable("TIDEGATE_BENCH_VALKEY")) {
        match Server::process_of(&program, &[]).map_err(Failure::from).and_then(Target::new) {
            Ok(newer) => targets.push(Arc::new(newer)),
            Err(error) => eprintln!("scripts/bench: {program}: {error}"),
        }
    }
    Ok(targets)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Shows the progress on a terminal. An empty text clears it.
pub(crate) fn progress(text: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
    }
}
