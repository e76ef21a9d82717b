use std::path::PathBuf;

/// The reason why no Redis is available or why its client failed, and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Docker engine answers.
    #[error("no Docker engine answers at {host} ({reason})")]
    NoEngine {
        /// The URL that was tried.
        host: String,
        /// The engine client's error.
        reason: String,
    },
    /// The engine lacks the image. It is never pulled, since a pull may hang if no registry is reachable.
    #[error(
        "the Docker engine has no image {0}: run scripts/redis, or set TIDEGATE_REDIS_IMAGE to one that it has"
    )]
    NoImage(String),
    /// The engine has the image, but the server did not start.
    #[error("no Redis in a container of {image}: {reason}")]
    Container {
        /// The image.
        image: String,
        /// The error of the engine or the server.
        reason: String,
    },
    /// There is no `redis-server` to start.
    #[error("no redis-server in the PATH: run scripts/redis, or install Redis")]
    NoBinary,
    /// `redis-server` or `nginx` exited before it accepted connections.
    #[error("the server did not start: {0}")]
    Process(String),
    /// Neither kind of server is available.
    #[error("no Redis available. Container: {container}. Process: {process}")]
    Neither {
        /// The reason why there is no container.
        container: Box<Self>,
        /// The reason why there is no process.
        process: Box<Self>,
    },
    /// There is no `prometheus`, or no `promtool`.
    #[error("no {0} in the PATH or in target/prometheus: run scripts/prometheus")]
    NoPrometheus(String),
    /// `prometheus` exited before it listened.
    #[error("prometheus did not start: {0}")]
    Prometheus(String),
    /// `envoy` exited before it listened.
    #[error("envoy did not start: {0}")]
    Envoy(String),
    /// There is no `nginx`.
    #[error("no nginx in the PATH or in target/nginx: run scripts/nginx")]
    NoNginx,
    /// There is no `envoy`.
    #[error("no envoy in the PATH or in target/envoy: run scripts/envoy")]
    NoEnvoy,
    /// There is no `chromium`, or no `chromedriver`.
    #[error("no chromium or no chromedriver in the PATH: run scripts/chromium")]
    NoChromium,
    /// `CI` is set and an engine replies, but the server would not run in a container.
    #[error("in CI, where a Docker engine answers, Redis must run in a container: {0}")]
    NotInContainer(String),
    /// The library that shifts a server's clock is missing.
    #[error("a server's clock can be shifted only on Linux, where cc has built clock.c")]
    NoClock,
    /// An environment variable has an invalid value.
    #[error("{name}={value}: expected {expected}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// redis-cli did not start, or failed.
    #[error("redis-cli: {0}")]
    Cli(String),
    /// The server started, but its first client received no reply.
    #[error("no answer from the server: {0}")]
    Redis(#[from] redis::RedisError),
    /// The server at `TIDEGATE_REDIS_URL` cannot be used.
    #[error(
        "TIDEGATE_REDIS_URL is set, and {0}: correct it (redis://127.0.0.1:6379), or unset it to start Redis"
    )]
    Given(Box<Self>),
    /// A file, a port or a process is not available.
    #[error("{path}: {source}")]
    Io {
        /// The file, address or program.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn given(self) -> Self {
        Self::Given(self.into())
    }

    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}
