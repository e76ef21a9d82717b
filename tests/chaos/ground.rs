//! The servers and networks that faults are injected into.

use std::time::{Duration, Instant};

use redis::Connection;
use tidegate_testkit::{Proxy, Sentinels, Server};

use crate::support::fixture::PATIENCE;
use crate::support::load::{To, now_us};

#[cfg(feature = "cluster")]
use super::clusters::Nodes;

/// The connection between the limiter and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Direct,
    Proxied,
    /// Direct, as a separate ACL user.
    User,
    /// Direct, to a server whose clock the test can shift.
    Clock,
    Sentinels,
    #[cfg(feature = "cluster")]
    Cluster,
    /// A cluster in which slots move but no primary changes its role.
    #[cfg(feature = "cluster")]
    Primaries,
}

enum Stage {
    Server(Box<Server>),
    Sentinels(Box<Sentinels>),
    #[cfg(feature = "cluster")]
    Cluster(Nodes),
}

/// The target of a fault, with the times at which the fault began and ended.
pub struct Ground {
    topology: Topology,
    stage: Stage,
    proxy: Option<Proxy>,
    /// Duration of the fault.
    pub hold: Duration,
    /// Number of repetitions, for repeated faults.
    pub times: u32,
    pub broken_us: u64,
    pub repaired_us: u64,
    /// Number of times that state was lost.
    pub losses: u64,
    /// Time of the last loss.
    pub lost_us: u64,
    /// If the clock was stepped: a time between the step back and the last step, and the microseconds of the
    /// step back.
    pub stepped: Option<(u64, u64)>,
}

pub const PASSWORD: &str = "one";

impl Ground {
    pub fn new(topology: Topology, hold: Duration, times: u32) -> Self {
        let stage = match topology {
            Topology::Clock => Stage::Server(Server::with_shiftable_clock().unwrap().into()),
            Topology::Sentinels => Stage::Sentinels(Sentinels::start().unwrap().into()),
            #[cfg(feature = "cluster")]
            Topology::Cluster => Stage::Cluster(Nodes::start()),
            #[cfg(feature = "cluster")]
            Topology::Primaries => Stage::Cluster(Nodes::of_primaries()),
            _ => Stage::Server(Server::process(&[]).unwrap().into()),
        };
        let mut ground = Self {
            topology,
            stage,
            proxy: None,
            hold,
            times,
            broken_us: 0,
            repaired_us: 0,
            losses: 0,
            lost_us: 0,
            stepped: None,
        };
        match topology {
            Topology::User => {
                let user = ["ACL", "SETUSER", "limiter", "on", "~*", "&*", "+@all"];
                ground.server().cli(&[&user[..], &[&format!(">{PASSWORD}")]].concat()).unwrap();
            }
            Topology::Proxied => ground.proxy = Some(Proxy::start(ground.server().url()).unwrap()),
            _ => {}
        }
        ground
    }

    pub fn to(&self) -> To {
        match &self.stage {
            Stage::Sentinels(sentinels) => To::Sentinels(sentinels.urls(), sentinels.name().to_owned()),
            #[cfg(feature = "cluster")]
            Stage::Cluster(nodes) => To::Cluster(nodes.cluster.urls()),
            Stage::Server(server) => To::Url(match (&self.proxy, self.topology) {
                (Some(proxy), _) => proxy.url(),
                (None, Topology::User) => server.url().replace("//", &format!("//limiter:{PASSWORD}@")),
                (None, _) => server.url().to_owned(),
            }),
        }
    }

    pub fn server(&mut self) -> &mut Server {
        match &mut self.stage {
            Stage::Server(server) => server,
            _ => panic!("{:?} has no single server", self.topology),
        }
    }

    pub fn sentinels(&mut self) -> &mut Sentinels {
        match &mut self.stage {
            Stage::Sentinels(sentinels) => sentinels,
            _ => panic!("{:?} has no sentinels", self.topology),
        }
    }

    #[cfg(feature = "cluster")]
    pub fn nodes(&mut self) -> &mut Nodes {
        match &mut self.stage {
            Stage::Cluster(nodes) => nodes,
            _ => panic!("{:?} is not a cluster", self.topology),
        }
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    pub fn redis(&mut self) -> Connection {
        connect(self.server().url())
    }

    pub fn mark_broken(&mut self) {
        self.broken_us = now_us();
    }

    pub fn mark_repaired(&mut self) {
        self.repaired_us = now_us();
    }

    pub fn mark_lost(&mut self) {
        self.losses += 1;
        self.lost_us = now_us();
    }

    fn servers(&self) -> Vec<&Server> {
        match &self.stage {
            Stage::Server(server) => vec![server],
            Stage::Sentinels(sentinels) => {
                sentinels.primary().into_iter().chain([sentinels.replica()]).collect()
            }
            #[cfg(feature = "cluster")]
            Stage::Cluster(nodes) => nodes.cluster.nodes().collect(),
        }
    }

    /// Returns the process ids of the servers.
    pub fn processes(&self) -> Vec<String> {
        let process_id = |server: &&Server| field(server, "server", "process_id");
        self.servers().iter().map(|server| process_id(server).to_string()).collect()
    }

    /// Returns the number of connections that an idle limiter may have. For each server it is one in use, and
    /// one that is closing.
    pub fn max_connections(&self) -> usize {
        match &self.stage {
            #[cfg(feature = "cluster")]
            Stage::Cluster(nodes) => 2 * nodes.cluster.nodes().count(),
            _ => 2,
        }
    }

    /// Returns the number of connections accepted so far. `None` if there are several servers.
    pub fn connections(&self) -> Option<u64> {
        match (&self.proxy, &self.stage) {
            (Some(proxy), _) => Some(proxy.counts().connections),
            (None, Stage::Server(server)) => Some(field(server, "stats", "total_connections_received")),
            _ => None,
        }
    }
}

pub fn connect(url: &str) -> Connection {
    redis::Client::open(url).unwrap().get_connection().unwrap()
}

/// Reads a number from a section of `INFO`.
fn field(server: &Server, section: &str, name: &str) -> u64 {
    let info = server.cli(&["INFO", section]).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).unwrap()
}

/// Blocks the thread until the condition holds.
pub fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < 3 * PATIENCE, "timed out: {condition}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
