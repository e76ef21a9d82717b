use std::{
    env, fmt,
    fs::OpenOptions,
    io::{self, Write},
    path::Path,
};

use crate::{Error, client, clock::Clock, environment, paused::Paused, process::Process};
#[cfg(feature = "container")]
use crate::{
    container::{self, Container},
    environment::Kind,
};

/// A Redis server. Dropping this value stops the server if this value started it.
pub struct Server {
    url: String,
    version: String,
    how: String,
    running: Running,
}

#[derive(Debug)]
enum Running {
    #[cfg(feature = "container")]
    Container(Box<Container>),
    Process(Process),
    /// Started by another party.
    Elsewhere,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits `url`: it may hold a password.
        f.debug_struct("Server")
            .field("how", &self.how)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a container, or a process if no container is available.
    ///
    /// # Errors
    ///
    /// If neither kind is available; the error names the missing part of each.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(&[])
    }

    /// Like [`start`](Self::start), with further options of redis-server: `["--maxmemory", "10mb"]`.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_with(options: &[&str]) -> Result<Self, Error> {
        Self::reported(Self::choose(
            #[cfg(feature = "container")]
            || Container::start(options),
            || Process::start(options),
        )?)
    }

    /// Starts a container or a process whose clock [`shift_clock`](Self::shift_clock) and
    /// [`freeze_clock`](Self::freeze_clock) change.
    ///
    /// # Errors
    ///
    /// If neither kind is available, or if this system has no means to shift a clock.
    pub fn with_shiftable_clock() -> Result<Self, Error> {
        Self::reported(Self::choose(
            #[cfg(feature = "container")]
            Container::start_with_clock,
            Process::start_with_clock,
        )?)
    }

    fn reported(server: Self) -> Result<Self, Error> {
        if let Some(file) = environment::report() {
            report(&file, &server).map_err(|error| Error::io(file, error))?;
        }
        Ok(server)
    }

    #[cfg(not(feature = "container"))]
    fn choose(process: impl Fn() -> Result<Process, Error>) -> Result<Self, Error> {
        Self::of_process(process()?)
    }

    #[cfg(feature = "container")]
    fn choose(
        container: impl Fn() -> Result<Container, Error>,
        process: impl Fn() -> Result<Process, Error>,
    ) -> Result<Self, Error> {
        let container = || container().and_then(Self::of_container);
        let process = || process().and_then(Self::of_process);
        let no_container = match environment::forced_kind()? {
            Some(Kind::Container) => return container(),
            // The requirement does not apply to a server of another version.
            Some(Kind::Process) if environment::server().is_some() => return process(),
            Some(Kind::Process) if environment::ci() && container::engine_answers() => {
                return Err(Error::NotInContainer("TIDEGATE_REDIS=process".to_owned()));
            }
            Some(Kind::Process) => return process(),
            None => match container() {
                Ok(server) => return Ok(server),
                Err(error) => error,
            },
        };
        if environment::ci() && !matches!(no_container, Error::NoEngine { .. }) {
            return Err(Error::NotInContainer(no_container.to_string()));
        }
        match process() {
            Ok(mut server) => {
                server.how = format!("{}, since {no_container}", server.how);
                Ok(server)
            }
            Err(process) => Err(Error::Neither { container: no_container.into(), process: process.into() }),
        }
    }

    /// Returns the server at `TIDEGATE_REDIS_URL`, or [`start`](Self::start)s one if that is not set. For
    /// demos and examples: they must write under their own keys only, and remove these keys.
    ///
    /// # Errors
    ///
    /// If that server does not answer, or if neither kind is available.
    pub fn given_or_start() -> Result<Self, Error> {
        match environment::url() {
            Some(url) => Self::new(url, environment::URL, Running::Elsewhere).map_err(Error::given),
            None => Self::start(),
        }
    }

    /// Starts a plain `redis-server` process, for tests that stop or kill it.
    ///
    /// # Errors
    ///
    /// If there is no `redis-server`, or if it exits at once.
    pub fn process(options: &[&str]) -> Result<Self, Error> {
        Self::of_process(Process::start(options)?)
    }

    /// Like [`process`](Self::process), with another server than the one in the PATH: a newer Redis, or
    /// Valkey. `program` is an absolute path.
    ///
    /// # Errors
    ///
    /// If there is no such program, or if it exits at once.
    pub fn process_of(program: &str, options: &[&str]) -> Result<Self, Error> {
        Self::of_process(Process::start_program(program, options)?)
    }

    #[cfg(feature = "container")]
    fn of_container(container: Container) -> Result<Self, Error> {
        let url = format!("redis://{}:{}", container.host, container.port);
        let kind = format!("container {}", container.image);
        Self::new(url, &kind, Running::Container(container.into()))
    }

    pub(crate) fn of_process(process: Process) -> Result<Self, Error> {
        let url = format!("redis://127.0.0.1:{}", process.port);
        let program = Path::new(&process.program).file_name().unwrap_or_default();
        let kind = format!("{} process", program.to_string_lossy());
        Self::new(url, &kind, Running::Process(process))
    }

    fn new(url: String, kind: &str, running: Running) -> Result<Self, Error> {
        let (name, version) = client::version(&url)?;
        Ok(Self { url, how: format!("{kind} ({name} {version})"), version, running })
    }

    /// Returns `redis://127.0.0.1:PORT`, or the given URL, which may hold a password.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the version that the server reports.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Describes the server: `container redis:7.0-local (Redis 7.0.15)`. For a process that replaces a
    /// container, includes the reason.
    #[must_use]
    pub fn how(&self) -> String {
        self.how.clone()
    }

    /// Runs redis-cli. Returns its output in terminal format (`1) "used"`), without the last newline.
    ///
    /// # Errors
    ///
    /// If there is no redis-cli, or if it fails. An error reply of the server is output: `(error) ERR …`.
    pub fn cli(&self, arguments: &[&str]) -> Result<String, Error> {
        let output = match &self.running {
            #[cfg(feature = "container")]
            Running::Container(container) if !environment::on_path("redis-cli") => {
                container.run(&[&["redis-cli", "--no-raw"], arguments].concat())?
            }
            _ => client::run_cli(&self.url, arguments)?,
        };
        Ok(output.trim_end_matches('\n').to_owned())
    }

    /// Removes all keys.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn flush(&self) -> Result<(), Error> {
        client::flush(&self.url)
    }

    /// Kills the server and starts an empty one on the same port.
    ///
    /// # Errors
    ///
    /// If it does not start.
    ///
    /// # Panics
    ///
    /// If it is not a process: the port of a container would change, and a given server must not be killed.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.own_process().restart()
    }

    /// Kills the server. Its port stays closed until it is [`restart`](Self::restart)ed.
    ///
    /// # Panics
    ///
    /// If it is not a process.
    pub fn kill(&mut self) {
        self.own_process().kill();
    }

    /// Suspends the server (SIGSTOP) until the returned value is dropped. Connections stay open, the
    /// operating system accepts new ones, and the server answers nothing.
    ///
    /// # Errors
    ///
    /// If the server does not answer before, or cannot be signaled.
    ///
    /// # Panics
    ///
    /// If it is not a process.
    pub fn pause(&self) -> Result<Paused<'_>, Error> {
        let Running::Process(_) = self.running else { panic!("a {} cannot be signalled", self.how) };
        let info = self.cli(&["INFO", "server"])?;
        let id = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap_or_default();
        Paused::new(id.trim())
    }

    /// Moves the clock of a server [`with_shiftable_clock`](Self::with_shiftable_clock) by this number of
    /// microseconds, forwards or backwards, in addition to earlier shifts.
    ///
    /// # Panics
    ///
    /// If the server was not started with a shiftable clock.
    pub fn shift_clock(&self, micros: i64) {
        let shifted = self.clock().is_some_and(|clock| clock.shift(micros));
        assert!(shifted, "the clock of a {} cannot be shifted", self.how);
    }

    /// Stops the clock of a server [`with_shiftable_clock`](Self::with_shiftable_clock) at this number of
    /// microseconds since 1970, until the clock is set again.
    ///
    /// # Panics
    ///
    /// If the server was not started with a shiftable clock.
    pub fn freeze_clock(&self, micros: u64) {
        let frozen = self.clock().is_some_and(|clock| clock.freeze(micros));
        assert!(frozen, "the clock of a {} cannot be stopped", self.how);
    }

    fn own_process(&mut self) -> &mut Process {
        match &mut self.running {
            Running::Process(process) => process,
            _ => panic!("a {} cannot be restarted on its port", self.how),
        }
    }

    fn clock(&self) -> Option<&Clock> {
        match &self.running {
            #[cfg(feature = "container")]
            Running::Container(container) => container.clock.as_ref(),
            Running::Process(process) => process.clock.as_ref(),
            Running::Elsewhere => None,
        }
    }
}

fn report(file: &str, server: &Server) -> io::Result<()> {
    let executable = env::current_exe()?;
    let name = executable.file_name().unwrap_or_default().to_string_lossy();
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    // A single write, because other executables may report at the same time.
    file.write_all(format!("{name}\t{}\n", server.how()).as_bytes())
}
