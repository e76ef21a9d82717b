//! One connection that was made to one server.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{self, Either};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

/// After how long at most it is asked whether the connection's task is still there.
const SILENCE: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(super) struct Link(MultiplexedConnection);

impl Link {
    pub(super) fn new(connection: MultiplexedConnection) -> Self {
        Self(connection)
    }

    /// The answer, however long it takes; an error where the connection has ended,
    /// also where it ended in the very instant in which the command was handed to it:
    /// then the command lies in a channel that nobody reads and nobody drops.
    /// Asked again after a while, that channel says that it is closed. (Sent is a PING
    /// whose answer is of no interest.)
    pub(super) async fn send(
        &mut self,
        command: &Cmd,
        is_asking: bool,
        deadline: Duration,
    ) -> RedisResult<Value> {
        let mut other = self.0.clone();
        let mut answer = pin!(self.answer(command, is_asking));
        if let Ok(answer) = tokio::time::timeout(SILENCE.min(deadline / 4), answer.as_mut()).await {
            return answer;
        }
        let mut ping = redis::cmd("PING");
        ping.set_no_response(true);
        match future::select(answer.as_mut(), pin!(other.send_packed_command(&ping))).await {
            Either::Left((answer, _)) => answer,
            Either::Right((Err(ended), _)) => Err(ended),
            Either::Right((Ok(_), answer)) => answer.await,
        }
    }

    async fn answer(&mut self, command: &Cmd, is_asking: bool) -> RedisResult<Value> {
        if !is_asking {
            return self.0.send_packed_command(command).await;
        }
        // In one write: another's command between them would take its effect.
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command.clone());
        let answers = self.0.send_packed_commands(&both, 1, 1).await;
        answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
    }
}
