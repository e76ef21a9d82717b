//! One connection that all callers share, made when first needed and made anew
//! when lost.
//!
//! A pool checkout per check would cost two round trips more each; Redis answers
//! a multiplexed connection in order, so nothing is gained by several.

#[cfg(feature = "cluster")]
mod cluster;
mod link;

#[cfg(feature = "cluster")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::Instant;

#[cfg(feature = "cluster")]
pub(crate) use self::cluster::ClusterClient;
use self::link::Link;
use crate::error::Error;
use crate::key::{PLACES, Place};
use crate::script::Script;

/// Longer than any deadline of a decision: an attempt goes on for those who ask
/// next when the one who began it has given up.
const CONNECT: Duration = Duration::from_secs(5);

/// What a deadline can pass in waiting for.
const ANSWER: &str = "Redis to answer";
const CONNECTION: &str = "a connection";

pub(crate) struct Connection {
    from: From,
    /// The connection, or the attempt at one that all who need it wait for.
    held: Mutex<Option<Attempt>>,
    /// How many answers have come from each place: a deadline that passed while
    /// others were answered was short, and the connection is well.
    answers: Box<[AtomicU64]>,
}

/// `None` as long as it goes on.
type Attempt = watch::Receiver<Option<Result<Link, Error>>>;

#[derive(Clone)]
enum From {
    Client(Client),
    Pool(deadpool_redis::Pool),
    #[cfg(feature = "cluster")]
    Cluster(Arc<ClusterClient>),
}

/// How a script is to be run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct To {
    /// Where all its keys live.
    pub(crate) place: Place,
    pub(crate) deadline: Deadline,
    /// Whether a call that found the connection lost is repeated once on a new
    /// one. It may then have been done twice: right for a take, which at worst
    /// over-charges, and wrong for giving back.
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

impl Connection {
    pub(crate) fn of_client(client: Client) -> Self {
        Self::new(From::Client(client))
    }

    pub(crate) fn of_pool(pool: deadpool_redis::Pool) -> Self {
        Self::new(From::Pool(pool))
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(client: ClusterClient) -> Self {
        Self::new(From::Cluster(Arc::new(client)))
    }

    fn new(from: From) -> Self {
        let answers = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Self { from, held: Mutex::default(), answers }
    }

    /// Runs a script by its digest, and by its text where the server does not
    /// know it (any more). `args` adds the number of keys, keys and arguments.
    pub(crate) async fn run(&self, script: &Script, args: impl Fn(&mut Cmd), to: To) -> Result<Value, Error> {
        let mut tries = if to.again { 2 } else { 1 };
        let command = |verb, script| {
            let mut command = redis::cmd(verb);
            args(command.arg(script));
            command
        };
        let by_digest = command("EVALSHA", script.digest());
        match self.send(&by_digest, to, &mut tries).await? {
            Err(error) if is_noscript(&error) => {
                let by_text = command("EVAL", script.text);
                // That try did nothing.
                tries += 1;
                self.send(&by_text, to, &mut tries).await?.map_err(refused)
            }
            reply => reply.map_err(refused),
        }
    }

    /// Gives up the connection; the next call makes a new one.
    pub(crate) fn close(&self) {
        *self.lock() = None;
    }

    /// The outer error says that there was no answer, the inner one what the
    /// server answered.
    async fn send(
        &self,
        command: &Cmd,
        To { place, deadline, .. }: To,
        tries: &mut u32,
    ) -> Result<RedisResult<Value>, Error> {
        let so_far = &self.answers[place.index()];
        loop {
            let attempt = self.attempt();
            let mut link = connected(attempt.clone(), deadline).await?;
            *tries -= 1;
            let answers = so_far.load(Ordering::Relaxed);
            match tokio::time::timeout_at(deadline.at, link.send(command)).await {
                Ok(Err(error)) if is_lost(&error) => {
                    if !link.mends_itself() || so_far.load(Ordering::Relaxed) == answers {
                        self.forget(&attempt);
                    }
                    if *tries == 0 {
                        return Err(Error::unavailable(error.to_string()));
                    }
                }
                Ok(reply) => {
                    so_far.fetch_add(1, Ordering::Relaxed);
                    return Ok(match reply {
                        Ok(Value::ServerError(error)) => Err(error.into()),
                        reply => reply,
                    });
                }
                Err(_) => {
                    // It may be a black hole; whoever comes next should not have
                    // to find out again.
                    if so_far.load(Ordering::Relaxed) == answers {
                        self.forget(&attempt);
                    }
                    return Err(deadline.passed(ANSWER));
                }
            }
        }
    }

    /// The attempt that is held, or a new one where that has failed. It is a task
    /// of its own: not begun anew by each caller whose deadline is shorter than
    /// it takes, and only one however many wait.
    fn attempt(&self) -> Attempt {
        let mut held = self.lock();
        if let Some(attempt) = held.as_ref().filter(|attempt| is_of_use(attempt)) {
            return attempt.clone();
        }
        let (result, attempt) = watch::channel(None);
        let from = self.from.clone();
        tokio::spawn(async move {
            // Over all of it: a server can also fall silent after the handshake.
            let connected = tokio::time::timeout(CONNECT, from.connect()).await;
            let connected = connected.unwrap_or_else(|_| Err(Error::unavailable("it takes no connection")));
            // Nobody may be left who wants to know.
            let _ = result.send(Some(connected));
        });
        *held = Some(attempt.clone());
        attempt
    }

    fn forget(&self, lost: &Attempt) {
        let mut held = self.lock();
        if held.as_ref().is_some_and(|held| held.same_channel(lost)) {
            *held = None;
        }
    }

    /// What whoever is not answered yet waits for.
    pub(crate) fn waited_for(&self) -> &'static str {
        if self.is_connected() { ANSWER } else { CONNECTION }
    }

