//! One connection to a server that all callers share, made when first needed and
//! made anew when lost, or when the server behind it is no longer the one to ask;
//! one to each node of a cluster.
//!
//! A pool checkout per check would cost two round trips more each; Redis answers
//! a multiplexed connection in order, so nothing is gained by several.

#[cfg(feature = "cluster")]
mod cluster;
mod from;
mod held;
mod link;
mod login;
mod node;
mod pause;
mod reply;
mod sentinel;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, RedisError, RedisResult, Value};
use tokio::time::Instant;

#[cfg(feature = "cluster")]
pub(crate) use self::cluster::Cluster;
use self::from::From;
pub(crate) use self::login::Login;
use self::node::{Node, Said};
pub(crate) use self::reply::words;
pub(crate) use self::sentinel::Sentinels;
#[cfg(feature = "tls")]
pub(crate) use self::tls::Tls;
use crate::background::Background;
use crate::error::Error;
use crate::key::Place;
use crate::script::Script;

/// What a deadline can pass in waiting for.
const ANSWER: &str = "Redis to answer";
const CONNECTION: &str = "a connection";

pub(crate) struct Connection(Servers);

enum Servers {
    One(Node),
    #[cfg(feature = "cluster")]
    Cluster(Box<Cluster>),
}

/// How a script is to be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    /// Where all its keys live, if it has any.
    #[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "all places are on one server"))]
    pub(crate) place: Option<Place>,
    pub(crate) deadline: Deadline,
    /// Whether a call that found the connection lost is repeated once on a new
    /// one. It may then have been done twice: right for a take, which at worst
    /// over-charges, and wrong for giving back. What a server did not do because
    /// it is a replica is repeated once in either case.
    pub(crate) again: bool,
}

/// By when an answer is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) after: Duration,
}

impl Deadline {
    pub(crate) fn new(after: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(after).unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
        Self { at, after }
    }

    /// No later than after a pause from now.
    #[cfg(feature = "cluster")]
    fn within(self, pause: Duration) -> Self {
        Self { at: self.at.min(Instant::now() + pause), ..self }
    }

    fn passed(self, waited_for: &'static str) -> Error {
        Error::timeout(waited_for, self.after)
    }
}

/// How often a call may be sent again on a new connection.
struct Again {
    /// Where the connection was lost: the call may have been done.
    lost: u32,
    /// Where the server said that it did nothing.
    in_vain: u32,
}

impl Again {
    /// The error where it may not.
    fn lost(&mut self, error: Error) -> Result<(), Error> {
        self.lost = self.lost.checked_sub(1).ok_or(error)?;
        Ok(())
    }
}

impl Connection {
    pub(crate) fn to_server(info: ConnectionInfo, login: Login, background: Arc<Background>) -> Self {
        Self::one(From::Server(Box::new(info), login), background)
    }

    pub(crate) fn by_sentinels(sentinels: Sentinels, login: Login, background: Arc<Background>) -> Self {
        Self::one(From::Sentinels(Box::new(sentinels), login), background)
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(cluster: Cluster) -> Self {
        Self(Servers::Cluster(Box::new(cluster)))
    }

    pub(crate) fn of_pool(pool: deadpool_redis::Pool, background: Arc<Background>) -> Self {
        Self::one(From::Pool(pool), background)
    }

    fn one(from: From, background: Arc<Background>) -> Self {
        Self(Servers::One(Node::new(from, background)))
    }

    /// Runs a script by its digest, and by its text where the server does not
    /// know it (any more). `args` adds the number of keys, keys and arguments.
    pub(crate) async fn run(&self, script: &Script, args: impl Fn(&mut Cmd), to: To) -> Result<Value, Error> {
        let mut again = Again { lost: u32::from(to.again), in_vain: 1 };
        let command = |verb, script: &str| {
            // Of the size of a call for one key, which does not grow then.
            let mut command = Cmd::with_capacity(8, 128 + script.len());
            args(command.arg(verb).arg(script));
            command
        };
        let by_digest = command("EVALSHA", script.digest());
        match self.send(&by_digest, to, &mut again).await? {
            Err(error) if is_noscript(&error) => {
                let by_text = command("EVAL", script.text);
                self.send(&by_text, to, &mut again).await?.map_err(refused)
            }
            reply => reply.map_err(refused),
        }
    }

    /// What the server says of itself, as INFO writes it.
    pub(crate) async fn info(&self, deadline: Deadline) -> Result<String, Error> {
        let mut info = redis::cmd("INFO");
        info.arg("server").arg("memory");
        let to = To { place: None, deadline, again: true };
        let said = self.send(&info, to, &mut Again { lost: 1, in_vain: 1 }).await?.map_err(refused)?;
        redis::from_redis_value(said).map_err(|_| Error::unavailable("INFO says no text: is this a Redis?"))
    }

    /// A page of the keys that match, from a cursor on, of the node of a place. A cursor is of no use to a
    /// server that another connection leads to.
    #[cfg(feature = "cli")]
    pub(crate) async fn scan(&self, cursor: u64, pattern: &str, to: To) -> Result<Value, Error> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(1_000);
        let again = u32::from(cursor == 0);
        self.send(&scan, to, &mut Again { lost: again, in_vain: again }).await?.map_err(refused)
    }

    /// Which node has answered for a place last; the same for all where there is one.
    #[cfg(feature = "cli")]
    pub(crate) fn node_of(&self, _place: Place) -> Option<(String, u16)> {
        match &self.0 {
            Servers::One(_) => Some(Default::default()),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.node_of(_place),
        }
    }

    /// Gives up the connection for good.
    pub(crate) fn close(&self) {
        match &self.0 {
            Servers::One(node) => node.close(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.close(),
        }
    }

    /// The outer error says that there was no answer, the inner one what the
    /// server answered.
    async fn send(&self, command: &Cmd, to: To, again: &mut Again) -> Result<RedisResult<Value>, Error> {
        match &self.0 {
            Servers::One(node) => send_to(node, command, to.deadline, again).await,
            #[cfg(feature = "cluster")]
            // Boxed, so that no caller's future is larger for it.
            Servers::Cluster(cluster) => Box::pin(cluster.send(command, to, again)).await,
        }
    }

    fn is_connected(&self) -> bool {
        match &self.0 {
            Servers::One(node) => node.is_connected(),
            #[cfg(feature = "cluster")]
            Servers::Cluster(cluster) => cluster.is_connected(),
        }
    }

    /// What whoever is not answered yet waits for.
    pub(crate) fn waited_for(&self) -> &'static str {
        if self.is_connected() { ANSWER } else { CONNECTION }
    }
}

async fn send_to(
    node: &Node,
    command: &Cmd,
    deadline: Deadline,
    again: &mut Again,
) -> Result<RedisResult<Value>, Error> {
    loop {
        let live = node.connected(deadline).await?;
        match node.exchange(live, command, false, deadline).await {
            Said::Reply(reply) => return Ok(reply),
            Said::InVain(reply) if again.in_vain == 0 => return Ok(reply),
            Said::InVain(_) => again.in_vain -= 1,
            Said::Lost(error) => again.lost(error)?,
            Said::Late(error) => return Err(error),
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

fn refused(error: RedisError) -> Error {
    Error::from_script(&words(&error))
}
