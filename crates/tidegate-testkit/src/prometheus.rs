use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use crate::{Error, daemon, environment, lifeline::Lifeline, process::free_port};

const READY: &str = "Server is ready to receive web requests";
/// Upper bound for the time until `READY`.
const START: Duration = Duration::from_secs(30);

/// A Prometheus from the PATH or from `scripts/prometheus`. Dropping this value stops it.
#[derive(Debug)]
pub struct Prometheus {
    port: u16,
    _lifeline: Lifeline,
}

impl Prometheus {
    /// Starts Prometheus with the text of a `prometheus.yml`, in which paths are absolute.
    ///
    /// # Errors
    ///
    /// If there is no Prometheus, or if it exits at once; the error contains its log.
    pub fn start(config: &str) -> Result<Self, Error> {
        let program = program("prometheus")?;
        let port = free_port()?;
        let arguments = [&*program.to_string_lossy(), &port.to_string(), config];
        let (folder, lifeline) = daemon::launch(PREPARE, &arguments, STARTED)?;
        let start = Instant::now();
        loop {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            if log.contains(READY) {
                return Ok(Self { port, _lifeline: lifeline });
            }
            if start.elapsed() > START || log.to_lowercase().contains("level=error") {
                return Err(Error::Prometheus(log));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Runs promtool to completion in `folder`.
///
/// # Errors
///
/// If there is no promtool.
pub fn promtool(folder: &Path, arguments: &[&str]) -> Result<Output, Error> {
    let program = program("promtool")?;
    let output = Command::new(&program).args(arguments).current_dir(folder).output();
    output.map_err(|error| Error::io(program, error))
}

fn program(name: &str) -> Result<PathBuf, Error> {
    environment::program(name, "prometheus").ok_or_else(|| Error::NoPrometheus(name.to_owned()))
}

const STARTED: &str = "prometheus begins";

/// Writes the log to a file: a Go program exits when its output pipe has no reader.
const PREPARE: &str = r#"
program=$1 port=$2
printf '%s' "$3" >"$folder/prometheus.yml"
set -- sh -c 'log=$1; shift; echo "prometheus begins"; exec "$@" >"$log" 2>&1' sh "$folder/log" \
    "$program" --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" \
    --web.listen-address="127.0.0.1:$port"
"#;