    fn is_connected(&self) -> bool {
        self.lock().as_ref().is_some_and(|attempt| matches!(&*attempt.borrow(), Some(Ok(_))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Attempt>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_of_use(attempt: &Attempt) -> bool {
    match &*attempt.borrow() {
        Some(result) => result.is_ok(),
        // Without a result to come, its task has ended with its runtime.
        None => attempt.has_changed().is_ok(),
    }
}

async fn connected(mut attempt: Attempt, deadline: Deadline) -> Result<Link, Error> {
    if let Some(result) = &*attempt.borrow() {
        return result.clone();
    }
    match tokio::time::timeout_at(deadline.at, attempt.wait_for(Option::is_some)).await {
        Ok(Ok(result)) => result.clone().unwrap_or_else(|| Err(ended())),
        Ok(Err(_)) => Err(ended()),
        Err(_) => Err(deadline.passed(CONNECTION)),
    }
}

fn ended() -> Error {
    Error::unavailable("the tokio runtime that was connecting has ended")
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_struct("Connection").field("is_connected", &self.is_connected()).finish_non_exhaustive()
    }
}

impl From {
    async fn connect(&self) -> Result<Link, Error> {
        match self {
            Self::Client(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(None) // bounded by `attempt`, with all that follows it
                    .set_response_timeout(None); // bounded by each call's deadline
                let connected = client.get_multiplexed_async_connection_with_config(&config).await;
                let mut connection = connected.map_err(|error| Error::unavailable(error.to_string()))?;
                // To a script call without the password it needs, Redis says
                // only that it is too long, and hangs up.
                match connection.send_packed_command(&redis::cmd("PING")).await {
                    Ok(Value::ServerError(error)) if error.code() == "NOAUTH" => {
                        Err(Error::unavailable(RedisError::from(error).to_string()))
                    }
                    _ => Ok(Link::One(connection)),
                }
            }
            Self::Pool(pool) => {
                let connection = pool.get().await.map_err(|error| Error::unavailable(error.to_string()))?;
                // Taken out for good: the pool makes another for its other users.
                Ok(Link::One(deadpool_redis::Connection::take(connection)))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(client) => Ok(Link::Cluster(client.connect().await?)),
        }
    }
}

fn is_noscript(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.is_unrecoverable_error()
}

fn refused(error: RedisError) -> Error {
    match (error.code(), error.detail()) {
        // In the server's words.
        (Some(code), Some(detail)) if error.is_cluster_error() => {
            Error::from_script(&format!("{code} {detail}"))
        }
        _ => Error::from_script(&error.to_string()),
    }
}
