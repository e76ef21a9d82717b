//! A region for tests of the replicator: its Redis, its takes, and what it has counted.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use redis::{Connection, Value};
use tidegate::regions::reference::gossip::Gossip;
use tidegate::regions::reference::{Cursor, Id, Taken};
use tidegate::regions::replicator::{PeerStatus, Replicator, ReplicatorSettings};
use tidegate::regions::script::{Keys, TakeGroup, TakeItem, cursor_of, taken};
use tidegate::{Quota, Rate};
use tidegate_testkit::Server;

use crate::support::fixture::soon;
use crate::support::script::connect;

const PREFIX: &str = "tidegate:1:regions";
const STATES: &str = "state:";
const NAMES: [&str; 3] = ["eu", "us", "ap"];
const LIMIT: u64 = 100_000;

static COUNTED: LazyLock<Duration> = LazyLock::new(window_of_counter);

/// Units by gate and key.
pub type Units = BTreeMap<(usize, String), u64>;

/// An entry with its fields, as the server stores it.
pub type Stored = (String, Vec<(Vec<u8>, Vec<u8>)>);

pub struct Site {
    pub name: &'static str,
    pub server: Server,
    pub connection: Connection,
}

/// Returns a window whose edge is far away. Longer ones are too long for the limit.
#[expect(clippy::disallowed_methods, reason = "chooses a window, and dates nothing")]
fn window_of_counter() -> Duration {
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let to_edge = |window_s: &u64| (now_s % window_s).min(window_s - now_s % window_s);
    Duration::from_secs([12 * 3_600, 11 * 3_600].into_iter().max_by_key(to_edge).unwrap())
}

/// Returns a gate of each algorithm, so slow that no unit becomes available during a test.
pub fn gates() -> [Gossip; 5] {
    let year = Duration::from_secs(365 * 24 * 3_600);
    let quotas = [
        Quota::token_bucket(LIMIT, Rate::new(LIMIT, 8 * year)),
        Quota::leaky_bucket(LIMIT, Rate::new(LIMIT, 8 * year)),
        Quota::fixed_window(LIMIT, year).aligned_to_clock(),
        Quota::sliding_log(LIMIT, year),
        Quota::sliding_counter(LIMIT, *COUNTED),
    ];
    quotas.map(|quota| Gossip::new(quota, 3).unwrap())
}

pub fn keys() -> Keys {
    Keys::new(PREFIX)
}

pub fn key(gate: usize, subject: &str) -> String {
    format!("{STATES}{gate}:{subject}")
}

/// Starts the servers of this many regions.
pub fn sites(count: usize) -> Vec<Site> {
    NAMES[..count].iter().map(|name| Site::start(name)).collect()
}

/// Returns the settings of the region at this index, which flushes often.
pub fn settings(sites: &[Site], index: usize) -> ReplicatorSettings {
    let urls: Vec<&str> = sites.iter().map(|site| site.server.url()).collect();
    settings_of(&urls, index)
}

pub fn settings_of(urls: &[&str], index: usize) -> ReplicatorSettings {
    let mut settings = ReplicatorSettings::new(NAMES[index], urls[index], PREFIX, STATES);
    settings.replication = settings.replication.flush_every(Duration::from_millis(5));
    let peers = (0..urls.len()).filter(|peer| *peer != index);
    peers.fold(settings, |settings, peer| settings.peer(NAMES[peer], urls[peer]))
}

/// Starts a replicator in each region.
pub fn replicate(sites: &[Site]) -> Vec<Replicator> {
    (0..sites.len()).map(|index| Replicator::start(settings(sites, index)).unwrap()).collect()
}

/// Returns the state of a peer.
pub fn status(replicator: &Replicator, peer: &str) -> PeerStatus {
    replicator.status().peers.into_iter().find(|status| status.name == peer).unwrap()
}

/// Waits until each region has read the streams of the others to their ends, and asserts that it has counted exactly
/// these units.
pub async fn assert_converged(sites: &mut [Site], units: &Units) {
    wait_until_read(sites).await;
    for site in sites {
        assert_eq!(site.used(units.keys()), *units, "{}", site.name);
    }
}

/// Waits until nothing waits in an outbox or a stream.
pub async fn wait_until_read(sites: &mut [Site]) {
    soon("all regions have read all streams", async || {
        let outboxes = sites.iter_mut().map(|site| site.outbox()).sum::<u64>();
        let ends: Vec<(&str, Id)> = sites.iter_mut().map(|site| (site.name, site.end())).collect();
        outboxes == 0 && sites.iter_mut().all(|site| site.has_read(&ends))
    })
    .await;
}

