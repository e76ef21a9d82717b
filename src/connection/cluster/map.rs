//! The known nodes, and the node that serves each hash tag.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};

use super::redirect::Address;
use crate::background::Background;
use crate::connection::from::{From, like};
use crate::connection::login::Login;
use crate::connection::node::Node;
use crate::error::Error;
use crate::key::{PLACES, Place};

/// Keeps at most one node per hash tag, besides nodes that callers currently use.
pub(super) struct Map {
    /// The settings to connect to each node, except its address.
    like: ConnectionInfo,
    login: Login,
    background: Arc<Background>,
    seeds: Vec<Address>,
    members: BTreeMap<Address, Arc<Member>>,
    owners: [Option<Arc<Member>>; PLACES],
    /// Rotates the first node to try.
    turn: usize,
    is_closed: bool,
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
                "no node of the cluster: give the builder at least one URL, better several",
            ));
        };
        let seeds = nodes.iter().map(|node| match node.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok((host.clone(), *port))
            }
            _ => {
                Err(Error::config("a node of a cluster is reached by host and port, not by a socket's path"))
            }
        });
        let seeds = seeds.collect::<Result<_, _>>()?;
        let is_tls = |node: &ConnectionInfo| matches!(node.addr(), ConnectionAddr::TcpTls { .. });
        let as_whom = |node: &ConnectionInfo| {
            let settings = node.redis_settings();
            (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
        };
        if nodes.iter().any(|node| is_tls(node) != is_tls(first) || as_whom(node) != as_whom(first)) {
            return Err(Error::config(
                "the nodes of a cluster are given with different users, passwords or schemes: they must be the same",
            ));
        }
        if nodes.iter().any(|node| node.redis_settings().db() != 0) {
            return Err(Error::config("a cluster has no database but 0: leave it out of the URLs"));
        }
        Ok(Self {
            like: first.clone(),
            login,
            background,
            seeds,
            members: BTreeMap::new(),
            owners: [const { None }; PLACES],
            turn: 0,
            is_closed: false,
        })
    }

    /// Returns the node that serves a hash tag, if known.
    pub(super) fn owner(&self, place: Option<Place>) -> Result<Option<Arc<Member>>, Error> {
        if self.is_closed {
            return Err(Error::shut_down());
        }
        Ok(place.and_then(|place| self.owners[place.index()].clone()))
    }

    /// Records that a node has answered for a hash tag.
    pub(super) fn learn(&mut self, place: Option<Place>, member: Arc<Member>) {
        if let Some(place) = place
            && !self.is_closed
        {
            self.members.insert(member.address.clone(), member.clone());
            self.owners[place.index()] = Some(member);
            self.forget();
        }
    }

    /// Records a redirect by another node.
    pub(super) fn moved(&mut self, place: Option<Place>, address: Address) -> Result<(), Error> {
        let member = self.member(address)?;
        self.learn(place, member);
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
        let from = From::Server(Box::new(like(&self.like, host, port)), self.login.clone());
        let member =
            Arc::new(Member { address: address.clone(), node: Node::new(from, self.background.clone()) });
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
        self.owners = [const { None }; PLACES];
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
    fn a_node_that_serves_no_place_any_more_is_forgotten() {
        let mut map = map();
        for place in Place::all() {
            map.moved(Some(place), at(1)).unwrap();
        }
        assert_eq!(map.members.keys().collect::<Vec<_>>(), [&at(1)]);
        for place in Place::all() {
            assert!(map.members.contains_key(&at(1)));
            map.moved(Some(place), at(2)).unwrap();
        }
        assert_eq!(map.members.keys().collect::<Vec<_>>(), [&at(2)]);
    }

    #[test]
    fn no_more_nodes_are_kept_than_there_are_places_however_many_are_named() {
        let mut map = map();
        for port in 1..10_000 {
            map.moved(Place::all().nth(usize::from(port) % PLACES), at(port)).unwrap();
            // Adds a node, as `ASK` does.
            map.member(at(20_000 + port)).unwrap();
            map.members(None).unwrap();
            assert!(map.members.len() <= PLACES + 3, "{}", map.members.len());
        }
    }

    #[test]
    fn after_the_end_nothing_is_asked_or_learned() {
        let mut map = map();
        map.moved(Some(Place::default()), at(1)).unwrap();
        map.close();
        assert!(map.owner(Some(Place::default())).is_err_and(|error| error.is_shut_down()));
        assert!(map.moved(Some(Place::default()), at(1)).is_err_and(|error| error.is_shut_down()));
        assert!(map.members(None).is_err_and(|error| error.is_shut_down()));
        assert!(map.members.is_empty());
    }
}
