//! A Redis Cluster: one connection to each node in use, and the node that serves each of the 48 hash tags.
//!
//! A node replies `MOVED` to a call for a slot that another node serves. The client sends no other query for
//! the topology, so it needs the same permissions as for a single server. It only checks by HELLO, which needs none, that
//! cluster mode is on.
//!
//! # Why not the cluster client of redis-rs
//!
//! It serves no node while it looks up slots or waits for a connection. Measured with redis-rs 1.8.1, its
//! retries off: after one of three primaries was stopped, the other two decided nothing for 2.1 s
//! (`docs/decisions/0020-cluster-client.md`). Upstream, in redis-rs:
//!
//! - Issue #2092, closed: a bad node blocks the calls to all nodes for seconds.
//! - Pull request #2120, its fix in 1.4.0: calls continue while the connection to a replica is repaired, if
//!   there are nodes to fall back to. The measured version contains it.
//! - Issue #2277, open in August 2026, a regression from #2120: calls fail if enough connections are stale at
//!   once. They use up their retries before the reconnects in the background run.
//!
//! Delete this module when the client of redis-rs passes `tests/cluster`, above all these tests:
//!
//! - `paused_primary_does_not_delay_the_others_and_is_disconnected`
//! - `lost_refund_is_not_retried_and_lost_check_is_retried_at_most_once`
//! - `permissions_for_a_single_server_suffice`: no `CLUSTER SLOTS`
//!
//! It must also send `ASKING` and its command in one write, as `Link` does: 1.8.1 sends them apart on a shared
//! connection.

mod map;

use std::iter::repeat_with;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[cfg(feature = "regions")]
use redis::ConnectionAddr;
use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::Instant;

use self::map::{Map, Member};
use super::connect::Login;
#[cfg(feature = "regions")]
use super::connect::with_address;
use super::deadline::{Deadline, NODE};
use super::node::{Exchanged, Live, NodeRequest};
use super::retry::{REDIRECT_PAUSES, RetryBudget};
use super::source::addresses_of;
use crate::error::Error;
use crate::key::{HASH_TAGS, HashTag};
use crate::runtime::background::Background;

/// The minimum time between two searches for the node of one hash tag, for all callers together.
const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct Cluster {
    map: Mutex<Map>,
    /// By hash tag: only one caller at a time searches for the node that has taken it over.
    searches: Box<[tokio::sync::Mutex<LastSearch>]>,
    /// The nodes of the builder.
    address: String,
}

/// The time of the last search.
type LastSearch = Option<Instant>;

/// The node that receives a call.
struct ChosenNode {
    member: Arc<Member>,
    live: Live,
    /// Whether it serves the hash tag, according to the map.
    is_owner: bool,
}

impl Cluster {
    /// Fails if the nodes' settings differ.
    pub(crate) fn new(
        nodes: &[ConnectionInfo],
        login: Login,
        background: Arc<Background>,
    ) -> Result<Self, Error> {
        let searches = repeat_with(tokio::sync::Mutex::default).take(HASH_TAGS).collect();
        let address = format!("the cluster of {}", addresses_of(nodes.iter()));
        Ok(Self { map: Mutex::new(Map::new(nodes, login, background)?), searches, address })
    }

    /// Returns the addresses of the builder's nodes, without credentials.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a command. The outer error means that no answer arrived; the inner one is the server's error. A
    /// redirect (`MOVED`, `ASK`) means that the node did nothing, so any redirected command can be sent again.
    pub(super) async fn send(
        &self,
        request: &NodeRequest<'_>,
        hash_tag: Option<HashTag>,
        deadline: Deadline,
        retries: &mut RetryBudget,
    ) -> Result<RedisResult<Value>, Error> {
        let mut pauses = REDIRECT_PAUSES.into_iter();
        let mut search = None;
        loop {
            let ChosenNode { member, live, is_owner } =
                self.choose_node(hash_tag, &mut search, deadline).await?;
            let mut exchanged = member.node.exchange(live, request, false, deadline).await;
            let mut is_importing = false;
            if let Exchanged::Reply(Err(error)) = &exchanged
                && let Some(Redirect::Ask(address)) = Redirect::of(error, &member.address)
            {
                let member = self.map().member(address)?;
                if let Ok(live) = member.node.connected(deadline).await {
                    exchanged = member.node.exchange(live, request, true, deadline).await;
                    is_importing = true;
                }
            }
            let reply = match exchanged {
                Exchanged::Reply(reply) => reply,
                Exchanged::Rejected(reply) => return Ok(reply),
                Exchanged::Lost(_) if retries.take_after_loss() => continue,
                Exchanged::Lost(error) | Exchanged::TimedOut(error) => return Err(error),
            };
            match reply.as_ref().map_err(|error| Redirect::of(error, &member.address)) {
                Ok(_) if is_owner || is_importing => return Ok(reply),
                Ok(_) => {
                    self.map().learn(hash_tag, member);
                    return Ok(reply);
                }
                Err(Some(Redirect::Moved(address))) if !is_importing => {
                    self.map().moved(hash_tag, address)?
                }
                Err(Some(_)) => {}
                // All nodes reply this until a replica is promoted.
                Err(None) if search.is_some() && is_down(&reply) => {}
                Err(None) => return Ok(reply),
            }
            let Some(pause) = pauses.next() else { return Ok(reply) };
            self.pause(hash_tag, pause, deadline).await?;
        }
    }

