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

/// Offset of the cluster bus port from the port of a node.
const BUS: u16 = 10_000;
const START_TIMEOUT: Duration = Duration::from_secs(30);
const PRIMARIES: usize = 3;
/// The time in ms after which an unreachable primary fails over.
const NODE_TIMEOUT: &str = "300";
/// First and last slot of each primary.
const SLOTS: [[&str; 2]; PRIMARIES] = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];
/// Ports outside the ephemeral range of every system: only another cluster can take one between the search
/// for a free pair and its use.
const PORTS: std::ops::Range<u16> = 12_000..22_000;

/// A Redis Cluster of plain `redis-server` processes. Dropping this value stops them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Option<Server>>,
}

impl Cluster {
    /// Starts three primaries with one replica each. A primary that is unreachable for 300 ms fails over.
    ///
    /// # Errors
    ///
    /// If a server or redis-cli is not available.
    pub fn start() -> Result<Self, Error> {
        let options = ["--cluster-node-timeout", NODE_TIMEOUT, "--repl-diskless-sync-delay", "0"];
        Self::of(6, &options, Process::start_on)
    }

    /// Starts three primaries without replicas, whose clocks [`freeze_clock`](Self::freeze_clock) stops. No
    /// node is marked as failed, however far the clocks jump.
    ///
    /// # Errors
    ///
    /// If a server or redis-cli is not available, or if this system has no means to stop a clock.
    pub fn with_shiftable_clock() -> Result<Self, Error> {
        Self::of(3, &["--cluster-node-timeout", "100000000000000"], Process::start_with_clock_on)
    }

