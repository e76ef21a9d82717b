//! One connection that all callers share, made when first needed and made anew
//! when lost, or when the server behind it is no longer the one to ask.
//!
//! A pool checkout per check would cost two round trips more each; Redis answers
//! a multiplexed connection in order, so nothing is gained by several.

#[cfg(feature = "cluster")]
mod cluster;
mod from;
mod held;
mod link;
mod login;
mod pause;
mod reply;
mod sentinel;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use redis::{Cmd, ConnectionInfo, RedisError, RedisResult, Value};
use tokio::time::Instant;

#[cfg(feature = "cluster")]
pub(crate) use self::cluster::ClusterClient;
use self::from::From;
use self::held::Held;
pub(crate) use self::login::Login;
pub(crate) use self::sentinel::Sentinels;
#[cfg(feature = "tls")]
pub(crate) use self::tls::Tls;
use crate::error::Error;
use crate::key::Place;
use crate::script::Script;

/// What a deadline can pass in waiting for.
const ANSWER: &str = "Redis to answer";
const CONNECTION: &str = "a connection";

pub(crate) struct Connection {
    from: From,
    held: Held,
}

/// How a script is to be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    /// Where all its keys live.
    pub(crate) place: Place,
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

impl Connection {
    pub(crate) fn to_server(info: ConnectionInfo, login: Login) -> Self {
        Self::from(From::Server(Box::new(info), login))
    }

    pub(crate) fn by_sentinels(sentinels: Sentinels, login: Login) -> Self {
        Self::from(From::Sentinels(Box::new(sentinels), login))
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(client: ClusterClient, login: Login) -> Self {
        Self::from(From::Cluster(Box::new(client), login))
    }

    pub(crate) fn of_pool(pool: deadpool_redis::Pool) -> Self {
        Self::from(From::Pool(pool))
    }

    fn from(from: From) -> Self {
        Self { from, held: Held::default() }
    }

    /// Runs a script by its digest, and by its text where the server does not
    /// know it (any more). `args` adds the number of keys, keys and arguments.
    pub(crate) async fn run(&self, script: &Script, args: impl Fn(&mut Cmd), to: To) -> Result<Value, Error> {
        let mut again = Again { lost: u32::from(to.again), in_vain: 1 };
        let command = |verb, script| {
            let mut command = redis::cmd(verb);
            args(command.arg(script));
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
        let to = To { place: Place::default(), deadline, again: true };
        let said = self.send(&info, to, &mut Again { lost: 1, in_vain: 1 }).await?.map_err(refused)?;
        redis::from_redis_value(said).map_err(|_| Error::unavailable("INFO says no text: is this a Redis?"))
    }

    /// Gives up the connection for good.
    pub(crate) fn close(&self) {
        self.held.close();
    }

    /// The outer error says that there was no answer, the inner one what the
    /// server answered.
    async fn send(
        &self,
        command: &Cmd,
        To { place, deadline, .. }: To,
        again: &mut Again,
    ) -> Result<RedisResult<Value>, Error> {
        loop {
            let attempt = match self.held.attempt(&self.from) {
                Ok(attempt) => attempt,
                Err(error) => {
                    // Who asks in a loop should let others run now and then.
                    tokio::task::coop::consume_budget().await;
                    return Err(error);
                }
            };
            let mut link = attempt.connected(deadline).await?;
            let answers = attempt.answers(place);
            let sent = tokio::time::timeout_at(deadline.at, link.send(command));
            match sent.await {
                Ok(Err(error)) if is_lost(&error) => {
                    let error = Error::unavailable(error.to_string());
                    let so_far = attempt.answers(place);
                    if !link.mends_itself() || so_far == answers {
                        self.held.give_up(&attempt, error.clone(), so_far > 0);
                    }
                    if again.lost == 0 {
                        return Err(error);
                    }
                    again.lost -= 1;
                }
                Ok(reply) => {
                    let reply = match reply {
                        Ok(Value::ServerError(error)) => Err(error.into()),
                        reply => reply,
                    };
                    // In a cluster the others are as good as before.
                    let text = reply::not_the_one(&reply).filter(|_| !link.mends_itself());
                    let Some(text) = text else {
                        attempt.count_answer(place);
                        return Ok(reply);
                    };
                    // Not a success, whatever it answered before: a replica still denies.
                    self.held.give_up(&attempt, Error::from_script(&text), false);
                    if again.in_vain == 0 {
                        return Ok(reply);
                    }
                    again.in_vain -= 1;
                }
                Err(_) => {
                    // It may be a black hole; whoever comes next should not have
                    // to find out again.
                    if attempt.answers(place) == answers {
                        let silent = deadline.passed(ANSWER);
                        self.held.give_up(&attempt, silent, answers > 0);
                    }
                    return Err(deadline.passed(ANSWER));
                }
            }
        }
    }

    /// What whoever is not answered yet waits for.
    pub(crate) fn waited_for(&self) -> &'static str {
        if self.held.is_connected() { ANSWER } else { CONNECTION }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_struct("Connection").field("is_connected", &self.held.is_connected()).finish_non_exhaustive()
    }
}

fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

fn refused(error: RedisError) -> Error {
    Error::from_script(&reply::words(&error))
}
