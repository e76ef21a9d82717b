//! One connection that all callers share, made when first needed and made anew
//! when lost.
//!
//! A pool checkout per check would cost two round trips more each; Redis answers
//! a multiplexed connection in order, so nothing is gained by several.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, RedisError, RedisResult, Value};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::error::Error;
use crate::script::Script;

/// Longer than any deadline of a decision: an attempt goes on for those who ask
/// next when the one who began it has given up.
const CONNECT: Duration = Duration::from_secs(5);

pub(crate) struct Connection {
    from: From,
    /// Filled once by whoever needs it first; replaced by an empty one when the
    /// connection in it is found to be lost.
    held: Mutex<Held>,
}

type Held = Arc<OnceCell<MultiplexedConnection>>;

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
        Self { from: From::Client(client), held: Mutex::default() }
    }

    pub(crate) fn of_pool(pool: deadpool_redis::Pool) -> Self {
        Self { from: From::Pool(pool), held: Mutex::default() }
    }

    /// Runs a script by its digest, and by its text where the server does not
    /// know it (any more).
    ///
    /// With `again`, a call that found the connection lost is repeated once on a
    /// new one. It may then have been done twice: right for a take, which at
    /// worst over-charges, and wrong for giving back.
    pub(crate) async fn run(
        &self,
        script: &Script,
        args: &ScriptArgs,
        deadline: Deadline,
        again: bool,
    ) -> Result<Value, Error> {
        let by_digest = args.command("EVALSHA", script.digest());
        match self.send(&by_digest, deadline, again).await? {
            Err(error) if is_noscript(&error) => {
                let by_text = args.command("EVAL", script.text);
                self.send(&by_text, deadline, again).await?.map_err(refused)
            }
            reply => reply.map_err(refused),
        }
    }

    /// Gives up the connection; the next call makes a new one.
    pub(crate) fn close(&self) {
        *self.lock() = Held::default();
    }

    /// The outer error says that there was no answer, the inner one what the
    /// server answered.
    async fn send(
        &self,
        command: &Cmd,
        deadline: Deadline,
        again: bool,
    ) -> Result<RedisResult<Value>, Error> {
        let mut tries = if again { 2 } else { 1 };
        loop {
            let held = self.lock().clone();
            let mut connection = self.connect(&held, deadline).await?;
            tries -= 1;
            let sent = tokio::time::timeout_at(deadline.at, connection.send_packed_command(command));
            match sent.await {
                Ok(Ok(Value::ServerError(error))) => return Ok(Err(error.into())),
                Ok(Err(error)) if is_lost(&error) => {
                    self.forget(&held);
                    if tries == 0 {
                        return Err(Error::unavailable(error.to_string()));
                    }
                }
                Ok(reply) => return Ok(reply),
                Err(_) => {
                    // It may be a black hole; whoever comes next should not have
                    // to find out again.
                    self.forget(&held);
                    return Err(deadline.passed("Redis to answer"));
                }
            }
        }
    }

    async fn connect(&self, held: &Held, deadline: Deadline) -> Result<MultiplexedConnection, Error> {
        if let Some(connection) = held.get() {
            return Ok(connection.clone());
        }
        // In a task of its own, so that it is not begun anew by each caller
        // whose deadline is shorter than it takes.
        let (cell, from) = (held.clone(), self.from.clone());
        let attempt = tokio::spawn(async move { cell.get_or_try_init(|| from.connect()).await.cloned() });
        match tokio::time::timeout_at(deadline.at, attempt).await {
            Ok(Ok(connected)) => connected,
            Ok(Err(_)) => Err(Error::unavailable("the runtime is shutting down")),
            Err(_) => Err(deadline.passed("a connection")),
        }
    }

    fn forget(&self, lost: &Held) {
        let mut held = self.lock();
        if Arc::ptr_eq(&held, lost) {
            *held = Held::default();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL may hold a password.
        f.debug_struct("Connection").field("is_connected", &self.lock().initialized()).finish_non_exhaustive()
    }
}

impl From {
    async fn connect(&self) -> Result<MultiplexedConnection, Error> {
        match self {
            Self::Client(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(CONNECT))
                    .set_response_timeout(None);
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

/// What a script is called with, kept to be sent by digest or by text.
#[derive(Debug, Default)]
pub(crate) struct ScriptArgs {
    keys: Vec<String>,
    args: Vec<String>,
}

impl ScriptArgs {
    pub(crate) fn key(&mut self, key: &str) {
        self.keys.push(key.to_owned());
    }

    pub(crate) fn arg(&mut self, arg: impl ToString) {
        self.args.push(arg.to_string());
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command
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
