//! The known nodes, and the node that serves each hash tag.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::{ConnectionAddr, ConnectionInfo};

use super::Address;
use crate::connection::connect::{Login, with_address};
use crate::connection::node::Node;
use crate::connection::source::{ConnectionSource, Expected};
use crate::error::Error;
use crate::key::{HASH_TAGS, HashTag};
use crate::runtime::background::Background;

/// Keeps at most one node per hash tag, besides nodes that callers currently use.
pub(super) struct Map {
    /// The settings to connect to each node, except its address.
    template: ConnectionInfo,
    login: Login,
    background: Arc<Background>,
    seeds: Vec<Address>,
    members: BTreeMap<Address, Arc<Member>>,
    owners: [Option<Arc<Member>>; HASH_TAGS],
    /// Rotates the first node to try.
    turn: usize,
    is_closed: bool,
    /// The number of connections made to any node.
    connections: Arc<AtomicU64>,
}

/// A node and its address.
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) node: Node,
}

impl Map {
    pub(super) fn new(
        nodes: &[ConnectionInfo],
        login: Login,
        background: Arc<Background>,
    ) -> Result<Self, Error> {
        let Some(first) = nodes.first() else {
            return Err(Error::config(
                "no cluster node: pass the builder at least one URL, preferably several",
            ));
        };
        let seeds = nodes.iter().map(|node| match node.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok((host.clone(), *port))
            }
            _ => Err(Error::config("a cluster node needs a host and a port, not a socket path")),
        });
        let seeds = seeds.collect::<Result<_, _>>()?;
        let is_tls = |node: &ConnectionInfo| matches!(node.addr(), ConnectionAddr::TcpTls { .. });
        let credentials = |node: &ConnectionInfo| {
            let settings = node.redis_settings();
            (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
        };
        if nodes.iter().any(|node| is_tls(node) != is_tls(first) || credentials(node) != credentials(first)) {
            return Err(Error::config(
                "the URLs of the cluster nodes have different users, passwords or schemes: they must be the same",
            ));
        }
        if nodes.iter().any(|node| node.redis_settings().db() != 0) {
            return Err(Error::config("a cluster has only database 0: remove the database from the URLs"));
        }
        Ok(Self {
            template: first.clone(),
            login,
            background,
            seeds,
            members: BTreeMap::new(),
            owners: [const { None }; HASH_TAGS],
            turn: 0,
            is_closed: false,
            connections: Arc::default(),
        })
    }

    /// Returns the node that serves a hash tag, if known.
    pub(super) fn owner(&self, hash_tag: Option<HashTag>) -> Result<Option<Arc<Member>>, Error> {
        if self.is_closed {
            return Err(Error::shut_down());
        }
        Ok(hash_tag.and_then(|hash_tag| self.owners[hash_tag.index()].clone()))
    }

    /// Records that a node has answered for a hash tag.
    pub(super) fn learn(&mut self, hash_tag: Option<HashTag>, member: Arc<Member>) {
        if let Some(hash_tag) = hash_tag
            && !self.is_closed
        {
            self.members.insert(member.address.clone(), member.clone());
            self.owners[hash_tag.index()] = Some(member);
            self.forget();
        }
    }

    /// Records a redirect by another node.
    pub(super) fn moved(&mut self, hash_tag: Option<HashTag>, address: Address) -> Result<(), Error> {
        let member = self.member(address)?;
        self.learn(hash_tag, member);
        Ok(())
    }

    pub(super) fn member(&mut self, address: Address) -> Result<Arc<Member>, Error> {
        if self.is_closed {
            return Err(Error::shut_down());
        }
        if let Some(member) = self.members.get(&address) {
            return Ok(member.clone());
        }
        self.forget();
        let (host, port) = address.clone();
        let info = Box::new(with_address(&self.template, host, port));
        let source = ConnectionSource::Server(info, self.login.clone(), Expected::ClusterNode);
        let member = Arc::new(Member {
            address: address.clone(),
            node: Node::new(source, self.background.clone(), self.connections.clone()),
        });
        self.members.insert(address, member.clone());
        Ok(member)
    }

    /// Removes nodes that serve no hash tag and that no caller uses.
    fn forget(&mut self) {
        self.members.retain(|_, member| Arc::strong_count(member) > 1);
    }

    /// Returns all known nodes: connected ones first, the owner last.
    pub(super) fn members(&mut self, owner: Option<&Arc<Member>>) -> Result<Vec<Arc<Member>>, Error> {
        let mut members: Vec<Arc<Member>> = self.members.values().cloned().collect();
        for seed in self.seeds.clone() {
            let seed = self.member(seed)?;
            if !members.iter().any(|member| Arc::ptr_eq(member, &seed)) {
                members.push(seed);
            }
        }
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn % members.len();
        members.rotate_left(first);
        members.sort_by_cached_key(|member| {
            let is_owner = owner.is_some_and(|owner| Arc::ptr_eq(owner, member));
            (is_owner, !member.node.is_connected(), member.node.is_in_doubt())
        });
        Ok(members)
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.members.values().for_each(|member| member.node.close());
        self.members.clear();
        self.owners = [const { None }; HASH_TAGS];
    }

    /// Returns the number of connections to any node made so far.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.members.values().any(|member| member.node.is_connected())
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    fn map() -> Map {
        let seed = "redis://seed:1".into_connection_info().unwrap();
        Map::new(&[seed], Login::default(), Arc::default()).unwrap()
    }

    fn at(port: u16) -> Address {
        ("node".to_owned(), port)
    }

    #[test]
    fn a_node_without_hash_tags_is_removed() {
        let mut map = map();
        for hash_tag in HashTag::all() {
            map.moved(Some(hash_tag), at(1)).unwrap();
        }
        assert_eq!(map.members.keys().collect::<Vec<_>>(), [&at(1)]);
        for hash_tag in HashTag::all() {
            assert!(map.members.contains_key(&at(1)));
            map.moved(Some(hash_tag), at(2)).unwrap();
        }
        assert_eq!(map.members.keys().collect::<Vec<_>>(), [&at(2)]);
    }

    #[test]
    fn the_number_of_nodes_is_bounded_by_the_number_of_hash_tags() {
        let mut map = map();
        for port in 1..10_000 {
            map.moved(HashTag::all().nth(usize::from(port) % HASH_TAGS), at(port)).unwrap();
            // Adds a node, as `ASK` does.
            map.member(at(20_000 + port)).unwrap();
            map.members(None).unwrap();
            assert!(map.members.len() <= HASH_TAGS + 3, "{}", map.members.len());
        }
    }

    #[test]
    fn a_closed_map_returns_errors_and_records_no_nodes() {
        let mut map = map();
        map.moved(Some(HashTag::default()), at(1)).unwrap();
        map.close();
        assert!(map.owner(Some(HashTag::default())).is_err_and(|error| error.is_shut_down()));
        assert!(map.moved(Some(HashTag::default()), at(1)).is_err_and(|error| error.is_shut_down()));
        assert!(map.members(None).is_err_and(|error| error.is_shut_down()));
        assert!(map.members.is_empty());
    }
}