    /// Like [`start`](Self::start), with TLS between the nodes and on additional ports. `tls` are the TLS
    /// options of redis-server: `["--tls-cert-file", …]`.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_with_tls(tls: &[&str]) -> Result<Self, Error> {
        let options =
            [&["--cluster-node-timeout", NODE_TIMEOUT, "--repl-diskless-sync-delay", "0"], tls].concat();
        Self::of(6, &options, |port, options| {
            // Nodes that know the plain port expect the bus port at this offset from it.
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
        cluster.join()?;
        cluster.wait_until("whole", is_whole)?;
        Ok(cluster)
    }

    /// Makes the first three nodes primaries, with a third of the slots each, and the others their replicas.
    /// (`redis-cli --cluster create` does the same with pauses of 1 s.)
    fn join(&self) -> Result<(), Error> {
        let nodes: Vec<&Server> = self.nodes().collect();
        let (primaries, replicas) = nodes.split_at(PRIMARIES);
        for ((primary, slots), epoch) in primaries.iter().zip(SLOTS).zip(["1", "2", "3"]) {
            expect_ok(primary, &["ADDSLOTSRANGE", slots[0], slots[1]])?;
            expect_ok(primary, &["SET-CONFIG-EPOCH", epoch])?;
        }
        for node in &nodes[1..] {
            let (host, port) = host_and_port(nodes[0]);
            expect_ok(node, &["MEET", host, port])?;
        }
        self.wait_until("acquainted", knows_all)?;
        for (replica, primary) in replicas.iter().zip(primaries) {
            let id = primary.cli(&["CLUSTER", "MYID"])?;
            expect_ok(replica, &["REPLICATE", id.trim_matches('"')])?;
        }
        Ok(())
    }

    fn wait_until(&self, state: &str, is_reached: impl Fn(&Server, usize) -> bool) -> Result<(), Error> {
        let start = Instant::now();
        let count = self.nodes().count();
        while !self.nodes().all(|node| is_reached(node, count)) {
            if start.elapsed() > START_TIMEOUT {
                return Err(Error::Process(format!("the cluster is not {state} within {START_TIMEOUT:?}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Adds a node without slots and without a replica, and introduces it to the others.
    ///
    /// # Errors
    ///
    /// If the server or redis-cli is not available.
    pub fn add_node(&mut self) -> Result<usize, Error> {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", NODE_TIMEOUT];
        let node = node(&options, Process::start_on)?;
        if let Some(known) = self.nodes().next() {
            let (host, port) = host_and_port(known);
            expect_ok(&node, &["MEET", host, port])?;
        }
        self.nodes.push(Some(node));
        self.wait_until("whole", is_whole)?;
        Ok(self.nodes.len() - 1)
    }

    /// Prevents failovers: from now on a node that responds late, as on a busy machine, is not considered
    /// failed.
    ///
    /// # Errors
    ///
    /// If a node does not answer.
    pub fn prevent_failover(&self) -> Result<(), Error> {
        self.set_node_timeout("30000")
    }

    /// Ends [`prevent_failover`](Self::prevent_failover): from now on a primary that is unreachable for 300 ms
    /// fails over.
    ///
    /// # Errors
    ///
    /// If a node does not answer.
    pub fn allow_failover(&self) -> Result<(), Error> {
        self.set_node_timeout(NODE_TIMEOUT)
    }

    fn set_node_timeout(&self, millis: &str) -> Result<(), Error> {
        let set = |node: &Server| node.cli(&["CONFIG", "SET", "cluster-node-timeout", millis]).map(drop);
        self.nodes().try_for_each(set)
    }

    /// Returns the nodes that have not been [killed](Self::kill), the initial primaries first.
    pub fn nodes(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().flatten()
    }

    /// Returns the URLs of all nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes().map(|node| node.url().to_owned()).collect()
    }

    /// Returns the TLS URLs of the nodes of a cluster [started with TLS](Self::start_with_tls).
    ///
    /// # Errors
    ///
    /// If a node does not report its TLS port.
    pub fn tls_urls(&self) -> Result<Vec<String>, Error> {
        let url = |node: &Server| {
            let reply = node.cli(&["CONFIG", "GET", "tls-port"])?;
            let port = reply.split('"').nth(3).unwrap_or_default();
            Ok(format!("rediss://127.0.0.1:{port}"))
        };
        self.nodes().map(url).collect()
    }

    /// Runs redis-cli at one running node: see [`Server::cli`].
    ///
    /// # Errors
    ///
    /// As for [`Server::cli`].
    pub fn cli(&self, arguments: &[&str]) -> Result<String, Error> {
        self.nodes()
            .next()
            .map_or_else(|| Err(Error::Cli("no node is left".to_owned())), |node| node.cli(arguments))
    }

    /// Removes all keys. For primaries without replicas.
    ///
    /// # Errors
    ///
    /// If a node does not answer, or is a replica.
    pub fn flush(&self) -> Result<(), Error> {
        self.nodes().try_for_each(Server::flush)
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
    /// If the clocks of the cluster cannot be stopped.
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

/// Returns a free port whose bus port is free too.
fn free_ports() -> Result<u16, Error> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let random = RandomState::new().build_hasher().finish();
    let ports =
        (0..PORTS.len() as u64).map(|n| PORTS.start + ((random.wrapping_add(n)) % PORTS.len() as u64) as u16);
    let mut free = ports.filter(|&port| is_free(port) && is_free(port + BUS));
    free.next().ok_or_else(|| Error::Process("no two free ports for a node".to_owned()))
}

fn host_and_port(node: &Server) -> (&str, &str) {
    node.url().trim_start_matches("redis://").split_once(':').unwrap_or_default()
}

fn expect_ok(node: &Server, command: &[&str]) -> Result<(), Error> {
    let reply = node.cli(&[&["CLUSTER"], command].concat())?;
    if reply == "OK" {
        Ok(())
    } else {
        Err(Error::Process(format!("CLUSTER {}: {reply}", command.join(" "))))
    }
}

/// Returns whether the node knows this number of nodes.
fn knows_all(node: &Server, nodes: usize) -> bool {
    let state = node.cli(&["CLUSTER", "INFO"]).unwrap_or_default();
    state.lines().any(|line| line.trim() == format!("cluster_known_nodes:{nodes}"))
}

/// Returns whether the node reports all slots served, knows all nodes, and has the data of its primary.
fn is_whole(node: &Server, nodes: usize) -> bool {
    let state = node.cli(&["CLUSTER", "INFO"]).unwrap_or_default();
    let replication = node.cli(&["INFO", "replication"]).unwrap_or_default();
    state.contains("cluster_state:ok") && knows_all(node, nodes) && !replication.contains("link_status:down")
}
