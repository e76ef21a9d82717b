//! The target of the faults: a server, behind a wire that can replace replies, behind a network proxy.

use std::process::Child;
use std::time::Duration;

use tidegate::{Builder, Gate, Limiter, Quota};
use tidegate_testkit::{Proxy, Server};

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
    pub quota: Quota,
    /// The redis-cli process that keeps the server busy, if any.
    pub cli: Option<Child>,
}

impl Scene {
    pub fn new(options: &[&str], deadline: Duration) -> Self {
        // A cluster node needs a second port, which may be taken or above 65535. So this retries.
        let started = (0..20).find_map(|_| Server::process(options).ok());
        let server = started.expect("no server started");
        let (rights, password) = (["on", "~*", "&*", "+@all"], format!(">{PASSWORD}"));
        server.cli(&[&["ACL", "SETUSER", USER], &rights[..], &[&password]].concat()).unwrap();
        let wire = Wire::to(server.url());
        let network = Proxy::start(&wire.url()).unwrap();
        let quota = Quota::fixed_window(1_000_000, HOUR);
        Self { server, wire, network, deadline, quota, cli: None }
    }

    /// Runs a command on the server, and returns its reply.
    pub fn execute(&self, command: &str) -> String {
        self.server.cli(&command.split(' ').collect::<Vec<_>>()).unwrap()
    }

    /// Repeats a command until its reply contains `expected`.
    pub fn wait_for_reply(&self, command: &str, expected: &str) {
        let start = std::time::Instant::now();
        while !self.execute(command).contains(expected) {
            assert!(start.elapsed() < PATIENCE, "{command} does not reply {expected}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts a redis-cli process whose command does not end by itself.
    pub fn spawn_cli(&mut self, arguments: &[&str]) {
        let cli = std::process::Command::new("redis-cli")
            .args(["-u", self.server.url()])
            .args(arguments)
            .stdout(std::process::Stdio::null())
            .spawn();
        self.cli = Some(cli.unwrap());
    }

    pub fn wait_for_cli(&mut self) {
        if let Some(mut cli) = self.cli.take() {
            cli.wait().unwrap();
        }
    }

    pub fn limiter(&self, settings: impl FnOnce(Builder) -> Builder) -> Limiter {
        let builder = builder_as_is(&self.network.url()).credentials(USER, PASSWORD).namespace("faults");
        let builder =
            builder.deadline(self.deadline).deny_cache(Duration::ZERO).instances(1).publish_figures(false);
        // The wire counts script calls, and reading overrides is one.
        settings(builder.follow_overrides(false)).build().unwrap()
    }

    pub fn gate(&self, limiter: &Limiter) -> Gate {
        limiter.gate("gate", self.quota)
    }

    /// Returns the Redis key of the gate's state.
    pub fn redis_key(&self) -> String {
        self.gate(&self.limiter(|builder| builder)).redis_key(KEY).unwrap()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(cli) = &mut self.cli {
            let _ = cli.kill();
            let _ = cli.wait();
        }
    }
}
