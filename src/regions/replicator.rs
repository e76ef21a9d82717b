//! The replicator: carries the charges of one region to its Redis, in the background of a process.
//!
//! Not covered by semantic versioning: a minor version may change this module. A limiter with
//! [peers](crate::Builder::peer) starts it. In a Redis Cluster all its keys have one slot; it follows the slot when that moves.
//!
//! Each process of a region may run one. They need no leader: a cursor in the region's Redis decides which of them applies
//! an entry. For each peer, a reader repeats these steps:
//!
//! ```text
//!  own Redis:     the cursor, the time
//!  peer's Redis:  HSET acks, GET epoch, once a second XINFO, XREAD BLOCK, TIME: one pipeline
//!  own Redis:     for each part of at most 128 changes: apply, if the cursor is the expected one
//! ```
//!
//! - **Exactly once.** A reader that is killed, or whose reply is lost, leaves the cursor before or after a part. The next
//!   step begins with the cursor that is stored, so no step depends on the memory of a process, and each may be cancelled.
//! - **Silence.** A read returns after [`BEAT`] without an entry, and is applied too: so an idle peer is heard of.
//! - **A peer is trusted with the state of replicated gates only.** It can charge, block and reset any key of theirs, under
//!   any quota: so it can deny all checks of these gates, and admit any. It cannot name other keys, and texts that tidegate does
//!   not write are skipped and counted. It decides what its own stream holds: with a late ID, nothing of it is read again.
//! - **Rights at a peer**: GET, HSET, PING, TIME, XINFO and XREAD, on the keys of replication. A peer that refuses HSET alone is
//!   read, and the refusal is reported.
//! - **Peers are independent.** Each reader has a connection of its own, reconnects with exponential backoff up to 1 s, and holds
//!   at most one read. No check waits for a reader.
//!
//! The flusher moves changes of this process into the stream within [`Replication::flush_every`]. It checks for those of
//! other processes ten times less often.

mod flusher;
mod local;
mod losses;
mod parts;
mod reader;
mod status;
mod stream;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use self::local::Local;
use self::reader::PeerReader;
use self::status::{FlusherState, PeerState};
pub use self::stream::BEAT;
use self::stream::Stream;
use super::Replication;
use super::script::Keys;
use crate::connection::{Connection, DedicatedConnection, Login};
use crate::error::Error;
use crate::error::redact::RedactedUrl;
use crate::observe::observer::{Event, EventSink};
pub use crate::observe::replication::{PeerStatus, Status};
use crate::runtime::background::Background;
use crate::runtime::sync::{Mutex, lock};

/// The time between two reports to the observer.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The settings of a replicator. All regions have the same prefix and states.
#[derive(Clone)]
pub struct ReplicatorSettings {
    /// The name of this region.
    pub region: String,
    /// The URL of its Redis.
    pub url: String,
    /// The names of the other regions, and the URLs of their Redis.
    pub peers: Vec<(String, String)>,
    /// How the keys of replication begin: see [`Keys::new`].
    pub prefix: String,
    /// How the keys of replicated gates begin. A peer can change all keys that begin so.
    pub states: String,
    /// A known key as this region writes it: regions with other secrets would charge other keys.
    pub known_key: String,
    /// The settings that all regions should share.
    pub replication: Replication,
}

impl ReplicatorSettings {
    /// Makes settings without peers.
    #[must_use]
    pub fn new(region: &str, url: &str, prefix: &str, states: &str) -> Self {
        Self {
            region: region.to_owned(),
            url: url.to_owned(),
            peers: Vec::new(),
            prefix: prefix.to_owned(),
            states: states.to_owned(),
            known_key: String::new(),
            replication: Replication::default(),
        }
    }

    /// Adds another region.
    #[must_use]
    pub fn peer(mut self, name: &str, url: &str) -> Self {
        self.peers.push((name.to_owned(), url.to_owned()));
        self
    }

    fn validate(&self) -> Result<(), Error> {
        self.replication.validate()?;
        let names: Vec<&str> = self.names().collect();
        for (index, name) in names.iter().enumerate() {
            let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if name.is_empty() || name.len() > 64 || !name.bytes().all(is_usual) {
                return Err(Error::config(format!(
                    "the region {name:?} cannot be named so: use 1 to 64 of the characters a-z, A-Z, 0-9, -, _ and ."
                )));
            }
            if names[..index].contains(name) {
                return Err(Error::config(format!("the region \"{name}\" is named twice")));
            }
        }
        // A peer could otherwise change cursors.
        if self.states.is_empty() || Keys::new(&self.prefix).stream.starts_with(&self.states) {
            return Err(Error::config(format!(
                "keys of gates begin with {:?}, and so do those of replication, {:?}: a peer may not name both",
                self.states, self.prefix
            )));
        }
        Ok(())
    }

    /// Returns what all regions have in common, which each tells the others: their names, and the known key.
    fn common(&self) -> String {
        let mut names: Vec<&str> = self.names().collect();
        names.sort_unstable();
        format!("{}/{}", names.join(","), self.known_key)
    }

    /// Returns an error if a peer has other things in common.
    fn compare(&self, peer: &str, theirs: Option<&str>) -> Option<Error> {
        let ours = self.common();
        let theirs = theirs.filter(|theirs| *theirs != ours)?;
        let theirs: String = theirs.chars().take(256).collect();
        Some(Error::config(format!(
            "the region \"{peer}\" has other regions, or another key mode: {theirs:?}, and here {ours:?}. Give all the same"
        )))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.region).chain(self.peers.iter().map(|(name, _)| &**name))
    }
}

