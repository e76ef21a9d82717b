//! One connection to a server, shared by all callers: made when first needed, and made again when lost or
//! when the server is no longer the primary. In a cluster, one connection per node.
//!
//! A pool checkout per check would cost two round trips more. Redis answers a multiplexed connection in
//! order, so several connections would gain nothing.
//!
//! The path of a call: `Connection::run`, then `send_to`, or `Cluster::send` in a cluster. Both get the
//! connection by `Node::connected` (from the `ConnectionSlot`), send by `Node::exchange` (through a `Link`),
//! and retry within the `RetryBudget`: all retries are listed in `retry.rs`.

#[cfg(feature = "cluster")]
mod cluster;
mod connect;
mod deadline;
#[cfg(feature = "regions")]
mod dedicated;
mod link;
mod node;
mod reply;
mod retry;
mod sentinel;
mod slot;
mod source;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;

use redis::{Cmd, ConnectionInfo, RedisError, RedisResult, Value};

#[cfg(feature = "cluster")]
pub(crate) use self::cluster::Cluster;
pub(crate) use self::connect::Login;
pub(crate) use self::deadline::Deadline;
use self::deadline::{ANSWER, CONNECTION};
#[cfg(feature = "regions")]
pub(crate) use self::dedicated::DedicatedConnection;
use self::node::{Exchanged, Node, NodeRequest};
pub(crate) use self::reply::words;
use self::retry::RetryBudget;
pub(crate) use self::sentinel::Sentinels;
#[cfg(feature = "regions")]
pub(crate) use self::slot::Backoff;
use self::source::{ConnectionSource, Expected};
#[cfg(feature = "tls")]
pub(crate) use self::tls::Tls;
use crate::error::Error;
use crate::key::HashTag;
use crate::runtime::background::Background;
use crate::script::Script;

pub(crate) struct Connection(Servers);

enum Servers {
    One(Node),
    #[cfg(feature = "cluster")]
    Cluster(Box<Cluster>),
}

/// The options of a script call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTarget {
    /// The hash tag of all its keys, if it has keys.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "all hash tags are on one server"))]
    pub(crate) hash_tag: Option<HashTag>,
    pub(crate) deadline: Deadline,
    /// Whether a call on a lost connection is sent once more on a new one. It may then run twice: for a take
    /// this over-charges at worst; for a refund it would be wrong. A call that a replica rejected is sent
    /// once more in either case, except in a cluster.
    pub(crate) is_repeatable: bool,
}

impl Connection {
    pub(crate) fn to_server(info: ConnectionInfo, login: Login, background: Arc<Background>) -> Self {
        Self::one(ConnectionSource::Server(Box::new(info), login, Expected::Any), background)
    }

