//! Streams that lose entries: trimmed, emptied, or restored from an older state.

use std::time::Duration;

use rand::Rng;
use redis::Connection;
use tidegate::regions::replicator::Replicator;
use tidegate_testkit::{Fault, Proxy, Server};

use super::site::{
    self, Site, Units, assert_converged, replicate, settings, settings_of, sites, status, wait_until_read,
};
use super::{charge_all, wait_for_cursors};
use crate::support::fixture::soon;
use crate::support::plan::sequences;
use crate::support::script::connect;

#[tokio::test]
async fn trimmed_stream_is_counted_as_a_gap() {
    let mut sites = sites(2);
    let proxy = Proxy::start(sites[1].server.url()).unwrap();
    let reader = Replicator::start(settings_of(&[sites[0].server.url(), &proxy.url()], 0)).unwrap();
    let mut short = settings(&sites, 1);
    short.replication = short.replication.max_entries(3);
    let _writer = Replicator::start(short).unwrap();
    wait_for_cursors(&mut sites).await;
    for round in 1..=2 {
        let used = sites[0].used_by(0, "ann");
        proxy.set(Fault::Refuse);
        for _ in 0..10 {
            sites[1].charge(0, "ann", 1);
            soon("it is in the stream", async || sites[1].outbox() == 0).await;
        }
        proxy.set(Fault::None);
        soon("the gap is counted", async || status(&reader, "us").gaps == round).await;
        soon("the rest is read", async || sites[0].cursor("us").unwrap().position.1 == sites[1].end()).await;
        assert_eq!(sites[0].used_by(0, "ann"), used + 3);
    }
}

#[tokio::test]
async fn entries_that_are_trimmed_after_their_read_are_not_a_gap() {
    let mut sites = sites(2);
    let reader = Replicator::start(settings(&sites, 0)).unwrap();
    let mut short = settings(&sites, 1);
    short.replication = short.replication.retention(Duration::from_millis(1));
    let _writer = Replicator::start(short).unwrap();
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    for _ in 0..3 {
        sites[1].charge_into(&mut units, 0, "ann", 1);
        let charged = units.values().sum::<u64>();
        soon("it arrives", async || sites[0].used_by(0, "ann") == charged).await;
        // Longer than the time between two looks at the figures.
        let heard = status(&reader, "us").heard_us.unwrap();
        soon("the stream is empty, and was looked at", async || {
            let is_empty = sites[1].end() == (0, 0);
            is_empty && status(&reader, "us").heard_us.unwrap() > heard + 1_500_000
        })
        .await;
    }
    assert_eq!(status(&reader, "us").gaps, 0);
}

#[tokio::test]
async fn emptied_peer_begins_a_new_epoch_and_is_read_on() {
    let mut sites = sites(2);
    let replicators = replicate(&sites);
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    charge_all(&mut sites, &mut units, 3);
    assert_converged(&mut sites, &units).await;
    let windows: u64 = sites[0].used_by(2, "ann");
    let own_windows = 1; // of "ann", in each round for it one unit of the first region
    let epoch = sites[0].cursor("us").unwrap().position.0;
    sites[1].server.flush().unwrap();
    soon("the new epoch is stored", async || sites[0].cursor("us").unwrap().position.0 != epoch).await;
    wait_for_cursors(&mut sites).await;
    soon("it is counted", async || status(&replicators[0], "us").rewound == 1).await;
    for (gate, _) in site::gates().iter().enumerate() {
        sites[1].charge_into(&mut units, gate, "ann", 5);
    }
    wait_until_read(&mut sites).await;
    // The other region has counted all, once. The emptied one has read charges of named windows again.
    for ((gate, subject), expected) in &units {
        assert_eq!(sites[0].used_by(*gate, subject), *expected, "{gate} {subject}");
    }
    assert_eq!(sites[0].used_by(2, "ann"), windows + 5);
    assert_eq!(sites[1].used_by(2, "ann"), own_windows + 5);
    assert_eq!(sites[1].used_by(0, "ann"), 5);
    assert_eq!(status(&replicators[0], "us").rewound, 1);
}

