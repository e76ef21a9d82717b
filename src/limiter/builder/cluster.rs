//! A limiter over a Redis Cluster.

use std::sync::Arc;

use super::connecting::Connecting;
use super::{Backend, Builder};
use crate::background::Background;
use crate::connection::{Cluster, Connection};
use crate::error::Error;

impl Builder {
    /// Uses the Redis Cluster of these nodes, such as `redis://10.0.0.1:6379`. Any of them leads to the other
    /// nodes. Give several, so that a process can start while one is down. All have the same user and
    /// password.
    ///
    /// Keys have other names than with a single Redis: a `{tag}` precedes each key and spreads them over 48
    /// slots, and so over up to 48 primaries. All gates of one key share a slot. The keys of one
    /// [`check_all`](crate::Limiter::check_all) must share one too ([`Check::colocate_with`](crate::Check::colocate_with)).
    pub fn cluster<S: AsRef<str>>(mut self, urls: impl IntoIterator<Item = S>) -> Self {
        self.backend = Backend::Cluster(urls.into_iter().map(|url| url.as_ref().to_owned()).collect());
        self
    }
}

impl Connecting {
    pub(super) fn by_cluster(
        self,
        urls: &[String],
        background: &Arc<Background>,
    ) -> Result<Connection, Error> {
        let nodes: Vec<_> = urls.iter().map(|url| self.understood(url)).collect::<Result<_, _>>()?;
        Ok(Connection::of_cluster(Cluster::new(&nodes, self.login, background.clone())?))
    }
}
