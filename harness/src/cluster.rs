use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error, Server,
    process::{Process, free_port},
};

/// How far above its own a node's port for other nodes is.
const BUS: u16 = 10_000;
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Ports that no system hands out by itself: between finding a pair of free ones and using it,
/// nobody takes one but another cluster.
const PORTS: std::ops::Range<u16> = 12_000..22_000;

/// A Redis Cluster of plain `redis-server` processes, which end with this value.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Option<Server>>,
}

impl Cluster {
    /// Starts three primaries with a replica each. A primary that is gone for 300 ms is replaced.
    ///
    /// # Errors
    ///
    /// What a server or redis-cli lacked.
    pub fn start() -> Result<Self, Error> {
        let options = ["--cluster-node-timeout", "300", "--repl-diskless-sync-delay", "0"];
        Self::of(6, &options, Process::start_on)
    }

    /// Starts three primaries alone, whose clocks [`freeze_clock`](Self::freeze_clock) stops. None
    /// is ever taken for gone, however far their clocks jump.
    ///
    /// # Errors
    ///
    /// What a server or redis-cli lacked; or that this system has no way to stop a clock.
    pub fn with_shiftable_clock() -> Result<Self, Error> {
        Self::of(3, &["--cluster-node-timeout", "100000000000000"], Process::start_with_clock_on)
    }

    /// Like [`start`](Self::start), all of them with TLS: among each other, and on further ports. `tls`
    /// are redis-server's options for it: `["--tls-cert-file", …]`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn start_with_tls(tls: &[&str]) -> Result<Self, Error> {
        let options = [&["--cluster-node-timeout", "300", "--repl-diskless-sync-delay", "0"], tls].concat();
        Self::of(6, &options, |port, options| {
            // Where it is expected by who knows the other port.
            let (tls_port, bus) = (free_port()?.to_string(), (port + BUS).to_string());
            let tls = [
                "--tls-port",
                &tls_port,
                "--cluster-port",
                &bus,
                "--tls-cluster",
                "yes",
                "--tls-replication",
                "yes",
            ];
            Process::start_on(port, &[options, &tls].concat())
        })
    }

    fn of(
        nodes: usize,
        options: &[&str],
        start: impl Fn(u16, &[&str]) -> Result<Process, Error>,
    ) -> Result<Self, Error> {
        let options = [&["--cluster-enabled", "yes"], options].concat();
        let nodes = (0..nodes).map(|_| node(&options, &start).map(Some)).collect::<Result<Vec<_>, _>>()?;
        let cluster = Self { nodes };
        let addresses: Vec<String> = cluster.nodes().map(address).collect();
        let replicas = if addresses.len() == 6 { "1" } else { "0" };
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", replicas, "--cluster-yes"]);
        let said = cluster.cli(&create)?;
        cluster.wait_until_whole(&said)?;
        Ok(cluster)
    }

    /// Until all nodes know each other, and replicas hold what their primaries do.
    fn wait_until_whole(&self, said: &str) -> Result<(), Error> {
        let known = format!("cluster_known_nodes:{}", self.nodes().count());
        let is_whole = |node: &Server| {
            let state = node.cli(&["CLUSTER", "INFO"]).unwrap_or_default();
            let replication = node.cli(&["INFO", "replication"]).unwrap_or_default();
            let is_ok = state.contains("cluster_state:ok") && state.contains(&known);
            is_ok && !replication.contains("link_status:down")
        };
        let start = Instant::now();
        while !self.nodes().all(is_whole) {
            if start.elapsed() > START_TIMEOUT {
                return Err(Error::Process(format!("no cluster came of it: {said}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// A further node, without a slot and without a replica, that the others know.
    ///
    /// # Errors
    ///
    /// What it lacked.
    pub fn add_node(&mut self) -> Result<usize, Error> {
        let node = node(&["--cluster-enabled", "yes", "--cluster-node-timeout", "300"], Process::start_on)?;
        let known = self.nodes().next().map(address).unwrap_or_default();
        let said = self.cli(&["--cluster", "add-node", &address(&node), &known])?;
        self.nodes.push(Some(node));
        self.wait_until_whole(&said)?;
        Ok(self.nodes.len() - 1)
    }

    /// The nodes that have not been [killed](Self::kill), the first primaries first.
    pub fn nodes(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().flatten()
    }

    /// The URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes().map(|node| node.url().to_owned()).collect()
    }

    /// Their URLs with TLS, if they have been [started with it](Self::start_with_tls).
    ///
    /// # Errors
    ///
    /// If a node does not say its port.
    pub fn tls_urls(&self) -> Result<Vec<String>, Error> {
        let url = |node: &Server| {
            let said = node.cli(&["CONFIG", "GET", "tls-port"])?;
            let port = said.split('"').nth(3).unwrap_or_default();
            Ok(format!("rediss://127.0.0.1:{port}"))
        };
        self.nodes().map(url).collect()
    }

    /// Runs redis-cli at one node that is there: see [`Server::cli`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn cli(&self, arguments: &[&str]) -> Result<String, Error> {
        self.nodes()
            .next()
            .map_or_else(|| Err(Error::Cli("no node is left".to_owned())), |node| node.cli(arguments))
    }

    /// Kills the node at this URL.
    pub fn kill(&mut self, url: &str) {
        let node = self.nodes.iter_mut().find(|node| node.as_ref().is_some_and(|node| node.url() == url));
        drop(node.and_then(Option::take));
    }

    /// Stops the clocks of all nodes: see [`Server::freeze_clock`].
    ///
    /// # Panics
    ///
    /// If the cluster was started in another way.
    pub fn freeze_clock(&self, micros: u64) {
        self.nodes().for_each(|node| node.freeze_clock(micros));
    }
}

fn node(options: &[&str], start: impl Fn(u16, &[&str]) -> Result<Process, Error>) -> Result<Server, Error> {
    let mut attempts = 10;
    loop {
        attempts -= 1;
        match start(free_ports()?, options) {
            Err(Error::Process(log)) if attempts > 0 && log.contains("already in use") => {}
            process => return Server::of_process(process?),
        }
    }
}

/// A free port whose port for other nodes is free too.
fn free_ports() -> Result<u16, Error> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let random = RandomState::new().build_hasher().finish();
    let ports =
        (0..PORTS.len() as u64).map(|n| PORTS.start + ((random.wrapping_add(n)) % PORTS.len() as u64) as u16);
    let mut free = ports.filter(|&port| is_free(port) && is_free(port + BUS));
    free.next().ok_or_else(|| Error::Process("no two free ports for a node".to_owned()))
}

fn address(node: &Server) -> String {
    node.url().trim_start_matches("redis://").to_owned()
}