#[tokio::test]
async fn replication_goes_on_after_a_redis_is_killed_and_starts_empty() {
    let mut sites = sites(2);
    let replicators = replicate(&sites);
    wait_for_cursors(&mut sites).await;
    let mut units = Units::new();
    charge_all(&mut sites, &mut units, 1);
    assert_converged(&mut sites, &units).await;
    for killed in [0, 1] {
        let other = 1 - killed;
        sites[killed].restart();
        wait_for_cursors(&mut sites).await;
        let name = sites[killed].name;
        soon("the loss is counted", async || status(&replicators[other], name).rewound == 1).await;
        let before = [0, 1].map(|index| sites[index].used_by(0, "ann"));
        sites[0].charge(0, "ann", 3);
        sites[1].charge(0, "ann", 4);
        wait_until_read(&mut sites).await;
        assert_eq!([0, 1].map(|index| sites[index].used_by(0, "ann")), before.map(|used| used + 7));
    }
}

/// Charges both regions until one does not answer. Returns the charges, and those that may have been made.
fn charge_until_killed(mut connections: Vec<Connection>) -> (u64, u64) {
    let mut charged = 0;
    for gate in (0..5).cycle() {
        for connection in &mut connections {
            match site::try_take(connection, gate, "ann", 1, 1) {
                Ok(taken) => charged += taken.k,
                Err(_) => return (charged, 1),
            }
        }
    }
    unreachable!("the gates have no end")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_charge_counts_once_while_a_redis_that_logs_each_write_is_killed() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |name: &'static str, folder: &tempfile::TempDir| {
        let folder = folder.path().to_str().unwrap();
        let options = ["--dir", folder, "--appendonly", "yes", "--appendfsync", "always"];
        Site::of(name, Server::process(&options).unwrap())
    };
    let mut sites = vec![start("eu", &folders[0]), start("us", &folders[1])];
    let replicators = replicate(&sites);
    wait_for_cursors(&mut sites).await;
    let (mut charged, mut unknown) = (0, 0);
    let kills = sequences() / 25;
    for kill in 0..kills {
        let connections = sites.iter().map(|site| connect(site.server.url())).collect();
        let charging = tokio::task::spawn_blocking(move || charge_until_killed(connections));
        tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..100))).await;
        let killed = &mut sites[kill as usize % 2];
        killed.server.kill();
        let (answered, unanswered) = charging.await.unwrap();
        killed.restart();
        (charged, unknown) = (charged + answered, unknown + unanswered);
    }
    wait_until_read(&mut sites).await;
    let used =
        sites.iter_mut().map(|site| (0..5).map(|gate| site.used_by(gate, "ann")).collect::<Vec<u64>>());
    let used: Vec<Vec<u64>> = used.collect();
    assert_eq!(used[0], used[1]);
    let total: u64 = used[0].iter().sum();
    assert!((charged..=charged + unknown).contains(&total), "{total} of {charged} and perhaps {unknown}");
    for (replicator, peer) in replicators.iter().zip(["us", "eu"]) {
        let status = status(replicator, peer);
        assert_eq!((status.gaps, status.rewound, status.failed), (0, 0, 0), "{status:?}");
    }
    eprintln!("{kills} kills, {charged} charges, {unknown} without a reply");
}

#[tokio::test]
async fn failover_that_loses_the_end_of_a_stream_is_rewound_once() {
    let mut sites = sites(2);
    let replicators = replicate(&sites);
    wait_for_cursors(&mut sites).await;
    sites[1].charge(0, "ann", 1);
    soon("it arrives", async || sites[0].used_by(0, "ann") == 1).await;
    let dump: Vec<u8> = redis::cmd("DUMP").arg(site::keys().stream).query(&mut sites[1].connection).unwrap();
    sites[1].charge(0, "ann", 2);
    soon("it arrives", async || sites[0].used_by(0, "ann") == 3).await;
    let mut restore = redis::cmd("RESTORE");
    restore.arg(site::keys().stream).arg(0).arg(dump).arg("REPLACE");
    restore.exec(&mut sites[1].connection).unwrap();
    soon("the loss is counted", async || status(&replicators[0], "us").rewound == 1).await;
    sites[1].charge(0, "ann", 4);
    soon("the next charge arrives", async || sites[0].used_by(0, "ann") == 7).await;
    let heard = status(&replicators[0], "us").heard_us.unwrap();
    soon("it was looked at again", async || {
        status(&replicators[0], "us").heard_us.unwrap() > heard + 1_500_000
    })
    .await;
    let state = status(&replicators[0], "us");
    assert_eq!((state.rewound, state.gaps), (1, 0), "{state:?}");
    assert_eq!(sites[0].used_by(0, "ann"), 7);
}
