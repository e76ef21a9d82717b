use std::path::PathBuf;

/// Why there is no Redis, or no answer from its client. Says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Docker engine answers.
    #[error("no Docker engine answers at {host} ({reason})")]
    NoEngine {
        /// Where it was looked for.
        host: String,
        /// What happened instead.
        reason: String,
    },
    /// The engine lacks the image. It is never pulled, since that may hang where no registry is reached.
    #[error(
        "the Docker engine has no image {0}: run scripts/redis, or set TIDEGATE_REDIS_IMAGE to one that it has"
    )]
    NoImage(String),
    /// The engine has the image, and no server came of it.
    #[error("no Redis in a container of {image}: {reason}")]
    Container {
        /// The image.
        image: String,
        /// What the engine or the server said.
        reason: String,
    },
    /// There is no `redis-server` to start.
    #[error("no redis-server in the PATH: run scripts/redis, or install Redis")]
    NoBinary,
    /// `redis-server` ended before it served.
    #[error("redis-server did not start: {0}")]
    Process(String),
    /// Neither kind of server could be had.
    #[error("no Redis to be had. Container: {container}. Process: {process}")]
    Neither {
        /// What the container lacked.
        container: Box<Self>,
        /// What the process lacked.
        process: Box<Self>,
    },
    /// There is no `prometheus`, or no `promtool`.
    #[error("no {0} in the PATH or in target/prometheus: run scripts/prometheus")]
    NoPrometheus(String),
    /// `prometheus` ended before it listened.
    #[error("prometheus did not start: {0}")]
    Prometheus(String),
    /// `CI` is set and an engine answers, and still it would not have been a container.
    #[error("in CI, where a Docker engine answers, Redis must run in a container: {0}")]
    NotInContainer(String),
    /// The library that shifts a server's clock is missing.
    #[error("a server's clock can be shifted only on Linux, where cc has built clock.c")]
    NoClock,
    /// An environment variable has a value that means nothing.
    #[error("{name}={value}: expected {expected}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// redis-cli could not be run, or failed.
    #[error("redis-cli: {0}")]
    Cli(String),
    /// The server started, and its first client got no answer.
    #[error("no answer from the server: {0}")]
    Redis(#[from] redis::RedisError),
    /// The server at `TIDEGATE_REDIS_URL` cannot be used.
    #[error(
        "TIDEGATE_REDIS_URL is set, and {0}: correct it (redis://127.0.0.1:6379), or unset it to have a Redis started"
    )]
    Given(Box<Self>),
    /// A file, a port or a process could not be had.
    #[error("{path}: {source}")]
    Io {
        /// What was asked for.
        path: PathBuf,
        /// What the system said.
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
