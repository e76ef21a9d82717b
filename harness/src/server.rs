use std::process::Command;

use crate::{
    Error,
    container::{self, Container},
    environment::{self, Kind},
    process::Process,
};

/// A Redis that ends with this value.
#[derive(Debug)]
pub struct Server {
    url: String,
    version: String,
    how: String,
    running: Running,
}

#[derive(Debug)]
enum Running {
    Container(Box<Container>),
    Process(Process),
}

impl Server {
    /// Starts a container, or else a process.
    ///
    /// # Errors
    ///
    /// What each kind lacked.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(&[])
    }

    /// Like [`start`](Self::start), with further options of redis-server: `["--maxmemory", "10mb"]`.
    ///
    /// # Errors
    ///
    /// What each kind lacked.
    pub fn start_with(options: &[&str]) -> Result<Self, Error> {
        let no_container = match environment::forced_kind()? {
            Some(Kind::Container) => return Self::container(options),
            Some(Kind::Process) if environment::ci() && container::engine_answers() => {
                return Err(Error::NotInContainer("TIDEGATE_REDIS=process".to_owned()));
            }
            Some(Kind::Process) => return Self::process(options),
            None => match Self::container(options) {
                Ok(server) => return Ok(server),
                Err(error) => error,
            },
        };
        if environment::ci() && !matches!(no_container, Error::NoEngine { .. }) {
            return Err(Error::NotInContainer(no_container.to_string()));
        }
        match Self::process(options) {
            Ok(mut server) => {
                server.how = format!("{}, since {no_container}", server.how);
                Ok(server)
            }
            Err(process) => Err(Error::Neither { container: no_container.into(), process: process.into() }),
        }
    }

    /// Starts a plain `redis-server` process, for tests that stop or kill it.
    ///
    /// # Errors
    ///
    /// If there is no `redis-server`, or it ends at once.
    pub fn process(options: &[&str]) -> Result<Self, Error> {
        Self::of_process(Process::start(options)?)
    }

    /// Starts a plain `redis-server` process whose clock [`shift_clock`](Self::shift_clock) moves.
    ///
    /// # Errors
    ///
    /// If there is no `redis-server`, or this system has no way to shift its clock.
    pub fn with_shiftable_clock() -> Result<Self, Error> {
        Self::of_process(Process::start_with_clock()?)
    }

    fn container(options: &[&str]) -> Result<Self, Error> {
        let container = Container::start(options)?;
        let url = format!("redis://{}:{}", container.host, container.port);
        let what = format!("container {}", container.image);
        Self::new(url, &what, Running::Container(container.into()))
    }

    fn of_process(process: Process) -> Result<Self, Error> {
        let url = format!("redis://127.0.0.1:{}", process.port);
        Self::new(url, "redis-server process", Running::Process(process))
    }

    fn new(url: String, what: &str, running: Running) -> Result<Self, Error> {
        let version = version(&url)?;
        Ok(Self { url, how: format!("{what} (Redis {version})"), version, running })
    }

    /// `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's version, as it says itself.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// What runs: `container redis:7.0-local (Redis 7.0.15)`. If it is a process for want of a
    /// container, also why.
    #[must_use]
    pub fn how(&self) -> String {
        self.how.clone()
    }

    /// Runs redis-cli; its output as on a terminal (`1) "used"`), without the last line's end.
    ///
    /// # Errors
    ///
    /// If there is no redis-cli, or it fails. A server's error reply is output: `(error) ERR …`.
    pub fn cli(&self, arguments: &[&str]) -> Result<String, Error> {
        let output = match &self.running {
            Running::Container(container) if !environment::on_path("redis-cli") => {
                container.run(&[&["redis-cli", "--no-raw"], arguments].concat())?
            }
            _ => run_cli(&self.url, arguments)?,
        };
        Ok(output.trim_end_matches('\n').to_owned())
    }

    /// Kills the server and starts it anew on the same port, with nothing in it.
    ///
    /// # Errors
    ///
    /// If it does not start.
    ///
    /// # Panics
    ///
    /// If it is a container, whose port would change.
    pub fn restart(&mut self) -> Result<(), Error> {
        match &mut self.running {
            Running::Container(_) => panic!("a {} cannot be restarted on its port", self.how),
            Running::Process(process) => process.restart(),
        }
    }

    /// Moves the clock of a server [`with_shiftable_clock`](Self::with_shiftable_clock) by so many
    /// microseconds, forwards or backwards, on top of earlier shifts.
    ///
    /// # Panics
    ///
    /// If the server was started in another way.
    pub fn shift_clock(&self, micros: i64) {
        let shifted = match &self.running {
            Running::Container(_) => false,
            Running::Process(process) => process.shift_clock(micros),
        };
        assert!(shifted, "the clock of a {} cannot be shifted", self.how);
    }
}

fn version(url: &str) -> Result<String, Error> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let info: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
    Ok(info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"))
        .unwrap_or("of unknown version")
        .trim()
        .to_owned())
}

fn run_cli(url: &str, arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new("redis-cli")
        .args(["-u", url, "--no-raw"])
        .args(arguments)
        .output()
        .map_err(|error| Error::Cli(format!("{error}: run scripts/redis, or install Redis")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Cli(format!("{}: {said}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
