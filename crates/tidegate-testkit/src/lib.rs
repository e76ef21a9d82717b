//! Provides a real Redis (and a [`Prometheus`], an [`Nginx`], an [`Envoy`] or a [`Chromium`]) for the tests, demo and
//! benches of tidegate: a container if a
//! Docker engine answers, else a plain `redis-server` process, else an [`Error`] with the missing part of
//! each. It has no in-memory substitute and skips no test. Without the feature `container`, it is always a process.
//!
//! ```
//! let server = tidegate_testkit::shared();
//! assert_eq!(server.cli(&["PING"])?, "PONG");
//! # Ok::<(), tidegate_testkit::Error>(())
//! ```
//!
//! The API blocks. It may be called from any thread, also from async tests.
//!
//! | variable | meaning |
//! |---|---|
//! | `TIDEGATE_REDIS` | `container` or `process`: that kind, or an error |
//! | `TIDEGATE_REDIS_SERVER` | program to start instead of `redis-server`, always as a process: another version (`scripts/servers`). A [`Cluster`] and [`Sentinels`] ignore it |
//! | `TIDEGATE_REDIS_IMAGE` | image of the container; `redis:7.0-local`, made by `scripts/redis`, if unset |
//! | `TIDEGATE_REDIS_URL` | server that [`Server::given_or_start`] uses; no other function reads it |
//! | `TIDEGATE_RUN` | id in the label of containers and the names of temporary folders; the process id if unset |
//! | `TIDEGATE_REPORT` | file to which a server that could be either kind adds a line: executable, tab, [`Server::how`] |
//! | `CI` | set: if an engine answers, [`Server::start`] accepts only a container |
//!
//! Nothing is left behind, even if the caller ends by SIGKILL: each server stops when a pipe from this
//! process closes. (Stopping a container after a signal needs `curl`.)

mod chromium;
mod client;
mod clock;
mod cluster;
#[cfg(feature = "container")]
mod container;
mod daemon;
#[cfg_attr(not(feature = "container"), expect(dead_code, reason = "what only containers read"))]
mod environment;
mod envoy;
mod error;
mod lifeline;
mod nginx;
mod paused;
mod pool;
mod process;
mod prometheus;
mod proxy;
mod sentinels;
mod server;
mod shared;

pub use chromium::Chromium;
pub use cluster::Cluster;
pub use envoy::Envoy;
pub use error::Error;
pub use nginx::Nginx;
pub use paused::Paused;
pub use pool::{Pool, Pooled};
pub use prometheus::{Prometheus, promtool};
pub use proxy::{Counts, Fault, Proxy};
pub use sentinels::Sentinels;
pub use server::Server;
pub use shared::{shared, shared_cluster};
