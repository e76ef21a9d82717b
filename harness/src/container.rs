use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    thread,
    time::Duration,
};

use testcontainers::{
    Container as Running, ImageExt,
    bollard::{self, Docker},
    core::{ExecCommand, client::docker_client_instance},
    runners::SyncRunner,
};
use testcontainers_modules::redis::{REDIS_PORT, Redis};

use crate::{Error, environment, lifeline::Lifeline};

/// How long an engine may take to say that it is there.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(3);
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A Redis in a container.
pub(crate) struct Container {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) image: String,
    // Only ever `None` in `drop`.
    running: Option<Running<Redis>>,
    _lifeline: Option<Lifeline>,
}

impl Container {
    pub(crate) fn start(options: &[&str]) -> Result<Self, Error> {
        outside_of_runtimes(|| Self::start_here(options))
    }

    fn start_here(options: &[&str]) -> Result<Self, Error> {
        let (image_name, tag) = environment::image();
        let image = format!("{image_name}:{tag}");
        check_image(&image)?;

        let run = environment::run();
        let random = RandomState::new().build_hasher().finish();
        let name = format!("tidegate-{run}-{random:x}");
        let lifeline = lifeline(&name);
        #[rustfmt::skip]
        let defaults = ["redis-server", "--protected-mode", "no", "--save", "", "--appendonly", "no"];
        let failed = |error: testcontainers::TestcontainersError| Error::Container {
            image: image.clone(),
            reason: error.to_string(),
        };
        let running = Redis::default()
            .with_name(image_name)
            .with_tag(tag)
            .with_cmd(defaults.iter().chain(options).copied())
            .with_container_name(name)
            .with_label("tidegate", run)
            .with_startup_timeout(START_TIMEOUT)
            .start()
            .map_err(failed)?;
        let host = running.get_host().map_err(failed)?.to_string();
        let port = running.get_host_port_ipv4(REDIS_PORT).map_err(failed)?;
        Ok(Self {
            // Where localhost is ::1 first, the IPv4 port would not be found there.
            host: host.replace("localhost", "127.0.0.1"),
            port,
            image,
            running: Some(running),
            _lifeline: lifeline,
        })
    }

    /// Runs a command in the container; its output.
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
        // Not `running`: its `Debug` asks the engine.
        f.debug_struct("Container")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("image", &self.image)
            .finish_non_exhaustive()
    }
}

/// Whether a container could be had from this engine, if it had the image.
pub(crate) fn engine_answers() -> bool {
    outside_of_runtimes(|| on_engine(async |_| Ok(()))).is_ok()
}

/// testcontainers would pull a missing image.
fn check_image(image: &str) -> Result<(), Error> {
    on_engine(async |engine| match engine.inspect_image(image).await {
        Ok(_) => Ok(()),
        Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
            Err(Error::NoImage(image.to_owned()))
        }
        Err(error) => Err(Error::Container { image: image.to_owned(), reason: error.to_string() }),
    })
}

fn on_engine<T>(ask: impl AsyncFnOnce(Docker) -> Result<T, Error>) -> Result<T, Error> {
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
            ask(engine).await
        })
}

/// Removes the container when this process is killed; testcontainers does it in all other cases.
/// By name, so that it can exist before the container does.
fn lifeline(container: &str) -> Option<Lifeline> {
    let host = environment::docker_host();
    let path = format!("/containers/{container}?force=1&v=1");
    let (socket, url) = match host.split_once("://")? {
        ("unix", socket) => (socket, format!("http://localhost{path}")),
        ("tcp" | "http", address) => ("", format!("http://{address}{path}")),
        _ => return None,
    };
    let script = "read -r _\n\
        exec curl -s -o /dev/null -m 10 --noproxy '*' ${1:+--unix-socket \"$1\"} -X DELETE \"$2\"";
    Lifeline::new(script, &[socket, &url]).ok()
}

/// The blocking API of testcontainers panics on a thread of an async runtime.
fn outside_of_runtimes<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
