use std::{net::TcpListener, path::Path};

use crate::{
    Error,
    clock::{self, Clock, OPTIONS},
    daemon, environment,
    lifeline::Lifeline,
};

const PROGRAM: &str = "redis-server";

/// A plain `redis-server` on a free port of the loopback interface.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) port: u16,
    pub(crate) program: String,
    options: Vec<String>,
    pub(crate) clock: Option<Clock>,
    lifeline: Option<Lifeline>,
}

impl Process {
    pub(crate) fn start(options: &[&str]) -> Result<Self, Error> {
        Self::launch(&program(), options, None)
    }

    /// Starts a different program than `redis-server`.
    pub(crate) fn start_program(program: &str, options: &[&str]) -> Result<Self, Error> {
        Self::launch(program, options, None)
    }

    pub(crate) fn start_with_clock() -> Result<Self, Error> {
        Self::launch(&program(), &[], Some(clock::library()?))
    }

    /// Starts a server on a port that was found free.
    pub(crate) fn start_on(port: u16, options: &[&str]) -> Result<Self, Error> {
        Self::check_program(PROGRAM)?;
        Self::launch_on(PROGRAM, port, options, None)
    }

    pub(crate) fn start_with_clock_on(port: u16, options: &[&str]) -> Result<Self, Error> {
        Self::check_program(PROGRAM)?;
        Self::launch_on(PROGRAM, port, options, Some(clock::library()?))
    }

    fn check_program(program: &str) -> Result<(), Error> {
        // An absolute path stays unchanged when it is joined to a folder of the PATH.
        match environment::on_path(program) {
            true => Ok(()),
            false if program == PROGRAM => Err(Error::NoBinary),
            false => Err(Error::Process(format!("{program} not found"))),
        }
    }

    fn launch(program: &str, options: &[&str], clock_library: Option<&Path>) -> Result<Self, Error> {
        Self::check_program(program)?;
        // Retries, because another process may take the free port before the server does.
        let mut attempts = 5;
        loop {
            attempts -= 1;
            match Self::launch_on(program, free_port()?, options, clock_library) {
                Err(Error::Process(log)) if attempts > 0 && log.contains("already in use") => {}
                result => return result,
            }
        }
    }

    fn launch_on(
        program: &str,
        port: u16,
        options: &[&str],
        clock_library: Option<&Path>,
    ) -> Result<Self, Error> {
        let port_option = port.to_string();
        let library = clock_library.unwrap_or(Path::new("")).to_string_lossy().into_owned();
        let arguments = [&library, program, "--port", &port_option, "--bind", "127.0.0.1"];
        let (folder, lifeline) = daemon::launch(
            PREPARE,
            &[&arguments, &OPTIONS[..], options].concat(),
            "Ready to accept connections",
        )?;
        let clock = match clock_library {
            Some(_) => Some(Clock::open(&folder.join("clock"))?),
            None => None,
        };
        let options = options.iter().map(ToString::to_string).collect();
        Ok(Self { port, program: program.to_owned(), options, clock, lifeline: Some(lifeline) })
    }

    pub(crate) fn kill(&mut self) {
        drop(self.lifeline.take());
    }

    /// Kills the server and starts another on the same port. The new server's clock is not shifted.
    pub(crate) fn restart(&mut self) -> Result<(), Error> {
        self.kill();
        let library = self.clock.as_ref().and(clock::library().ok());
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        *self = Self::launch_on(&self.program, self.port, &options, library)?;
        Ok(())
    }
}

fn program() -> String {
    environment::server().unwrap_or_else(|| PROGRAM.to_owned())
}

const PREPARE: &str = r#"
clock=$1 program=$2; shift 2
set -- "$program" --dir "$folder" "$@"
if [ -n "$clock" ]; then
    head -c 16 /dev/zero >"$folder/clock"
    set -- env LD_PRELOAD="$clock" TIDEGATE_CLOCK="$folder/clock" "$@"
fi
"#;

pub(crate) fn free_port() -> Result<u16, Error> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| Error::io("127.0.0.1", error))
}