/// Adds the units of these charges.
pub fn add(units: &mut Units, gate: usize, subject: &str, charged: u64) {
    *units.entry((gate, subject.to_owned())).or_default() += charged;
}

/// Makes checks. An error leaves open whether they were made.
pub fn try_take(
    connection: &mut Connection,
    gate: usize,
    subject: &str,
    n: u64,
    cost: u64,
) -> redis::RedisResult<Taken> {
    let (gate, key) = (&gates()[gate], key(gate, subject));
    let items = vec![TakeItem { gate, key: &key, share: "", cost, max_delay: None }];
    let groups = [TakeGroup { n, items }];
    let mut call = keys().take(&groups, None);
    call.args.push(String::new());
    let mut command = redis::cmd("EVAL");
    command.arg(call.script.text).arg(call.keys.len()).arg(&call.keys).arg(&call.args);
    let reply: Value = command.query(connection)?;
    Ok(taken(&groups, false, &reply).unwrap().remove(0).unwrap().remove(0))
}

impl Site {
    fn start(name: &'static str) -> Self {
        Self::of(name, Server::process(&[]).unwrap())
    }

    pub fn of(name: &'static str, server: Server) -> Self {
        Self { name, connection: connect(server.url()), server }
    }

    /// Kills the server, and starts it with what it has stored on disk: nothing by default.
    pub fn restart(&mut self) {
        self.server.restart().unwrap();
        self.connection = connect(self.server.url());
    }

    fn take(&mut self, gate: usize, subject: &str, n: u64, cost: u64) -> Taken {
        try_take(&mut self.connection, gate, subject, n, cost).unwrap()
    }

    /// Makes a check, which must be admitted.
    pub fn charge(&mut self, gate: usize, subject: &str, cost: u64) {
        assert_eq!(self.take(gate, subject, 1, cost).k, 1);
    }

    /// Makes a charge, and adds it to these units.
    pub fn charge_into(&mut self, units: &mut Units, gate: usize, subject: &str, cost: u64) {
        self.charge(gate, subject, cost);
        add(units, gate, subject, cost);
    }

    /// Returns the units that a key has used in this region.
    pub fn used_by(&mut self, gate: usize, subject: &str) -> u64 {
        LIMIT - self.take(gate, subject, 0, 1).answer(0).remaining
    }

    fn used<'u>(&mut self, of: impl Iterator<Item = &'u (usize, String)>) -> Units {
        of.map(|(gate, subject)| ((*gate, subject.clone()), self.used_by(*gate, subject))).collect()
    }

    pub fn outbox(&mut self) -> u64 {
        redis::cmd("HLEN").arg(keys().outbox).query(&mut self.connection).unwrap()
    }

    /// Returns the ID of the newest entry of the stream.
    pub fn end(&mut self) -> Id {
        let newest: Vec<Stored> = redis::cmd("XREVRANGE")
            .arg(keys().stream)
            .arg(&["+", "-", "COUNT", "1"])
            .query(&mut self.connection)
            .unwrap();
        let Some((id, _)) = newest.first() else { return (0, 0) };
        let (ms, sequence) = id.split_once('-').unwrap();
        (ms.parse().unwrap(), sequence.parse().unwrap())
    }

    pub fn cursor(&mut self, peer: &str) -> Option<Cursor> {
        let text: Option<String> =
            redis::cmd("GET").arg(keys().cursor(peer)).query(&mut self.connection).unwrap();
        text.map(|text| cursor_of(&text).unwrap())
    }

    fn has_read(&mut self, ends: &[(&str, Id)]) -> bool {
        let own = self.name;
        let mut peers = ends.iter().copied().filter(|(peer, _)| *peer != own);
        peers.all(|(peer, end)| self.cursor(peer).is_some_and(|cursor| cursor.position.1 >= end))
    }

    /// Appends an entry as a hostile region could.
    pub fn append(&mut self, pairs: &[(&[u8], &[u8])]) {
        let mut command = redis::cmd("XADD");
        command.arg(keys().stream).arg("*");
        for (field, amount) in pairs {
            command.arg(*field).arg(*amount);
        }
        command.exec(&mut self.connection).unwrap();
    }
}
