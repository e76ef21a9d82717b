//! One connection that was made to one server.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{self, Either};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::time::Instant;

use super::Deadline;

/// After how long at most it is asked whether the connection's task is still there.
const SILENCE: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(super) struct Link(MultiplexedConnection);

impl Link {
    pub(super) fn new(connection: MultiplexedConnection) -> Self {
        Self(connection)
    }

    /// The answer, or nothing by the deadline; an error where the connection has ended,
    /// also where it ended in the very instant in which the command was handed to it:
    /// then the command lies in a channel that nobody reads and nobody drops.
    /// Asked again after a while, that channel says that it is closed. (Sent is a PING
    /// whose answer is of no interest.)
    pub(super) async fn send(
        &mut self,
        command: &Cmd,
        is_asking: bool,
        deadline: Deadline,
        now: Instant,
    ) -> Option<RedisResult<Value>> {
        let mut other = self.0.clone();
        let mut answer = pin!(self.answer(command, is_asking));
        let soon = deadline.at.min(now + SILENCE.min(deadline.after / 4));
        if let Ok(answer) = tokio::time::timeout_at(soon, answer.as_mut()).await {
            return Some(answer);
        }
        let mut ping = redis::cmd("PING");
        ping.set_no_response(true);
        let answer = async {
            match future::select(answer, pin!(other.send_packed_command(&ping))).await {
                Either::Left((answer, _)) => answer,
                Either::Right((Err(ended), _)) => Err(ended),
                Either::Right((Ok(_), answer)) => answer.await,
            }
        };
        tokio::time::timeout_at(deadline.at, answer).await.ok()
    }

    async fn answer(&mut self, command: &Cmd, is_asking: bool) -> RedisResult<Value> {
        if !is_asking {
            return self.0.send_packed_command(command).await;
        }
        // In one write: another's command between them would take its effect.
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let mut answers = self.0.send_packed_commands(&both, 0, 2).await?;
        let answer = answers.pop().unwrap_or(Value::Nil);
        Ok(match answers.pop() {
            // Who may not ask (`+asking`) should not be told to look elsewhere.
            Some(Value::ServerError(why)) if is_moved(&answer) => Value::ServerError(why),
            _ => answer,
        })
    }
}

fn is_moved(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "MOVED")
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;
    use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
    use tokio::net::TcpListener;

    use super::*;
    use crate::connection::from::unintroduced;

    const DEADLINE: Duration = Duration::from_secs(10);

    /// So often that it is caught in the act: 9 of 320,000 calls were.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_command_sent_in_the_instant_in_which_the_connection_ends_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        // Hangs up on everybody.
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let info = unintroduced(url.into_connection_info().unwrap());
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(info).unwrap();
        let connect_and_ask = async |task: usize| {
            for round in 0..2_000 {
                let connected = client.get_multiplexed_async_connection_with_config(&config).await;
                let Ok(connection) = connected else { continue };
                let link = Link::new(connection);
                let asks = (0..4).map(|ask| {
                    let mut link = link.clone();
                    tokio::spawn(async move {
                        for _ in 0..(round * 7 + task + ask) % 40 {
                            tokio::task::yield_now().await;
                        }
                        let answer = link
                            .send(&redis::cmd("PING"), false, Deadline::new(DEADLINE), Instant::now())
                            .await;
                        assert!(answer.expect("an end before the deadline").is_err());
                    })
                });
                join_all(asks).await.into_iter().for_each(Result::unwrap);
            }
        };
        join_all((0..8).map(connect_and_ask)).await;
    }
}
