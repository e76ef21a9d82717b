//! A connection with a single user. A reader needs its own: a command that blocks delays all later replies.

use std::time::Duration;

use redis::{ConnectionInfo, Pipeline, Value};

#[cfg(feature = "cluster")]
use super::cluster::node_of_redirect;
use super::connect::{CONNECT_TIMEOUT, Login, connect_error};
use super::deadline::ANSWER;
use super::link::Link;
use super::reply;
use super::source::{ConnectionSource, Expected};
use crate::error::Error;

pub(crate) struct DedicatedConnection {
    source: ConnectionSource,
    /// The server of the settings, if the source is another node of its cluster.
    #[cfg(feature = "cluster")]
    first: Option<ConnectionInfo>,
    link: Option<Link>,
}

impl DedicatedConnection {
    pub(crate) fn to_server(info: ConnectionInfo, login: Login) -> Self {
        Self {
            source: ConnectionSource::Server(Box::new(info), login, Expected::Any),
            #[cfg(feature = "cluster")]
            first: None,
            link: None,
        }
    }

    /// Sends commands in one write, and returns their replies, in which an error of one command is a value. Connects
    /// first if there is no connection. The deadline does not include that: connecting has its own.
    ///
    /// # Errors
    ///
    /// If there is no connection, no reply, or if a new connection may reach another server, as after `READONLY`.
    ///
    /// # Cancel safety
    ///
    /// The connection is closed after an error, after the deadline, and if the future is dropped. So a late reply is never
    /// taken for that of a later command.
    pub(crate) async fn send(
        &mut self,
        commands: &Pipeline,
        deadline: Duration,
    ) -> Result<Vec<Value>, Error> {
        self.exchange(commands, deadline).await.map_err(|error| error.at(self.source.address()))
    }

    async fn exchange(&mut self, commands: &Pipeline, deadline: Duration) -> Result<Vec<Value>, Error> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => {
                let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.source.connect()).await;
                let connected = connected.unwrap_or_else(|_| Err(Error::unavailable(self.source.silence())));
                #[cfg(feature = "cluster")]
                if connected.is_err() {
                    self.return_to_first();
                }
                connected?
            }
        };
        let replied = tokio::time::timeout(deadline, link.send_all(commands)).await;
        let replies = replied
            .map_err(|_| Error::timeout(ANSWER, deadline))?
            .map_err(|error| Error::unavailable(reply::words(&error)))?;
        let unusable = replies.iter().find_map(|reply| match reply {
            Value::ServerError(error) if reply::is_unusable(error) => Some(error.clone()),
            _ => None,
        });
        #[cfg(feature = "cluster")]
        self.follow(&replies)?;
        match unusable {
            Some(error) => Err(connect_error(error.into())),
            None => {
                self.link = Some(link);
                Ok(replies)
            }
        }
    }

    /// Returns an error if another node of the cluster serves the keys now. The next connection leads there.
    #[cfg(feature = "cluster")]
    fn follow(&mut self, replies: &[Value]) -> Result<(), Error> {
        let ConnectionSource::Server(info, ..) = &mut self.source else { return Ok(()) };
        let Some(node) = replies.iter().find_map(|reply| node_of_redirect(reply, info)) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut **info, node);
        self.first.get_or_insert(before);
        Err(Error::unavailable("another node of the cluster serves the keys: connecting to it"))
    }

    /// The node may have left the cluster: the server of the settings knows the next one.
    #[cfg(feature = "cluster")]
    fn return_to_first(&mut self) {
        if let (ConnectionSource::Server(info, ..), Some(first)) = (&mut self.source, self.first.take()) {
            **info = first;
        }
    }
}
