//! What faults happen to: a server, a wire and a network before it.

use std::process::Child;
use std::time::Duration;

use harness::{Proxy, Server};
use tidegate::{Builder, Gate, Limiter, Quota};

use crate::support::fixture::{HOUR, PATIENCE, builder_as_is};
use crate::support::wire::Wire;

pub const KEY: &str = "user:42:secret";
const USER: &str = "limiter";
const PASSWORD: &str = "one";

pub struct Scene {
    pub server: Server,
    pub wire: Wire,
    pub network: Proxy,
    pub deadline: Duration,
    /// Who keeps the server from answering, if somebody does.
    pub other: Option<Child>,
}

impl Scene {
    pub fn new(options: &[&str], deadline: Duration) -> Self {
        // A node of a cluster needs two ports, of which the second may be taken or beyond all ports.
        let started = (0..20).find_map(|_| Server::process(options).ok());
        let server = started.expect("no server");
        let (rights, password) = (["on", "~*", "&*", "+@all"], format!(">{PASSWORD}"));
        server.cli(&[&["ACL", "SETUSER", USER], &rights[..], &[&password]].concat()).unwrap();
        let wire = Wire::to(server.url());
        let network = Proxy::start(&wire.url()).unwrap();
        Self { server, wire, network, deadline, other: None }
    }

    pub fn tell(&self, command: &str) -> String {
        self.server.cli(&command.split(' ').collect::<Vec<_>>()).unwrap()
    }

    /// Tells it until it says so.
    pub fn until(&self, command: &str, answer: &str) {
        let start = std::time::Instant::now();
        while !self.tell(command).contains(answer) {
            assert!(start.elapsed() < PATIENCE, "{command} does not say {answer}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A process of redis-cli that does not come back by itself.
    pub fn let_another(&mut self, arguments: &[&str]) {
        let cli = std::process::Command::new("redis-cli")
            .args(["-u", self.server.url()])
            .args(arguments)
            .stdout(std::process::Stdio::null())
            .spawn();
        self.other = Some(cli.unwrap());
    }

    pub fn other_ends(&mut self) {
        if let Some(mut other) = self.other.take() {
            other.wait().unwrap();
        }
    }

    pub fn limiter(&self, settings: impl FnOnce(Builder) -> Builder) -> Limiter {
        let builder = builder_as_is(&self.network.url()).credentials(USER, PASSWORD).namespace("faults");
        settings(builder.deadline(self.deadline).deny_cache(Duration::ZERO).instances(1)).build().unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(other) = &mut self.other {
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

pub fn gate(limiter: &Limiter) -> Gate {
    limiter.gate("gate", Quota::fixed_window(1_000_000, HOUR))
}

/// Where the gate's state is.
pub fn redis_key(limiter: &Limiter) -> String {
    gate(limiter).redis_key(KEY).unwrap()
}