    /// Returns the node of a hash tag. If that node is unknown or does not answer, returns another node,
    /// which redirects the call or has taken the hash tag over.
    async fn choose_node<'a>(
        &'a self,
        hash_tag: Option<HashTag>,
        search: &mut Option<tokio::sync::MutexGuard<'a, LastSearch>>,
        deadline: Deadline,
    ) -> Result<ChosenNode, Error> {
        loop {
            let owner = self.map().owner(hash_tag)?;
            let (Some(owner), Some(hash_tag)) = (owner, hash_tag) else {
                return self.any_node(None, deadline).await;
            };
            if owner.node.is_in_doubt() {
                let Some(last_search) = search else {
                    // Another caller may have found the node while this one waited for the lock, so checks
                    // again first.
                    let turn = tokio::time::timeout_at(deadline.at, self.searches[hash_tag.index()].lock());
                    *search = Some(turn.await.map_err(|_| deadline.passed(NODE))?);
                    continue;
                };
                let pause =
                    last_search.map_or(Duration::ZERO, |last| SEARCH_INTERVAL.saturating_sub(last.elapsed()));
                if pause.is_zero() {
                    **last_search = Some(Instant::now());
                    return self.any_node(Some(&owner), deadline).await;
                }
                self.pause(Some(hash_tag), pause, deadline).await?;
                continue;
            }
            *search = None;
            match owner.node.connected(deadline).await {
                Ok(live) => return Ok(ChosenNode { member: owner, live, is_owner: true }),
                Err(_) if owner.node.is_in_doubt() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns any node with a connection. Tries connected nodes first and the owner last.
    async fn any_node(&self, owner: Option<&Arc<Member>>, deadline: Deadline) -> Result<ChosenNode, Error> {
        let mut members = self.map().members(owner)?.into_iter();
        let mut why = Error::unavailable("no node of the cluster is known");
        while let Some(member) = members.next() {
            // Divides the remaining time, so that a silent node does not use up the time of the others.
            let left = deadline.at.saturating_duration_since(Instant::now());
            let part = deadline.within(left / (members.len() as u32 + 1));
            match member.node.connected(part).await {
                Ok(live) => {
                    let is_owner = owner.is_some_and(|owner| Arc::ptr_eq(owner, &member));
                    return Ok(ChosenNode { member, live, is_owner });
                }
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Waits for the pause, or until the hash tag's node is reachable again.
    async fn pause(
        &self,
        hash_tag: Option<HashTag>,
        pause: Duration,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let pause = deadline.within(pause);
        let owner = self.map().owner(hash_tag)?;
        if let Some(owner) = owner
            && owner.node.is_in_doubt()
            && owner.node.connected(pause).await.is_ok()
        {
            return Ok(());
        }
        tokio::time::sleep_until(pause.at).await;
        if pause.at < deadline.at { Ok(()) } else { Err(deadline.passed(NODE)) }
    }

    #[cfg(feature = "admin")]
    pub(super) fn node_of(&self, hash_tag: HashTag) -> Option<(String, u16)> {
        self.map().owner(Some(hash_tag)).ok().flatten().map(|owner| owner.address.clone())
    }

    pub(super) fn close(&self) {
        self.map().close();
    }

    /// Returns the number of connections to any node made so far.
    pub(super) fn connections(&self) -> u64 {
        self.map().connections()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.map().is_connected()
    }

    fn map(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_down(reply: &RedisResult<Value>) -> bool {
    reply.as_ref().is_err_and(|error| error.code() == Some("CLUSTERDOWN"))
}

// Redirects: the replies of a node for a slot that it does not serve.

/// Host and port.
type Address = (String, u16);

#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// That node serves the slot.
    Moved(Address),
    /// The slot is moving to that node, and the requested keys have moved already.
    Ask(Address),
}

impl Redirect {
    /// Parses a redirect. If the reply has no host, the host by which the replying node was reached applies.
    fn of(error: &RedisError, by: &Address) -> Option<Self> {
        let (address, _) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.is_empty() { &*by.0 } else { host };
        let address = (host.to_owned(), port.parse().ok()?);
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask) => Some(Self::Ask(address)),
            _ => Some(Self::Moved(address)),
        }
    }
}

/// Returns the settings of the node that serves a slot now, by the reply of the node with these settings.
#[cfg(feature = "regions")]
pub(super) fn node_of_redirect(reply: &Value, by: &ConnectionInfo) -> Option<ConnectionInfo> {
    let (Value::ServerError(error), ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) =
        (reply, by.addr())
    else {
        return None;
    };
    match Redirect::of(&error.clone().into(), &(host.clone(), 0))? {
        Redirect::Moved((host, port)) => Some(with_address(by, host, port)),
        Redirect::Ask(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_without_a_host_means_the_host_of_the_replying_node() {
        let by = ("10.0.0.1".to_owned(), 6379);
        let redirect = |reply: &str| {
            let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
            Redirect::of(&reply.extract_error().unwrap_err(), &by)
        };
        let at = |host: &str, port| (host.to_owned(), port);
        assert_eq!(redirect("MOVED 3999 10.0.0.2:6381"), Some(Redirect::Moved(at("10.0.0.2", 6381))));
        assert_eq!(redirect("MOVED 3999 :6381"), Some(Redirect::Moved(at("10.0.0.1", 6381))));
        assert_eq!(redirect("ASK 3999 ::1:6381"), Some(Redirect::Ask(at("::1", 6381))));
        for reply in ["MOVED 3999 10.0.0.2", "MOVED 3999 10.0.0.2:none", "MOVED", "ERR 1 10.0.0.2:6381"] {
            assert_eq!(redirect(reply), None, "{reply}");
        }
    }
}
