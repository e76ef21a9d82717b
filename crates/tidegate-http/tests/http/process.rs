//! An example that runs as its own process.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;

/// A running example. The process ends when this is dropped. It also ends whenever the test's process ends,
/// because a shell waits for the end of a pipe from the test and then kills the example.
pub(crate) struct Example {
    pub(crate) address: SocketAddr,
    child: Child,
}

const RUN_UNTIL_PIPE_CLOSES: &str = r#""$0" & read -r _; kill -9 $!; wait"#;

impl Example {
    /// Starts the example, and waits until it listens.
    pub(crate) fn start(name: &str, redis: &str) -> Self {
        Self::start_with(name, redis, &[])
    }

    /// Starts the example with additional environment variables.
    pub(crate) fn start_with(name: &str, redis: &str, variables: &[(&str, &str)]) -> Self {
        // Race: another process may take the port after it was found to be free.
        let mut attempts = (0..5).filter_map(|_| Self::try_start(name, redis, variables));
        attempts.next().unwrap_or_else(|| panic!("{name} does not listen"))
    }

    fn try_start(name: &str, redis: &str, variables: &[(&str, &str)]) -> Option<Self> {
        let test = std::env::current_exe().unwrap();
        let example = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
        assert!(
            example.exists(),
            "`cargo test` builds the examples, `cargo test --test` does not: cargo build --examples"
        );
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new("sh");
        command.args(["-c", RUN_UNTIL_PIPE_CLOSES]).arg(example).stdin(Stdio::piped());
        command.env("TIDEGATE_REDIS_URL", redis).env("LISTEN", address.to_string());
        command.envs(variables.iter().copied());
        let example = Self { address, child: command.spawn().unwrap() };
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if TcpStream::connect(address).is_ok() {
                return Some(example);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

/// Returns a free port outside the ephemeral range. A client that connects to an ephemeral port with no
/// listener may get the same port as its source port, and then connects to itself.
pub(crate) fn free_port() -> u16 {
    let mut ports = std::iter::repeat_with(|| rand::rng().random_range(10_000..32_000));
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

impl Drop for Example {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
