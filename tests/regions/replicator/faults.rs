//! Faults of the network between a replicator and the servers, and of their clocks.

use std::time::{Duration, Instant};

use tidegate::regions::replicator::Replicator;
use tidegate_testkit::{Fault, Proxy, Server};

use super::site::{self, Site, Units, assert_converged, settings, settings_of, sites, status};
use super::{charge_all, wait_for_cursors};
use crate::support::fixture::soon;

/// Starts a replicator of the first region that reaches its own server and that of the second by proxies, and one of the
/// second without.
fn behind_proxies(sites: &[Site]) -> ([Proxy; 2], [Replicator; 2]) {
    let proxies = [0, 1].map(|index| Proxy::start(sites[index].server.url()).unwrap());
    let urls = [proxies[0].url(), proxies[1].url()];
    let mut settings = settings_of(&[&urls[0], &urls[1]], 0);
    settings.replication = settings.replication.cut_off_after(Duration::from_secs(1));
    let first = Replicator::start(settings).unwrap();
    (proxies, [first, Replicator::start(self::settings(sites, 1)).unwrap()])
}

#[tokio::test]
async fn charge_counts_once_if_the_reply_to_its_application_is_lost() {
    let mut sites = sites(2);
    let (proxies, _replicators) = behind_proxies(&sites);
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    for _ in 0..5 {
        proxies[0].set(Fault::Slow(Duration::from_millis(200)));
        for gate in 0..site::gates().len() {
            sites[1].charge_into(&mut units, gate, "ann", 1);
        }
        let before = sites[0].cursor("us").unwrap();
        soon("it is applied", async || sites[0].cursor("us").unwrap().position.1 > before.position.1).await;
        // The reply is on its way.
        proxies[0].cut();
        proxies[0].set(Fault::None);
        assert_converged(&mut sites, &units).await;
    }
}

#[tokio::test]
async fn charges_count_once_while_connections_end_at_any_byte() {
    let mut sites = sites(2);
    let (proxies, replicators) = behind_proxies(&sites);
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    proxies.iter().for_each(|proxy| proxy.set(Fault::Cut(20_000)));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        charge_all(&mut sites, &mut units, 1);
        tokio::task::yield_now().await;
    }
    proxies.iter().for_each(|proxy| proxy.set(Fault::None));
    assert_converged(&mut sites, &units).await;
    let connections: u64 = proxies.iter().map(|proxy| proxy.counts().connections).sum();
    eprintln!("{connections} connections, {:?}", status(&replicators[0], "us"));
    assert!(connections > 10, "{connections} connections");
    assert_eq!(status(&replicators[0], "us").gaps, 0);
}

#[tokio::test]
async fn backlog_is_read_over_connections_that_end_before_all_of_it_is_sent() {
    let mut sites = sites(2);
    let (proxies, replicators) = behind_proxies(&sites);
    wait_for_cursors(&mut sites).await;
    proxies[1].set(Fault::Refuse);
    let mut units = Units::new();
    for subject in 0..5_000 {
        sites[1].charge_into(&mut units, 0, &subject.to_string(), 1);
    }
    soon("the backlog is in the stream", async || sites[1].outbox() == 0).await;
    // At most about half of the backlog.
    proxies[1].set(Fault::Cut(200_000));
    assert_converged(&mut sites, &units).await;
    eprintln!("{} connections, {:?}", proxies[1].counts().connections, status(&replicators[0], "us"));
}

#[tokio::test]
async fn cut_in_one_direction_heals_without_a_loss() {
    let mut sites = sites(2);
    let (proxies, replicators) = behind_proxies(&sites);
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    charge_all(&mut sites, &mut units, 3);
    assert_converged(&mut sites, &units).await;
    // A port that rejects connections, and one that is silent.
    for fault in [Fault::Refuse, Fault::BlackHole] {
        soon("the peer is heard of", async || !status(&replicators[0], "us").is_cut_off).await;
        let [seen, of_first] = [sites[0].used_by(0, "ann"), sites[1].used_by(0, "ann")];
        assert_eq!(seen, of_first);
        proxies[1].set(fault);
        sites[0].charge_into(&mut units, 0, "ann", 7);
        soon("the other direction works", async || sites[1].used_by(0, "ann") == of_first + 7).await;
        soon("the peer is cut off", async || status(&replicators[0], "us").is_cut_off).await;
        sites[1].charge_into(&mut units, 0, "ann", 11);
        soon("the charge is in the stream", async || sites[1].outbox() == 0).await;
        assert_eq!(sites[0].used_by(0, "ann"), seen + 7);
        soon("the error is reported", async || status(&replicators[0], "us").error.is_some()).await;
        soon("it is heard of there", async || !status(&replicators[1], "eu").is_cut_off).await;
        proxies[1].set(Fault::None);
        // A connection that has lost bytes stays silent.
        proxies[1].cut();
        assert_converged(&mut sites, &units).await;
        soon("the error has gone", async || status(&replicators[0], "us").error.is_none()).await;
    }
    assert_eq!(status(&replicators[0], "us").gaps + status(&replicators[0], "us").rewound, 0);
}

#[tokio::test]
async fn slow_peer_is_neither_cut_off_nor_counted_twice() {
    let mut sites = sites(2);
    let (proxies, replicators) = behind_proxies(&sites);
    proxies[1].set(Fault::Slow(Duration::from_millis(150)));
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    charge_all(&mut sites, &mut units, 5);
    assert_converged(&mut sites, &units).await;
    soon("the peer is heard of", async || !status(&replicators[0], "us").is_cut_off).await;
    assert_eq!(status(&replicators[0], "us").error.map(|error| error.to_string()), None);
}

/// So short that less than a unit drains.
#[tokio::test]
async fn charges_count_once_while_the_clock_of_a_redis_is_stepped() {
    let site = |name| Site::of(name, Server::with_shiftable_clock().unwrap());
    let mut sites = vec![site("eu"), site("us")];
    let replicators = [0, 1].map(|index| Replicator::start(settings(&sites, index)).unwrap());
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    for (stepped, seconds) in [(0, 300), (1, -300), (0, -600), (1, 600), (0, 300), (1, -300)] {
        charge_all(&mut sites, &mut units, 1);
        sites[stepped].server.shift_clock(seconds * 1_000_000);
        charge_all(&mut sites, &mut units, 2);
        assert_converged(&mut sites, &units).await;
    }
    for (replicator, peer) in replicators.iter().zip(["us", "eu"]) {
        let status = status(replicator, peer);
        assert_eq!((status.gaps, status.rewound, status.failed, status.skipped), (0, 0, 0, 0), "{status:?}");
    }
}
