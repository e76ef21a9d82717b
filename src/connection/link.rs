//! One established connection to one server.
//!
//! # Why a late call sends a PING
//!
//! redis-rs passes commands to the connection's task through a tokio channel. A command that is sent while the
//! task ends can stay in the channel: its caller gets neither a reply nor an error. Measured with redis-rs
//! 1.8.1 and tokio 1.54.1: 9 of 320,000 calls (`docs/decisions/0010-ended-connections.md`).
//!
//! Upstream: tokio #7714, open in July 2026 and not fixed in 1.54.1. A value is not dropped if it is sent by a
//! permit that was acquired before the receiver was dropped, and `Sender::send` uses a permit. No issue of
//! redis-rs is known.
//!
//! Delete the PING when tokio drops such a value, or when redis-rs fails the calls of an ended connection. The
//! test of this file then passes without it.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{self, Either};
#[cfg(feature = "regions")]
use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::time::Instant;

use super::deadline::Deadline;

/// The maximum time without a reply before a probe checks that the connection's task still runs.
const PROBE_AFTER: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(super) struct Link(MultiplexedConnection);

impl Link {
    pub(super) fn new(connection: MultiplexedConnection) -> Self {
        Self(connection)
    }

    /// Sends a command and returns its reply, or `None` if there is none by the deadline. Returns an error if
    /// the connection has ended.
    ///
    /// Race: the caller puts the command into the channel of the connection's task; the task ends at that
    /// moment. The command then stays in a channel that is neither read nor dropped, and no error arrives.
    /// Therefore this method sends a PING after a while, which fails if the channel is closed. The reply to
    /// the PING is ignored. The module's documentation says when the PING can be deleted.
    pub(super) async fn send(
        &mut self,
        command: &Cmd,
        is_asking: bool,
        deadline: Deadline,
        now: Instant,
    ) -> Option<RedisResult<Value>> {
        let mut other = self.0.clone();
        let mut reply = pin!(self.exchange(command, is_asking));
        let probe_at = deadline.at.min(now + PROBE_AFTER.min(deadline.after / 4));
        if let Ok(reply) = tokio::time::timeout_at(probe_at, reply.as_mut()).await {
            return Some(reply);
        }
        let mut ping = redis::cmd("PING");
        ping.set_no_response(true);
        let probed = async {
            match future::select(reply, pin!(other.send_packed_command(&ping))).await {
                Either::Left((reply, _)) => reply,
                Either::Right((Err(error), _)) => Err(error),
                Either::Right((Ok(_), reply)) => reply.await,
            }
        };
        tokio::time::timeout_at(deadline.at, probed).await.ok()
    }

    /// Sends commands in one write, and returns their replies.
    #[cfg(feature = "regions")]
    pub(super) async fn send_all(&mut self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        self.0.send_packed_commands(commands, 0, commands.len()).await
    }

    async fn exchange(&mut self, command: &Cmd, is_asking: bool) -> RedisResult<Value> {
        if !is_asking {
            return self.0.send_packed_command(command).await;
        }
        // Sends both in one write: a command of another caller between them would consume the ASKING.
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let mut replies = self.0.send_packed_commands(&both, 0, 2).await?;
        let reply = replies.pop().unwrap_or(Value::Nil);
        Ok(match replies.pop() {
            // A user without the permission `+asking` gets that error, instead of the redirect that it
            // causes.
            Some(Value::ServerError(error)) if is_moved(&reply) => Value::ServerError(error),
            _ => reply,
        })
    }
}

fn is_moved(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "MOVED")
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
    use tokio::net::TcpListener;

    use super::*;
    use crate::connection::connect::without_client_setinfo;

    const DEADLINE: Duration = Duration::from_secs(10);

    /// Makes enough calls to hit the race: it occurred in 9 of 320,000 calls.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_command_sent_while_the_connection_ends_fails_before_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        // Closes every connection at once.
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let info = without_client_setinfo(url.into_connection_info().unwrap());
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(info).unwrap();
        let connect_and_query = async |task: usize| {
            for round in 0..2_000 {
                let connected = client.get_multiplexed_async_connection_with_config(&config).await;
                let Ok(connection) = connected else { continue };
                let link = Link::new(connection);
                let checks = (0..4).map(|check| {
                    let mut link = link.clone();
                    tokio::spawn(async move {
                        for _ in 0..(round * 7 + task + check) % 40 {
                            tokio::task::yield_now().await;
                        }
                        let reply = link
                            .send(&redis::cmd("PING"), false, Deadline::new(DEADLINE), Instant::now())
                            .await;
                        assert!(reply.expect("a result before the deadline").is_err());
                    })
                });
                join_all(checks).await.into_iter().for_each(Result::unwrap);
            }
        };
        join_all((0..8).map(connect_and_query)).await;
    }
}
