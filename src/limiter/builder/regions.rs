//! The settings of a builder for limits of several regions.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};

use super::Builder;
use super::connecting::Connecting;
use crate::connection::Connection;
use crate::error::Error;
use crate::key::Keyspace;
use crate::observe::observer::EventSink;
use crate::observe::warning::{RepeatedWarning, WarningSink};
use crate::regions::Replication;
use crate::regions::replicator::{Replicator, ReplicatorSettings};
use crate::runtime::background::Background;

/// # Several regions
impl Builder {
    /// Names the region of this limiter's Redis, for limits that several regions share: see
    /// [`Gate::replicated`](crate::Gate::replicated). 1 to 64 letters, digits, `_`, `.` or `-`.
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// # fn main() -> Result<(), tidegate::Error> {
    /// # let [eu_url, us_url, ap_url] = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"];
    /// let limiter = Limiter::builder()
    ///     .url(eu_url)
    ///     .region("eu")
    ///     .peer("us", us_url)
    ///     .peer("ap", ap_url)
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn region(mut self, name: &str) -> Self {
        self.regions.name = Some(name.to_owned());
        self
    }

    /// Adds another region, with the URL of its Redis. Call it once for each: all regions know each other, and have the same
    /// namespace and [key mode](Self::key_mode). The limiter reads charges there from when it is built, on a background
    /// thread, also while it makes no checks.
    ///
    /// If one region is a Redis Cluster, all are. The URL is then that of any node: it names the one that serves what
    /// is replicated.
    ///
    /// Use `rediss://` between regions; the certificates are those of [`tls_ca`](Self::tls_ca). The user needs GET, HSET,
    /// PING, TIME, XINFO and XREAD on the keys `<namespace>:1:regions:*`.
    pub fn peer(mut self, name: &str, url: &str) -> Self {
        self.regions.peers.push((name.to_owned(), url.to_owned()));
        self
    }

    /// Sets how charges are replicated.
    ///
    /// Default: [`Replication::default()`](Replication).
    pub fn replication(mut self, replication: Replication) -> Self {
        self.regions.replication = replication;
        self
    }
}

#[derive(Default)]
pub(super) struct Regions {
    name: Option<String>,
    peers: Vec<(String, String)>,
    replication: Replication,
}

impl Regions {
    /// Returns the servers of the peers.
    pub(super) fn servers(&self, connecting: &Connecting) -> Result<Vec<ConnectionInfo>, Error> {
        self.peers.iter().map(|(_, url)| connecting.understood(url)).collect()
    }

    /// Starts the replicator, if there are peers. `own` is the connection to the Redis of this region.
    pub(super) fn start(
        self,
        own: Option<Arc<Connection>>,
        servers: Vec<ConnectionInfo>,
        keyspace: &Keyspace,
        background: &Background,
        events: EventSink,
        warnings: &WarningSink,
    ) -> Result<Option<Arc<Replicator>>, Error> {
        let Some(name) = self.name else {
            return match self.peers.is_empty() {
                true => Ok(None),
                false => Err(Error::config("the limiter has peers, but no region: name it by `region`")),
            };
        };
        if self.peers.is_empty() {
            return Err(Error::config(format!("the region \"{name}\" has no peers: add each by `peer`")));
        }
        let own = own.ok_or_else(|| {
            Error::config(
                "regions replicate from a Redis each: give the limiter a `url`, `sentinel`, `cluster` or `pool`, not this process's memory",
            )
        })?;
        warn_of_plaintext(&self.peers, &servers, warnings);
        // The connection to the own Redis is there already.
        let settings = ReplicatorSettings::new(&name, "", &keyspace.regions(), &keyspace.replicated_states());
        let settings = ReplicatorSettings {
            peers: self.peers,
            known_key: keyspace.encoded(b"regions"),
            replication: self.replication,
            ..settings
        };
        let started = Replicator::start_with(settings, own, servers, background, events)?;
        Ok(Some(Arc::new(started)))
    }
}

fn warn_of_plaintext(peers: &[(String, String)], servers: &[ConnectionInfo], warnings: &WarningSink) {
    let is_plaintext = |server: &ConnectionInfo| match server.addr() {
        ConnectionAddr::Tcp(host, _) => !matches!(&**host, "localhost" | "127.0.0.1" | "::1"),
        _ => false,
    };
    for ((name, _), _) in peers.iter().zip(servers).filter(|(_, server)| is_plaintext(server)) {
        warnings.warn(&RepeatedWarning::new("peer-plaintext"), || {
            format!("the charges of the region \"{name}\" and its password are read without encryption: use a rediss:// URL")
        });
    }
}
