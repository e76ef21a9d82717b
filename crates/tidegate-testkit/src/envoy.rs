use std::{
    fs, thread,
    time::{Duration, Instant},
};

use crate::{Error, daemon, environment, lifeline::Lifeline, process::free_port};

/// Envoy logs this once its listeners are open.
const READY: &str = "starting workers";
/// Upper bound for the time until `READY`.
const START: Duration = Duration::from_secs(30);

/// An Envoy from the PATH or from `scripts/envoy`. Dropping this value stops it.
#[derive(Debug)]
pub struct Envoy {
    port: u16,
    _lifeline: Lifeline,
}

impl Envoy {
    /// Starts Envoy with the text of its configuration, in which `{port}` stands for the port of its listener.
    ///
    /// # Errors
    ///
    /// If there is no Envoy, or if it exits at once; the error contains its log.
    pub fn start(config: &str) -> Result<Self, Error> {
        let program = environment::program("envoy", "envoy").ok_or(Error::NoEnvoy)?;
        let port = free_port()?;
        let config = config.replace("{port}", &port.to_string());
        let (folder, lifeline) = daemon::launch(PREPARE, &[&*program.to_string_lossy(), &config], STARTED)?;
        let start = Instant::now();
        loop {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            if log.contains(READY) {
                return Ok(Self { port, _lifeline: lifeline });
            }
            if start.elapsed() > START || log.contains("[critical]") {
                return Err(Error::Envoy(log));
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

const STARTED: &str = "envoy begins";

/// Writes the log to a file: nothing reads a pipe after the start. Without hot restart, Envoy uses no shared memory,
/// so that several can run.
const PREPARE: &str = r#"
program=$1
printf '%s' "$2" >"$folder/envoy.yaml"
set -- sh -c 'log=$1; shift; echo "envoy begins"; exec "$@" >"$log" 2>&1' sh "$folder/log" \
    "$program" --config-path "$folder/envoy.yaml" --disable-hot-restart --concurrency 1 --log-level info
"#;
