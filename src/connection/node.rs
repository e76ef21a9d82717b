//! One server: the connection to it, and the result of each command.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::time::Instant;

use super::deadline::{ANSWER, Deadline};
use super::link::Link;
use super::reply;
use super::slot::{Attempt, ConnectionSlot};
use super::source::ConnectionSource;
use crate::error::Error;
use crate::runtime::background::Background;

pub(super) struct Node {
    source: ConnectionSource,
    slot: ConnectionSlot,
    background: Arc<Background>,
}

/// A command, made anew for each connection on which it is sent.
pub(super) struct NodeRequest<'a> {
    /// Makes the command of a request that the server refuses from this time on, in µs since 1970. `None` if the
    /// server's time is not known.
    pub(super) command: &'a (dyn Fn(Option<u64>) -> Cmd + Sync),
    /// Whether the server refuses it after its deadline, and its reply tells the server's time.
    pub(super) is_bounded: bool,
}

impl<'a> NodeRequest<'a> {
    /// Makes a request without a bound.
    pub(super) const fn of(command: &'a (dyn Fn(Option<u64>) -> Cmd + Sync)) -> Self {
        Self { command, is_bounded: false }
    }
}

/// An established connection.
pub(super) struct Live {
    attempt: Arc<Attempt>,
    link: Link,
}

/// The result of a command.
pub(super) enum Exchanged {
    /// The server's reply.
    Reply(RedisResult<Value>),
    /// The server replied that it did nothing, for example because it is a replica. The connection was
    /// closed.
    Rejected(RedisResult<Value>),
    /// The connection was lost: the command may have run.
    Lost(Error),
    /// No answer by the deadline: the command may have run, or may run later.
    TimedOut(Error),
}

impl Node {
    /// Makes a node without a connection. Adds each connection to `connections`.
    pub(super) fn new(
        source: ConnectionSource,
        background: Arc<Background>,
        connections: Arc<AtomicU64>,
    ) -> Self {
        Self { source, slot: ConnectionSlot::new(connections), background }
    }

    /// Returns the current connection, or a new one unless a pause is in progress.
    pub(super) async fn connected(&self, deadline: Deadline) -> Result<Live, Error> {
        loop {
            match self.slot.attempt(&self.source, &self.background) {
                Ok(attempt) => {
                    if let Some(link) = attempt.connected(deadline).await {
                        return Ok(Live { attempt, link: link? });
                    }
                }
                Err(error) => {
                    // Lets other tasks run if a caller checks in a loop.
                    tokio::task::coop::consume_budget().await;
                    return Err(error);
                }
            }
        }
    }

    /// Sends a request, after `ASKING` if `is_asking`.
    pub(super) async fn exchange(
        &self,
        Live { attempt, mut link }: Live,
        request: &NodeRequest<'_>,
        is_asking: bool,
        deadline: Deadline,
    ) -> Exchanged {
        let (answers, start) = (attempt.answers(), Instant::now());
        let command = (request.command)(attempt.server_us_at(deadline.at));
        match link.send(&command, is_asking, deadline, start).await {
            Some(Err(error)) if is_lost(&error) => {
                let words = reply::words(&error);
                self.slot.end(&attempt, Error::unavailable(&*words), attempt.answers() > 0);
                Exchanged::Lost(attempt.lost_call(words))
            }
            Some(reply) => {
                let reply = match reply {
                    Ok(Value::ServerError(error)) => Err(error.into()),
                    reply => reply,
                };
                let Some(text) = reply::unusable_server(&reply) else {
                    if reply::is_plausible(&reply) {
                        attempt.count_answer();
                        if request.is_bounded {
                            attempt.learn_server_time(reply::server_us(&reply), start);
                        }
                    } else {
                        let error = Error::unavailable("unexpected reply to a command: is this a Redis?");
                        self.slot.give_up(&attempt, error, answers > 0);
                    }
                    return Exchanged::Reply(reply);
                };
                // Not a success, even if it answered before: a replica still answers denials.
                self.slot.give_up(&attempt, Error::from_script(&text), false);
                Exchanged::Rejected(reply)
            }
            None => {
                // The server may have become unreachable without an error. Closes the connection, so that the
                // next caller does not time out on it too. Keeps the connection if other callers got answers
                // meanwhile, or if less than half of the deadline was left for this exchange: then the
                // deadline was too short.
                if attempt.answers() == answers && start.elapsed() >= deadline.after / 2 {
                    self.slot.give_up(&attempt, deadline.passed(ANSWER), answers > 0);
                }
                Exchanged::TimedOut(deadline.passed(ANSWER))
            }
        }
    }

    /// Returns the address of the server, without credentials.
    pub(super) fn address(&self) -> String {
        self.source.address()
    }

    /// Closes the connection permanently.
    pub(super) fn close(&self) {
        self.slot.close();
    }

    /// Returns the number of connections made so far.
    pub(super) fn connections(&self) -> u64 {
        self.slot.connections()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.slot.is_connected()
    }

    /// Returns whether the last attempt could not reach the server, or the server stopped answering.
    #[cfg(feature = "cluster")]
    pub(super) fn is_in_doubt(&self) -> bool {
        self.slot.is_in_doubt()
    }
}

fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}
