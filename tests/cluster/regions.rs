//! Regions whose Redis are clusters: all that they replicate is in one slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::regions::{Mode, Replication};
use tidegate::{Gate, Limiter, Quota, Rate};
use tidegate_testkit::Cluster;
use tokio::task::JoinSet;

use super::resharding::reshard;
use super::{builder, number};
use crate::support::fixture::{PATIENCE, namespace, soon};

const LIMIT: u64 = 1_000_000;
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

fn gates(limiter: &Limiter) -> [Gate; 3] {
    let replicated = |name, quota| limiter.gate(name, quota).replicated(Mode::gossip());
    [
        replicated("bucket", Quota::token_bucket(LIMIT, Rate::new(LIMIT, 8 * YEAR))),
        replicated("window", Quota::fixed_window(LIMIT, YEAR).aligned_to_clock()),
        replicated("log", Quota::sliding_log(100_000, YEAR)),
    ]
}

async fn used(gate: &Gate) -> u64 {
    let peek = gate.peek("ann").await.unwrap();
    peek.limit() - peek.remaining()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_count_once_in_each_region_while_their_slot_moves() {
    let mut clusters = [Cluster::start().unwrap(), Cluster::start().unwrap()];
    let new = clusters[0].add_node().unwrap();
    clusters.iter().for_each(|cluster| cluster.prevent_failover().unwrap());
    let namespace = namespace();
    let limiters = [0, 1].map(|at| {
        let (names, peer) = (["eu", "us"], 1 - at);
        // This node does not serve the slot: it names the one that does.
        let url = &clusters[peer].urls()[2];
        let builder = builder(&clusters[at]).namespace(&namespace).region(names[at]).peer(names[peer], url);
        let patient = Replication::default().cut_off_after(PATIENCE);
        builder.replication(patient).build().unwrap()
    });
    let replicated = [gates(&limiters[0]), gates(&limiters[1])];
    // What a region charges before that is not known to the other.
    soon("the regions have heard of each other", async || {
        let statuses = || limiters.iter().filter_map(Limiter::regions);
        statuses().all(|status| status.peers.iter().all(|peer| !peer.is_cut_off))
    })
    .await;
    let charged: Arc<[AtomicU64; 3]> = Arc::default();
    let (is_over, split) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for gates in replicated.clone() {
        let (charged, is_over, split) = (charged.clone(), is_over.clone(), split.clone());
        tasks.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                for (gate, charged) in gates.iter().zip(&*charged) {
                    match gate.check("ann").await {
                        Ok(decision) if decision.is_allowed() => {
                            charged.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(denied) => panic!("{denied:?}"),
                        // While the slot moves, a node may have only some of the keys.
                        Err(error) => {
                            let is_apart = error.is_unavailable() && error.to_string().contains("TRYAGAIN");
                            assert!(is_apart, "{error}");
                            split.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
        });
    }
    for (gate, peer) in replicated[0].iter().zip(&replicated[1]) {
        soon("both regions charge", async || used(gate).await > 20 && used(peer).await > 20).await;
    }
    let clusters = tokio::task::spawn_blocking(move || {
        reshard(&clusters[0], new);
        clusters
    });
    let clusters = clusters.await.unwrap();
    let stream = format!("{namespace}:1:{{cr}}:regions:log");
    assert_eq!(number(&clusters[0].nodes().nth(new).unwrap().cli(&["EXISTS", &stream]).unwrap()), 1);
    is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    for (index, charged) in charged.iter().enumerate() {
        let charged = charged.load(Ordering::Relaxed);
        for gates in &replicated {
            soon("all charges have arrived", async || used(&gates[index]).await >= charged).await;
            assert_eq!(used(&gates[index]).await, charged, "{:?}", gates[index]);
        }
    }
    eprintln!("{charged:?} charges, {split:?} checks rejected");
}
