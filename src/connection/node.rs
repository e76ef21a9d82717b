//! One server: the connection to it, and what becomes of a command that it is sent.

use std::sync::Arc;

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::time::Instant;

use super::from::From;
use super::held::{Attempt, Held};
use super::link::Link;
use super::{ANSWER, Deadline, reply};
use crate::background::Background;
use crate::error::Error;

pub(super) struct Node {
    from: From,
    held: Held,
    background: Arc<Background>,
}

/// A connection that is there.
pub(super) struct Live {
    attempt: Arc<Attempt>,
    link: Link,
}

/// What became of a command.
pub(super) enum Said {
    /// What the server answered.
    Reply(RedisResult<Value>),
    /// So it answered, has done nothing, and is given up: it is not the one to ask.
    InVain(RedisResult<Value>),
    /// The connection was lost: the command may have been done.
    Lost(Error),
    /// No answer by the deadline: it may have been done, or will be.
    Late(Error),
}

impl Node {
    pub(super) fn new(from: From, background: Arc<Background>) -> Self {
        Self { from, held: Held::default(), background }
    }

    /// The connection that there is, or a new one if the time has come.
    pub(super) async fn connected(&self, deadline: Deadline) -> Result<Live, Error> {
        loop {
            match self.held.attempt(&self.from, &self.background) {
                Ok(attempt) => {
                    if let Some(link) = attempt.connected(deadline).await {
                        return Ok(Live { attempt, link: link? });
                    }
                }
                Err(error) => {
                    // Lets other tasks run where a caller checks in a loop.
                    tokio::task::coop::consume_budget().await;
                    return Err(error);
                }
            }
        }
    }

    /// Sends a command, after `ASKING` where it is.
    pub(super) async fn exchange(
        &self,
        Live { attempt, mut link }: Live,
        command: &Cmd,
        is_asking: bool,
        deadline: Deadline,
    ) -> Said {
        let (answers, start) = (attempt.answers(), Instant::now());
        match link.send(command, is_asking, deadline, start).await {
            Some(Err(error)) if is_lost(&error) => {
                let error = Error::unavailable(reply::words(&error));
                self.held.give_up(&attempt, error.clone(), attempt.answers() > 0);
                Said::Lost(error)
            }
            Some(reply) => {
                let reply = match reply {
                    Ok(Value::ServerError(error)) => Err(error.into()),
                    reply => reply,
                };
                let Some(text) = reply::not_the_one(&reply) else {
                    if reply::is_in_step(&reply) {
                        attempt.count_answer();
                    } else {
                        let error = Error::unavailable("it answers what was not asked: is this a Redis?");
                        self.held.give_up(&attempt, error, answers > 0);
                    }
                    return Said::Reply(reply);
                };
                // Not a success, whatever it answered before: a replica still denies.
                self.held.give_up(&attempt, Error::from_script(&text), false);
                Said::InVain(reply)
            }
            None => {
                // It may be a black hole; whoever comes next should not have to find out again. Where
                // others were answered meanwhile, or most of it had passed before, the deadline was short,
                // and the connection is well.
                if attempt.answers() == answers && start.elapsed() >= deadline.after / 2 {
                    self.held.give_up(&attempt, deadline.passed(ANSWER), answers > 0);
                }
                Said::Late(deadline.passed(ANSWER))
            }
        }
    }

    /// Gives up the connection for good.
    pub(super) fn close(&self) {
        self.held.close();
    }

    pub(super) fn is_connected(&self) -> bool {
        self.held.is_connected()
    }

    /// Whether it could not be reached when that was last tried, or fell silent.
    #[cfg(feature = "cluster")]
    pub(super) fn is_in_doubt(&self) -> bool {
        self.held.is_in_doubt()
    }
}

fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}
