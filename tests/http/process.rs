//! An example as a process of its own.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;

/// Ends with this, and with the test's process however that ends: it hangs on a pipe from it.
pub(crate) struct Example {
    pub(crate) address: SocketAddr,
    child: Child,
}

const UNTIL_THE_PIPE_ENDS: &str = r#""$0" & read -r _; kill -9 $!; wait"#;

impl Example {
    /// Runs it, and waits until it listens.
    pub(crate) fn start(name: &str, redis: &str) -> Self {
        Self::start_with(name, redis, &[])
    }

    /// With more variables.
    pub(crate) fn start_with(name: &str, redis: &str, variables: &[(&str, &str)]) -> Self {
        // Another process may take the port that was found free.
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
        command.args(["-c", UNTIL_THE_PIPE_ENDS]).arg(example).stdin(Stdio::piped());
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

/// None of those that the system gives to who asks for any: whoever tries to connect to such a port while
/// nobody listens there may be given it himself, and is then connected to himself.
fn free_port() -> u16 {
    let mut ports = std::iter::repeat_with(|| rand::rng().random_range(10_000..32_000));
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

impl Drop for Example {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
