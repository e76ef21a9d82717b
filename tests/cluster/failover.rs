//! A primary that is gone.

use std::time::{Duration, Instant};

use harness::Cluster;
use tidegate::{Builder, OnFailure, Quota, Source};

use super::{MINUTE, builder, owner};
use crate::support::fixture::PATIENCE;

const LIMIT: u64 = 50;

fn settings(builder: Builder) -> Builder {
    builder.deadline(Duration::from_millis(100)).on_failure(OnFailure::Closed).deny_cache(Duration::ZERO)
}

/// When there are three primaries again, without the victim.
fn promoted(cluster: &Cluster, victim: &str) -> impl Future<Output = Instant> + use<> {
    let urls: Vec<String> = cluster.urls().into_iter().filter(|url| url != victim).collect();
    let watch = move || {
        let start = Instant::now();
        let client = |url: &String| redis::Client::open(url.as_str()).unwrap().get_connection().unwrap();
        let mut nodes: Vec<redis::Connection> = urls.iter().map(client).collect();
        loop {
            let is_primary = |node: &mut redis::Connection| {
                let role: Vec<redis::Value> = redis::cmd("ROLE").query(node).unwrap();
                role[0] == redis::Value::BulkString(b"master".to_vec())
            };
            if nodes.iter_mut().filter_map(|node| is_primary(node).then_some(())).count() == 3 {
                return Instant::now();
            }
            assert!(start.elapsed() < PATIENCE, "no replica was promoted");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let watching = tokio::task::spawn_blocking(watch);
    async { watching.await.unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_primary_costs_at_most_one_more_limit_and_two_seconds_after_the_promotion() {
    let elsewhere = outage(Cluster::kill).await;
    assert!(elsewhere > 0, "the other primaries were not asked");
}

/// Its connections stay open, and nothing says `MOVED`. The other primaries are not
/// reached either while redis-rs waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_falls_silent_costs_no_more() {
    outage(|cluster, victim| {
        let node = cluster.nodes().find(|node| node.url() == victim).unwrap();
        let info = node.cli(&["INFO", "server"]).unwrap();
        let process = info.lines().find_map(|line| line.trim().strip_prefix("process_id:")).unwrap();
        let stopped = std::process::Command::new("kill").args(["-STOP", process]).status().unwrap();
        assert!(stopped.success());
    })
    .await;
}

/// How many decisions came from the other primaries meanwhile.
async fn outage(begin: impl FnOnce(&mut Cluster, &str)) -> usize {
    let mut cluster = Cluster::start().unwrap();
    let limiter = settings(builder(&cluster)).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(LIMIT, 60 * MINUTE));
    let (mut admitted, hit) = (0, "user:42");
    for _ in 0..LIMIT / 2 {
        admitted += u64::from(gate.check(hit).await.unwrap().is_allowed());
    }
    let victim = owner(&cluster, &gate.redis_key(hit).unwrap()).url().to_owned();
    let is_elsewhere = |key: &String| owner(&cluster, &gate.redis_key(key).unwrap()).url() != victim;
    let elsewhere = (0..).map(|n| format!("user:{n}")).find(is_elsewhere).unwrap();
    assert!(gate.check(&elsewhere).await.unwrap().is_allowed());

    begin(&mut cluster, &victim);
    let (begun, promoted) = (Instant::now(), promoted(&cluster, &victim));
    let (mut answered_elsewhere, mut longest) = (0, Duration::ZERO);
    let decided = loop {
        let asked = Instant::now();
        let decision = gate.check(hit).await.unwrap();
        longest = longest.max(asked.elapsed());
        if decision.source() == Source::Redis {
            admitted += u64::from(decision.is_allowed());
            break Instant::now();
        }
        let other = gate.ask(&elsewhere).cost(0).check().await.unwrap();
        answered_elsewhere += usize::from(other.source() == Source::Redis);
        assert!(begun.elapsed() < PATIENCE, "never decided by Redis again");
    };
    let promoted = promoted.await;
    let late = decided.saturating_duration_since(promoted);
    eprintln!(
        "promoted after {:?}, decided {late:?} later; {answered_elsewhere} decisions elsewhere meanwhile; the longest {longest:?}",
        promoted - begun
    );
    assert!(late < Duration::from_secs(2), "{late:?} after the promotion");
    assert!(longest < Duration::from_millis(350), "{longest:?}");
    for _ in 0..3 * LIMIT {
        let decision = gate.check(hit).await.unwrap();
        admitted += u64::from(decision.is_allowed() && decision.source() == Source::Redis);
    }
    assert!((LIMIT..=2 * LIMIT).contains(&admitted), "{admitted} admitted");
    answered_elsewhere
}
