//! Gets a real Redis (and a [`Prometheus`]) for tidegate's tests, demo and benches: a container where a Docker engine
//! answers, else a plain `redis-server` process, else an [`Error`] that says what each lacked.
//! There is no stand-in in memory, and no test is skipped.
//!
//! ```
//! let server = harness::shared();
//! assert_eq!(server.cli(&["PING"])?, "PONG");
//! # Ok::<(), harness::Error>(())
//! ```
//!
//! The API blocks, and may be called from anywhere, also from async tests.
//!
//! | variable | meaning |
//! |---|---|
//! | `TIDEGATE_REDIS` | `container` or `process`: that kind, or an error |
//! | `TIDEGATE_REDIS_SERVER` | program to start instead of `redis-server`, always as a process: another version (`scripts/servers`) |
//! | `TIDEGATE_REDIS_IMAGE` | image of the container; `redis:7.0-local`, made by `scripts/redis`, if unset |
//! | `TIDEGATE_REDIS_URL` | what [`Server::given_or_start`] uses instead; nothing else looks at it |
//! | `TIDEGATE_RUN` | id in the label of containers and the names of temporary folders; the process id if unset |
//! | `TIDEGATE_REPORT` | file to which a server that could be either kind adds a line: executable, tab, [`Server::how`] |
//! | `CI` | set: where an engine answers, [`Server::start`] takes nothing but a container |
//!
//! Nothing is left behind however the caller ends, SIGKILL included: each server's life hangs on
//! a pipe from this process. (A container's end needs `curl` if it comes by a signal.)

mod client;
mod clock;
mod cluster;
mod container;
mod daemon;
mod environment;
mod error;
mod lifeline;
mod paused;
mod process;
mod prometheus;
mod proxy;
mod sentinels;
mod server;
mod shared;

pub use cluster::Cluster;
pub use error::Error;
pub use paused::Paused;
pub use prometheus::{Prometheus, promtool};
pub use proxy::{Counts, Fault, Proxy};
pub use sentinels::Sentinels;
pub use server::Server;
pub use shared::shared;
