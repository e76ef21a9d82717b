//! One connection that all callers share, made when first needed and made anew
//! when lost.
//!
//! A pool checkout per check would cost two round trips more each; Redis answers
//! a multiplexed connection in order, so nothing is gained by several.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::Error;
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
    /// How many answers have come: a deadline that passed while others were
    /// answered was short, and the connection is well.
    answers: AtomicU64,
}

/// `None` as long as it goes on.
type Attempt = watch::Receiver<Option<Result<MultiplexedConnection, Error>>>;

#[derive(Clone)]
enum From {
    Client(Client),
    Pool(deadpool_redis::Pool),
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
        Self { from: From::Client(client), held: Mutex::default(), answers: AtomicU64::new(0) }
    }

    pub(crate) fn of_pool(pool: deadpool_redis::Pool) -> Self {
        Self { from: From::Pool(pool), held: Mutex::default(), answers: AtomicU64::new(0) }
    }

    /// Runs a script by its digest, and by its text where the server does not
    /// know it (any more). `args` adds the number of keys, keys and arguments.
    ///
    /// With `again`, a call that found the connection lost is repeated once on a
    /// new one. It may then have been done twice: right for a take, which at
    /// worst over-charges, and wrong for giving back.
    pub(crate) async fn run(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
        deadline: Deadline,
        again: bool,
    ) -> Result<Value, Error> {
        let mut tries = if again { 2 } else { 1 };
        let command = |verb, script| {
            let mut command = redis::cmd(verb);
            args(command.arg(script));
            command
        };
        let by_digest = command("EVALSHA", script.digest());
        match self.send(&by_digest, deadline, &mut tries).await? {
            Err(error) if is_noscript(&error) => {
                let by_text = command("EVAL", script.text);
                // That try did nothing.
                tries += 1;
                self.send(&by_text, deadline, &mut tries).await?.map_err(refused)
            }
            reply => reply.map_err(refused),
        }
    }

    /// What the server says of itself, as INFO writes it.
    pub(crate) async fn info(&self, deadline: Deadline) -> Result<String, Error> {
        let mut info = redis::cmd("INFO");
        info.arg("server").arg("memory");
        let said = self.send(&info, deadline, &mut 2).await?.map_err(refused)?;
        redis::from_redis_value(said).map_err(|_| Error::unavailable("INFO says no text: is this a Redis?"))
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
        deadline: Deadline,
        tries: &mut u32,
    ) -> Result<RedisResult<Value>, Error> {
        loop {
            let attempt = self.attempt();
            let mut connection = connected(attempt.clone(), deadline).await?;
            *tries -= 1;
            let answers = self.answers.load(Ordering::Relaxed);
            let sent = tokio::time::timeout_at(deadline.at, connection.send_packed_command(command));
            match sent.await {
                Ok(Err(error)) if is_lost(&error) => {
                    self.forget(&attempt);
                    if *tries == 0 {
                        return Err(Error::unavailable(error.to_string()));
                    }
                }
                Ok(reply) => {
                    self.answers.fetch_add(1, Ordering::Relaxed);
                    return Ok(match reply {
                        Ok(Value::ServerError(error)) => Err(error.into()),
                        reply => reply,
                    });
                }
                Err(_) => {
                    // It may be a black hole; whoever comes next should not have
                    // to find out again.
                    if self.answers.load(Ordering::Relaxed) == answers {
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

async fn connected(mut attempt: Attempt, deadline: Deadline) -> Result<MultiplexedConnection, Error> {
    if let Some(result) = &*attempt.borrow() {
        return result.clone();
    }
    match tokio::time::timeout_at(deadline.at, attempt.wait_for(Option::is_some)).await {
        Ok(Ok(result)) => result.clone().unwrap_or_else(|| Err(Error::runtime_ended())),
        Ok(Err(_)) => Err(Error::runtime_ended()),
        Err(_) => Err(deadline.passed(CONNECTION)),
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_struct("Connection").field("is_connected", &self.is_connected()).finish_non_exhaustive()
    }
}

impl From {
    async fn connect(&self) -> Result<MultiplexedConnection, Error> {
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
                    _ => Ok(connection),
                }
            }
            Self::Pool(pool) => {
                let connection = pool.get().await.map_err(|error| Error::unavailable(error.to_string()))?;
                // Taken out for good: the pool makes another for its other users.
                Ok(deadpool_redis::Connection::take(connection))
            }
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
    Error::from_script(&error.to_string())
}
