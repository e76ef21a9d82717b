//! What faults happen to.

use std::time::{Duration, Instant};

use harness::{Proxy, Sentinels, Server};
use redis::Connection;

use crate::support::fixture::PATIENCE;
use crate::support::load::{To, now_us};

#[cfg(feature = "cluster")]
use super::clusters::Nodes;

/// How the limiter gets to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    Proxied,
    /// Direct, as a user of its own.
    User,
    /// Direct, to a server whose clock can be set.
    Clock,
    Sentinels,
    #[cfg(feature = "cluster")]
    Cluster,
    /// To a cluster in which nothing but slots changes its place.
    #[cfg(feature = "cluster")]
    Primaries,
}

enum Stage {
    Server(Box<Server>),
    Sentinels(Box<Sentinels>),
    #[cfg(feature = "cluster")]
    Cluster(Nodes),
}

/// And what they did.
pub struct Ground {
    way: Way,
    stage: Stage,
    proxy: Option<Proxy>,
    /// For how long things stay broken.
    pub hold: Duration,
    /// How often, where they break again and again.
    pub times: u32,
    pub broken_us: u64,
    pub mended_us: u64,
    /// How often the state was lost, and when for the last time.
    pub losses: u64,
    pub lost_us: u64,
    /// Where the clock was stepped: a time between the first step and the last, and by how much it was
    /// stepped back in all.
    pub stepped: Option<(u64, u64)>,
}

pub const PASSWORD: &str = "one";

impl Ground {
    pub fn new(way: Way, hold: Duration, times: u32) -> Self {
        let stage = match way {
            Way::Clock => Stage::Server(Server::with_shiftable_clock().unwrap().into()),
            Way::Sentinels => Stage::Sentinels(Sentinels::start().unwrap().into()),
            #[cfg(feature = "cluster")]
            Way::Cluster => Stage::Cluster(Nodes::start()),
            #[cfg(feature = "cluster")]
            Way::Primaries => Stage::Cluster(Nodes::of_primaries()),
            _ => Stage::Server(Server::process(&[]).unwrap().into()),
        };
        let mut ground = Self {
            way,
            stage,
            proxy: None,
            hold,
            times,
            broken_us: 0,
            mended_us: 0,
            losses: 0,
            lost_us: 0,
            stepped: None,
        };
        match way {
            Way::User => {
                let user = ["ACL", "SETUSER", "limiter", "on", "~*", "&*", "+@all"];
                ground.server().cli(&[&user[..], &[&format!(">{PASSWORD}")]].concat()).unwrap();
            }
            Way::Proxied => ground.proxy = Some(Proxy::start(ground.server().url()).unwrap()),
            _ => {}
        }
        ground
    }

    pub fn to(&self) -> To {
        match &self.stage {
            Stage::Sentinels(sentinels) => To::Sentinels(sentinels.urls(), sentinels.name().to_owned()),
            #[cfg(feature = "cluster")]
            Stage::Cluster(nodes) => To::Cluster(nodes.cluster.urls()),
            Stage::Server(server) => To::Url(match (&self.proxy, self.way) {
                (Some(proxy), _) => proxy.url(),
                (None, Way::User) => server.url().replace("//", &format!("//limiter:{PASSWORD}@")),
                (None, _) => server.url().to_owned(),
            }),
        }
    }

    pub fn server(&mut self) -> &mut Server {
        match &mut self.stage {
            Stage::Server(server) => server,
            _ => panic!("{:?} has no single server", self.way),
        }
    }

    pub fn sentinels(&mut self) -> &mut Sentinels {
        match &mut self.stage {
            Stage::Sentinels(sentinels) => sentinels,
            _ => panic!("{:?} has no sentinels", self.way),
        }
    }

    #[cfg(feature = "cluster")]
    pub fn nodes(&mut self) -> &mut Nodes {
        match &mut self.stage {
            Stage::Cluster(nodes) => nodes,
            _ => panic!("{:?} is no cluster", self.way),
        }
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    pub fn redis(&mut self) -> Connection {
        connect(self.server().url())
    }

    pub fn broken(&mut self) {
        self.broken_us = now_us();
    }

    pub fn mended(&mut self) {
        self.mended_us = now_us();
    }

    pub fn lost(&mut self) {
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

    /// The numbers of the processes that serve.
    pub fn processes(&self) -> Vec<String> {
        let number = |server: &&Server| field(server, "server", "process_id");
        self.servers().iter().map(|server| number(server).to_string()).collect()
    }

    /// How many connections a limiter may have when nothing goes on: one, or one that is given up beside it.
    pub fn most_connections(&self) -> usize {
        match &self.stage {
            #[cfg(feature = "cluster")]
            Stage::Cluster(nodes) => 2 * nodes.cluster.nodes().count(),
            _ => 2,
        }
    }

    /// How many connections came so far; of several servers nobody counts.
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

/// A number in what the server says of itself.
fn field(server: &Server, section: &str, name: &str) -> u64 {
    let info = server.cli(&["INFO", section]).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).unwrap()
}

/// Waits, without a runtime, until something is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < 3 * PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
