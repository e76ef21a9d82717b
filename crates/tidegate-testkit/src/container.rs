use std::{
    fmt, fs,
    hash::{BuildHasher, Hasher, RandomState},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use testcontainers::{
    Container as Running, ImageExt,
    bollard::{self, Docker},
    core::{ExecCommand, Mount, client::docker_client_instance},
    runners::SyncRunner,
};
use testcontainers_modules::redis::{REDIS_PORT, Redis};

use crate::{
    Error,
    clock::{self, Clock, OPTIONS},
    environment,
    lifeline::Lifeline,
};

/// Upper bound for the time until an engine replies.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(3);
const DIRECT_TIMEOUT: Duration = Duration::from_millis(500);
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The length of the file of a clock: two numbers, the offset and the time at which the clock is stopped.
const CLOCK_LENGTH: usize = 16;

/// A Redis in a container.
pub(crate) struct Container {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) image: String,
    pub(crate) clock: Option<Clock>,
    // `None` only in `drop`.
    running: Option<Running<Redis>>,
    _lifeline: Option<Lifeline>,
}

impl Container {
    pub(crate) fn start(options: &[&str]) -> Result<Self, Error> {
        outside_of_runtimes(|| Self::start_here(options, false))
    }

    pub(crate) fn start_with_clock() -> Result<Self, Error> {
        outside_of_runtimes(|| Self::start_here(&[], true))
    }

    fn start_here(options: &[&str], with_clock: bool) -> Result<Self, Error> {
        let (image_name, tag) = environment::image();
        let image = format!("{image_name}:{tag}");
        check_image(&image)?;

        let run = environment::run();
        let random = RandomState::new().build_hasher().finish();
        let name = format!("tidegate-{run}-{random:x}");
        let folder = if with_clock { Some(clock_folder(&run, random)?) } else { None };
        let lifeline = lifeline(&name, folder.as_deref());
        let defaults = [&["redis-server", "--protected-mode", "no"], &OPTIONS[..]].concat();
        let failed = |error: testcontainers::TestcontainersError| Error::Container {
            image: image.clone(),
            reason: error.to_string(),
        };
        let mut request = Redis::default()
            .with_name(image_name)
            .with_tag(tag)
            .with_cmd(defaults.iter().chain(options).copied())
            .with_container_name(name)
            .with_label("tidegate", run)
            .with_startup_timeout(START_TIMEOUT);
        if let Some(folder) = &folder {
            request = request
                .with_mount(Mount::bind_mount(folder.to_string_lossy(), "/clock"))
                .with_env_var("LD_PRELOAD", "/clock/clock.so")
                .with_env_var("TIDEGATE_CLOCK", "/clock/clock");
        }
        let clock = match &folder {
            Some(folder) => Some(Clock::open(&folder.join("clock"))?),
            None => None,
        };
        let running = request.start().map_err(failed)?;
        let (host, port) = match direct(&running) {
            Some(address) => (address.ip().to_string(), address.port()),
            None => {
                let host = running.get_host().map_err(failed)?.to_string();
                let port = running.get_host_port_ipv4(REDIS_PORT).map_err(failed)?;
                // If localhost resolves to ::1 first, clients would not find the IPv4 port.
                (host.replace("localhost", "127.0.0.1"), port)
            }
        };
        Ok(Self { host, port, image, clock, running: Some(running), _lifeline: lifeline })
    }

    /// Runs a command in the container. Returns its output.
    pub(crate) fn run(&self, command: &[&str]) -> Result<String, Error> {
        let Some(running) = &self.running else {
            return Ok(String::new());
        };
        outside_of_runtimes(|| {
            let output = running
                .exec(ExecCommand::new(command.iter().copied()))
                .and_then(|mut result| result.stdout_to_vec())
                .map_err(|error| Error::Cli(error.to_string()))?;
            Ok(String::from_utf8_lossy(&output).into_owned())
        })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let running = self.running.take();
        outside_of_runtimes(|| drop(running));
    }
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits `running`: its `Debug` queries the engine.
        f.debug_struct("Container")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

/// Creates a folder with the library of a clock and its file, so that a container needs only one mount.
fn clock_folder(run: &str, name: u64) -> Result<PathBuf, Error> {
    let folder = std::env::temp_dir().join(format!("tidegate-{run}-{name:x}"));
    let failed = |error| Error::io(&folder, error);
    fs::create_dir(&folder).map_err(failed)?;
    fs::copy(clock::library()?, folder.join("clock.so")).map_err(failed)?;
    fs::write(folder.join("clock"), [0; CLOCK_LENGTH]).map_err(failed)?;
    Ok(folder)
}

/// Returns the container's own address if it is reachable, as on Linux: the engine's proxy for published
/// ports doubles the round-trip time.
fn direct(running: &Running<Redis>) -> Option<SocketAddr> {
    let address = SocketAddr::new(running.get_bridge_ip_address().ok()?, REDIS_PORT);
    TcpStream::connect_timeout(&address, DIRECT_TIMEOUT).is_ok().then_some(address)
}

/// Returns whether this engine could start a container, given the image.
pub(crate) fn engine_answers() -> bool {
    outside_of_runtimes(|| on_engine(async |_| Ok(()))).is_ok()
}

/// Checked first, because testcontainers would pull a missing image.
fn check_image(image: &str) -> Result<(), Error> {
    on_engine(async |engine| match engine.inspect_image(image).await {
        Ok(_) => Ok(()),
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
            Err(Error::NoImage(image.to_owned()))
        }
        Err(error) => Err(Error::Container { image: image.to_owned(), reason: error.to_string() }),
    })
}

fn on_engine<T>(work: impl AsyncFnOnce(Docker) -> Result<T, Error>) -> Result<T, Error> {
    let no_engine = |reason: String| Error::NoEngine { host: environment::docker_host(), reason };
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| no_engine(error.to_string()))?
        .block_on(async {
            let engine = docker_client_instance().await.map_err(|error| no_engine(error.to_string()))?;
            tokio::time::timeout(ENGINE_TIMEOUT, engine.ping())
                .await
                .map_err(|_| no_engine(format!("no answer in {ENGINE_TIMEOUT:?}")))?
                .map_err(|error| no_engine(error.to_string()))?;
            work(engine).await
        })
}

/// Removes the container when this process is killed; testcontainers removes it in all other cases. Refers to
/// the container by name, so that this value can exist before the container does. Always removes its folder.
fn lifeline(container: &str, folder: Option<&Path>) -> Option<Lifeline> {
    let host = environment::docker_host();
    let path = format!("/containers/{container}?force=1&v=1");
    let (socket, url) = match host.split_once("://")? {
        ("unix", socket) => (socket, format!("http://localhost{path}")),
        ("tcp" | "http", address) => ("", format!("http://{address}{path}")),
        _ => return None,
    };
    let folder = folder.unwrap_or(Path::new("")).to_string_lossy();
    let script = "read -r _\n\
        curl -s -o /dev/null -m 10 --noproxy '*' ${1:+--unix-socket \"$1\"} -X DELETE \"$2\"\n\
        [ -z \"$3\" ] || rm -rf \"$3\"";
    Lifeline::new(script, &[socket, &url, &folder]).ok()
}

/// The blocking API of testcontainers panics on a thread of an async runtime.
fn outside_of_runtimes<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
