//! Three regions, each with its own Redis, and the network between them.

use std::pin::pin;
use std::time::Duration;

use tidegate::regions::Mode;
use tidegate::regions::replicator::Status;
use tidegate::{Builder, Gate, Limiter, Quota};
use tidegate_testkit::{Fault, Proxy, Server};
use tokio::time::{Instant, interval, sleep};

use super::REGIONS;
use crate::Failure;
use crate::server::Target;

const NAMES: [&str; REGIONS] = ["eu", "us", "ap"];
/// The stream of a region, by the default namespace.
pub(super) const STREAM: &str = "tidegate:1:regions:log";

pub(super) struct Fleet {
    /// Dropped before the servers that they use.
    pub(super) limiters: Vec<Limiter>,
    /// Limiters without peers, on the same servers.
    pub(super) plain: Vec<Limiter>,
    links: Vec<Link>,
    pub(super) targets: Vec<Target>,
}

/// The way from a reader to the server of another region.
struct Link {
    reader: usize,
    origin: usize,
    /// Delays what the server sends.
    replies: Proxy,
    /// Delays what the reader sends, on its way from the other proxy to the server.
    requests: Proxy,
}

/// Returns the latency between two regions: round trips take 80, 150 and 220 ms.
pub(super) const fn one_way(here: usize, there: usize) -> Duration {
    Duration::from_millis(match here + there {
        1 => 40,
        2 => 75,
        _ => 110,
    })
}

impl Fleet {
    /// Starts the regions, and waits until all have heard of each other.
    pub(super) async fn start() -> Result<Self, Failure> {
        let targets: Vec<Target> =
            NAMES.iter().map(|_| Target::new(Server::process(&[])?)).collect::<Result<_, _>>()?;
        let ways = (0..REGIONS).flat_map(|reader| (0..REGIONS).map(move |origin| (reader, origin)));
        let links = ways
            .filter(|(reader, origin)| reader != origin)
            .map(|(reader, origin)| Link::start(reader, origin, targets[origin].url()))
            .collect::<Result<Vec<_>, _>>()?;
        let limiters = (0..REGIONS)
            .map(|region| {
                let own = links.iter().filter(|link| link.reader == region);
                let builder = builder(&targets[region]).region(NAMES[region]);
                own.fold(builder, |builder, link| builder.peer(NAMES[link.origin], &link.replies.url()))
                    .build()
            })
            .collect::<Result<_, _>>()?;
        let plain = targets.iter().map(|target| builder(target).build()).collect::<Result<_, _>>()?;
        let fleet = Self { limiters, plain, links, targets };
        fleet.wait_until_cut(false).await?;
        Ok(fleet)
    }

    /// Returns the replicated gate of each region.
    pub(super) fn gates(&self, name: &str, quota: Quota, mode: Mode) -> Vec<Gate> {
        self.limiters.iter().map(|limiter| limiter.gate(name, quota).replicated(mode)).collect()
    }

    pub(super) fn statuses(&self) -> impl Iterator<Item = Status> {
        self.limiters.iter().filter_map(Limiter::regions)
    }

    /// Returns the bytes that the server of a region has sent to the other regions.
    pub(super) fn bytes_out(&self, region: usize) -> u64 {
        let links = self.links.iter().filter(|link| link.origin == region);
        links.map(|link| link.requests.counts().to_client).sum()
    }

    /// Returns how often the servers have run a command.
    pub(super) fn calls(&self, command: &str) -> Result<u64, Failure> {
        self.targets.iter().map(|target| target.calls(command)).sum()
    }

    /// Makes the network between a region and the others silent, until all other regions count it as cut off, or restores
    /// it.
    pub(super) async fn cut(&self, region: usize, is_cut: bool) -> Result<(), Failure> {
        for link in self.links.iter().filter(|link| link.reader == region || link.origin == region) {
            link.set(is_cut);
        }
        self.wait_until_cut(is_cut).await
    }

    /// Waits until every region counts a peer as cut off, or none does.
    async fn wait_until_cut(&self, is_cut: bool) -> Result<(), Failure> {
        let ends = Instant::now() + Duration::from_secs(30);
        while Instant::now() < ends {
            if self.statuses().all(|status| status.peers.iter().any(|peer| peer.is_cut_off) == is_cut) {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Err("the regions do not see the state of the network within 30 s".into())
    }

    /// Runs `work`. Meanwhile, reads the state of replication ten times a second.
    pub(super) async fn observed<T>(&self, work: impl Future<Output = T>) -> (T, Vec<Status>) {
        let (mut work, mut every) = (pin!(work), interval(Duration::from_millis(100)));
        let mut seen = Vec::new();
        loop {
            tokio::select! {
                done = &mut work => return (done, seen),
                _ = every.tick() => seen.extend(self.statuses()),
            }
        }
    }
}

/// Returns the staleness of all observed peers, in ms.
pub(super) fn staleness_ms(seen: &[Status]) -> Vec<f64> {
    let peers = seen.iter().flat_map(|status| &status.peers);
    peers.filter_map(|peer| Some(peer.staleness?.as_secs_f64() * 1e3)).collect()
}

/// Returns a quantile of these values.
pub(super) fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((at * last as f64).round() as usize).copied().unwrap_or(f64::NAN)
}

fn builder(target: &Target) -> Builder {
    Limiter::builder().url(target.url()).deadline(Duration::from_secs(5))
}

impl Link {
    fn start(reader: usize, origin: usize, url: &str) -> Result<Self, Failure> {
        let requests = Proxy::start(url)?;
        let replies = Proxy::start(&requests.url())?;
        let link = Self { reader, origin, replies, requests };
        link.set(false);
        Ok(link)
    }

    fn set(&self, is_cut: bool) {
        let delay = one_way(self.reader, self.origin);
        self.replies.set(if is_cut { Fault::BlackHole } else { Fault::Slow(delay) });
        self.requests.set(if is_cut { Fault::BlackHole } else { Fault::Late(delay) });
    }
}