    pub(crate) fn by_sentinels(sentinels: Sentinels, login: Login, background: Arc<Background>) -> Self {
        Self::one(ConnectionSource::Sentinels(Box::new(sentinels), login), background)
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(cluster: Cluster) -> Self {
        Self(Servers::Cluster(Box::new(cluster)))
    }

    pub(crate) fn of_pool(pool: deadpool_redis::Pool, background: Arc<Background>) -> Self {
        Self::one(ConnectionSource::Pool(pool), background)
    }

    fn one(source: ConnectionSource, background: Arc<Background>) -> Self {
        Self(Servers::One(Node::new(source, background, Arc::default())))
    }

    /// Returns the node that answered last for a hash tag; the same value for all if there is one server.
    #[cfg(feature = "admin")]
    pub(crate) fn node_of(&self, _hash_tag: HashTag) -> Option<(String, u16)> {
        match &self.0 {
            Servers::One(_) => Some(Default::default()),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.node_of(_hash_tag),
        }
    }

    /// Returns the address of the server or servers, without credentials.
    pub(crate) fn address(&self) -> String {
        match &self.0 {
            Servers::One(node) => node.address(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.address().to_owned(),
        }
    }

    /// Closes the connection permanently.
    pub(crate) fn close(&self) {
        match &self.0 {
            Servers::One(node) => node.close(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.close(),
        }
    }

    /// Returns the number of connections made so far.
    pub(crate) fn connections(&self) -> u64 {
        match &self.0 {
            Servers::One(node) => node.connections(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.connections(),
        }
    }

    fn is_connected(&self) -> bool {
        match &self.0 {
            Servers::One(node) => node.is_connected(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.is_connected(),
        }
    }

    /// Names the event that unanswered callers wait for.
    pub(crate) fn waited_for(&self) -> &'static str {
        if self.is_connected() { ANSWER } else { CONNECTION }
    }

    /// Runs a script by its digest, or by its text if the server does not know it. `args` adds the number of
    /// keys, keys and arguments.
    ///
    /// A [bounded](Script::is_bounded) script runs only until the deadline, by the server's clock as far as it is
    /// known. Where it was known wrongly, the server refuses the call, reports its time, and gets the call once more:
    /// a second refusal comes after the deadline.
    pub(crate) async fn run(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd) + Sync,
        to: CallTarget,
    ) -> Result<Value, Error> {
        let mut retries = RetryBudget::new(to.is_repeatable);
        let command = |verb, text: &str, bound_us: Option<u64>| {
            // Large enough for a call with one key, so that it does not reallocate.
            let mut command = Cmd::with_capacity(9, 144 + text.len());
            args(command.arg(verb).arg(text));
            match bound_us {
                _ if !script.is_bounded => {}
                Some(bound_us) => drop(command.arg(bound_us)),
                None => drop(command.arg("")),
            }
            command
        };
        let by_digest = |bound_us| command("EVALSHA", script.digest(), bound_us);
        let by_text = |bound_us| command("EVAL", script.text, bound_us);
        let mut request = NodeRequest { command: &by_digest, is_bounded: script.is_bounded };
        for _ in 0..2 {
            let mut reply = self.send(&request, to, &mut retries).await?;
            if reply.as_ref().is_err_and(is_noscript) {
                request.command = &by_text;
                reply = self.send(&request, to, &mut retries).await?;
            }
            let reply = reply.map_err(script_error)?;
            if !(script.is_bounded && reply::is_late(&reply)) {
                return Ok(reply);
            }
        }
        Err(to.deadline.passed(ANSWER))
    }

    /// Returns the text of INFO.
    pub(crate) async fn info(&self, deadline: Deadline) -> Result<String, Error> {
        let to = CallTarget { hash_tag: None, deadline, is_repeatable: true };
        self.info_sections(&["server", "memory"], to).await
    }

    /// Returns the text of INFO about the load of the node of a hash tag.
    #[cfg(feature = "admin")]
    pub(crate) async fn info_of_load(&self, to: CallTarget) -> Result<String, Error> {
        self.info_sections(&["server", "clients", "memory", "stats", "cpu"], to).await
    }

    async fn info_sections(&self, sections: &[&str], to: CallTarget) -> Result<String, Error> {
        let mut info = redis::cmd("INFO");
        info.arg(sections);
        let reply = self.call(&info, to).await?;
        redis::from_redis_value(reply)
            .map_err(|_| Error::unavailable("INFO returned no text: is this a Redis?"))
    }

    /// Returns one page of a SCAN at `cursor`, from the node of a hash tag. A cursor is valid only on the
    /// server that returned it, so a later page is not retried on a new connection.
    #[cfg(feature = "admin")]
    pub(crate) async fn scan(&self, cursor: u64, pattern: &str, to: CallTarget) -> Result<Value, Error> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1_000);
        let mut retries = if cursor == 0 { RetryBudget::new(true) } else { RetryBudget::none() };
        self.send(&NodeRequest::of(&|_| scan.clone()), to, &mut retries).await?.map_err(script_error)
    }

    /// Runs one command, which needs no script.
    pub(crate) async fn call(&self, command: &Cmd, to: CallTarget) -> Result<Value, Error> {
        let mut retries = RetryBudget::new(to.is_repeatable);
        self.send(&NodeRequest::of(&|_| command.clone()), to, &mut retries).await?.map_err(script_error)
    }

    /// Sends a command. The outer error means that no answer arrived; the inner one is the server's error.
    async fn send(
        &self,
        request: &NodeRequest<'_>,
        to: CallTarget,
        retries: &mut RetryBudget,
    ) -> Result<RedisResult<Value>, Error> {
        match &self.0 {
            Servers::One(node) => send_to(node, request, to.deadline, retries).await,
            #[cfg(feature = "cluster")]
            // Boxed, which keeps the callers' futures small.
            Servers::Cluster(cluster) => {
                Box::pin(cluster.send(request, to.hash_tag, to.deadline, retries)).await
            }
        }
    }
}

async fn send_to(
    node: &Node,
    request: &NodeRequest<'_>,
    deadline: Deadline,
    retries: &mut RetryBudget,
) -> Result<RedisResult<Value>, Error> {
    loop {
        let live = node.connected(deadline).await?;
        match node.exchange(live, request, false, deadline).await {
            Exchanged::Rejected(_) if retries.take_after_rejection() => {}
            Exchanged::Lost(_) if retries.take_after_loss() => {}
            Exchanged::Reply(reply) | Exchanged::Rejected(reply) => return Ok(reply),
            Exchanged::Lost(error) | Exchanged::TimedOut(error) => return Err(error),
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_struct("Connection").field("is_connected", &self.is_connected()).finish_non_exhaustive()
    }
}

fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

fn script_error(error: RedisError) -> Error {
    Error::from_script(&words(&error))
}