/// Shows no passwords.
impl fmt::Debug for ReplicatorSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        f.debug_struct("ReplicatorSettings")
            .field("regions", &names)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// A running replicator. Dropping it ends its jobs without waiting for them; another replicator goes on.
pub struct Replicator {
    shared: Arc<Shared>,
    jobs: Vec<JoinHandle<()>>,
}

/// The state of all jobs.
struct Shared {
    settings: ReplicatorSettings,
    local: Local,
    changed: Notify,
    flusher: Mutex<FlusherState>,
    /// In the order of the settings.
    peers: Vec<Mutex<PeerState>>,
}

impl Replicator {
    /// Starts the jobs on a thread of their own. They connect when they need to.
    ///
    /// # Errors
    ///
    /// If a URL or a name is not valid, or if the system provides no thread.
    pub fn start(settings: ReplicatorSettings) -> Result<Self, Error> {
        let background = Arc::new(Background::default());
        let own = Connection::to_server(server_of(&settings.url)?, Login::OfUrl, background.clone());
        let peers = settings.peers.iter().map(|(_, url)| server_of(url)).collect::<Result<_, _>>()?;
        Self::start_with(settings, Arc::new(own), peers, &background, EventSink::new(None))
    }

    /// Does the same with the connection to this region's Redis, the servers of the peers, the thread, and
    /// the observer.
    pub(crate) fn start_with(
        settings: ReplicatorSettings,
        own: Arc<Connection>,
        peers: Vec<ConnectionInfo>,
        background: &Background,
        events: EventSink,
    ) -> Result<Self, Error> {
        settings.validate()?;
        let local = Local::new(own, Keys::new(&settings.prefix));
        let to_stream = |info| Stream::new(DedicatedConnection::to_server(info, Login::OfUrl), &settings);
        let streams: Vec<Stream> = peers.into_iter().map(to_stream).collect();
        let peers = streams.iter().map(|_| Mutex::default()).collect();
        let (changed, flusher) = (Notify::new(), Mutex::default());
        let shared = Arc::new(Shared { settings, local, changed, flusher, peers });
        let mut this = Self { shared: shared.clone(), jobs: Vec::new() };
        let no_thread = || Error::unavailable("the system provides no thread for the replicator");
        this.jobs.push(background.spawn(flusher::run(shared.clone())).ok_or_else(no_thread)?);
        for (peer, stream) in streams.into_iter().enumerate() {
            let reader = PeerReader::new(shared.clone(), peer, stream);
            this.jobs.push(background.spawn(reader.run()).ok_or_else(no_thread)?);
        }
        if events.is_observed() {
            this.jobs.push(background.spawn(report(shared, events)).ok_or_else(no_thread)?);
        }
        Ok(this)
    }

    /// Returns the number of regions, this one included.
    pub(crate) fn regions(&self) -> u64 {
        self.shared.settings.peers.len() as u64 + 1
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.shared.local.keys
    }

    /// Returns the local time at which the first of the peers was cut off, in µs since 1970, if one is cut off: see
    /// [`cut_off`](super::reference::Replication::cut_off).
    pub(crate) fn cut_us(&self) -> Option<u64> {
        let after = self.shared.settings.replication.cut_off_after;
        self.shared.peers.iter().filter_map(|peer| lock(peer).cut_us(after)).min()
    }

    /// Moves all changes that wait into the stream, at most until `ends`, and ends the jobs.
    pub(crate) async fn end(&self, ends: Instant) {
        // What is left waits for another process.
        let _ = tokio::time::timeout_at(ends, flusher::flush_all(&self.shared)).await;
        self.stop();
    }

    fn stop(&self) {
        self.jobs.iter().for_each(JoinHandle::abort);
    }

    /// Tells the flusher that this process has added changes to the outbox. Does not wait.
    pub fn wake(&self) {
        self.shared.changed.notify_one();
    }

    /// Returns the state of the outbox and of the peers.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }
}

impl Shared {
    fn status(&self) -> Status {
        let names = self.settings.peers.iter().map(|(name, _)| name);
        let after = self.settings.replication.cut_off_after;
        let peers = names.zip(&self.peers).map(|(name, state)| lock(state).status(name, after)).collect();
        let flusher = lock(&self.flusher);
        Status { outbox: flusher.left, error: flusher.error.clone(), peers }
    }
}

/// Reports the state to the observer, each second.
async fn report(shared: Arc<Shared>, events: EventSink) {
    let mut last = shared.status();
    loop {
        let now = shared.status();
        events.notify(&Event::Replicated { now: &now, last: &last });
        last = now;
        sleep(REPORT_EVERY).await;
    }
}

impl Drop for Replicator {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Replicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicator").field("settings", &self.shared.settings).finish_non_exhaustive()
    }
}

fn server_of(url: &str) -> Result<ConnectionInfo, Error> {
    let shown = RedactedUrl::new(url);
    // The error of the parser may quote the password.
    url.into_connection_info().map_err(|_| {
        Error::config(format!(
            "the Redis URL {shown} cannot be used: it should look like redis://127.0.0.1:6379"
        ))
    })
}
