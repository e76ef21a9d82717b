//! A primary that is gone.

use std::time::{Duration, Instant};

use harness::{Cluster, Server};
use tidegate::{Builder, Gate, OnFailure, Quota, Source};

use super::{MINUTE, builder, owner};
use crate::support::fixture::{PATIENCE, soon};

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

/// Its connections stay open, and it never says `MOVED`.
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
    // Where nothing is wrong, no answer is to be missed because the machine is busy.
    let patient = || gate.ask(hit).deadline(PATIENCE).check();
    for _ in 0..LIMIT / 2 {
        admitted += u64::from(patient().await.unwrap().is_allowed());
    }
    let victim = owner(&cluster, &gate.redis_key(hit).unwrap()).url().to_owned();
    let is_elsewhere = |key: &String| owner(&cluster, &gate.redis_key(key).unwrap()).url() != victim;
    let elsewhere = (0..).map(|n| format!("user:{n}")).find(is_elsewhere).unwrap();
    assert!(gate.check(&elsewhere).await.unwrap().is_allowed());

    begin(&mut cluster, &victim);
    let (begun, promoted) = (Instant::now(), promoted(&cluster, &victim));
    let (mut unanswered, mut answered_elsewhere, mut longest) = (0, 0, Duration::ZERO);
    let decided = loop {
        let asked = Instant::now();
        let decision = gate.check(hit).await.unwrap();
        longest = longest.max(asked.elapsed());
        if decision.source() == Source::Redis {
            admitted += u64::from(decision.is_allowed());
            break Instant::now();
        }
        unanswered += 1;
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
        let decision = patient().await.unwrap();
        admitted += u64::from(decision.is_allowed() && decision.source() == Source::Redis);
    }
    // What nobody was told of may have been charged.
    let least = LIMIT.saturating_sub(unanswered);
    assert!((least..=2 * LIMIT).contains(&admitted), "{admitted} admitted, {unanswered} unanswered");
    answered_elsewhere
}

/// Keys of all places: those of this node, and the others.
fn keys(node: &Server, gate: &Gate) -> (Vec<String>, Vec<String>) {
    let mut node = redis::Client::open(node.url()).unwrap().get_connection().unwrap();
    (0..300).map(|n| format!("user:{n}")).partition(|key| {
        let asked = redis::cmd("EXISTS").arg(gate.redis_key(key).unwrap()).query::<u8>(&mut node);
        asked.is_ok()
    })
}

fn clients(node: &Server) -> usize {
    let list = node.cli(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    list.lines().filter(|client| !client.contains("cmd=client")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_primary_stands_still_the_others_decide_without_a_gap_and_it_is_forgotten() {
    let cluster = Cluster::start().unwrap();
    for node in cluster.nodes() {
        // Else the others refuse everything until a replica is promoted.
        assert_eq!(node.cli(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]).unwrap(), "OK");
    }
    let deadline = Duration::from_millis(250);
    let limiter = builder(&cluster).deadline(deadline).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000_000, 60 * MINUTE));
    let victim = cluster.nodes().next().unwrap();
    let (its, others) = keys(victim, &gate);
    assert!(its.len() > 50 && others.len() > 100, "{} and {} keys", its.len(), others.len());
    for key in its.iter().chain(&others) {
        assert!(gate.ask(key).deadline(PATIENCE).check().await.unwrap().is_allowed());
    }

    let paused = victim.pause().unwrap();
    let (begun, promoted) = (Instant::now(), promoted(&cluster, victim.url()));
    let asking = {
        let gate = gate.clone();
        tokio::spawn(async move {
            let (mut asked, mut longest) = (0, Duration::ZERO);
            while begun.elapsed() < Duration::from_secs(4) {
                for key in &others {
                    let start = Instant::now();
                    let decision = gate.check(key).await.unwrap();
                    assert_eq!(decision.source(), Source::Redis);
                    longest = longest.max(start.elapsed());
                    asked += 1;
                }
            }
            (asked, longest)
        })
    };
    let mut failed = 0;
    let all_of_it_is_decided = async {
        while !gate.check_many(&its).await.iter().all(Result::is_ok) {
            failed += 1;
            assert!(begun.elapsed() < PATIENCE, "never decided again");
        }
        Instant::now()
    };
    let (decided, promoted) = tokio::join!(all_of_it_is_decided, promoted);
    let late = decided.saturating_duration_since(promoted);
    let (asked, longest) = asking.await.unwrap();
    eprintln!(
        "promoted after {:?}, all decided {late:?} later after {failed} in vain; {asked} asks elsewhere, the longest {longest:?}",
        promoted - begun
    );
    assert!(failed > 0, "nothing was wrong");
    assert!(late < Duration::from_secs(2), "{late:?} after the promotion");
    assert!(longest < deadline + Duration::from_millis(20), "{longest:?}");

    drop(paused);
    soon("its connections have ended", async || clients(victim) == 0).await;
    for _ in 0..10 {
        assert!(gate.check_many(&its).await.iter().all(Result::is_ok));
        assert_eq!(clients(victim), 0, "it was connected to");
    }
}

/// How often a node has said so.
fn moved(node: &Server) -> u64 {
    let stats = node.cli(&["INFO", "errorstats"]).unwrap();
    let count = stats.lines().find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_are_not_overrun_by_those_who_look_for_a_lost_place() {
    let cluster = Cluster::start().unwrap();
    let deadline = Duration::from_millis(50);
    let limiter = builder(&cluster).deadline(deadline).batching(false).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(1_000_000, 60 * MINUTE));
    let victim = cluster.nodes().next().unwrap();
    let (its, others) = keys(victim, &gate);
    for key in its.iter().chain(&others) {
        assert!(gate.ask(key).deadline(PATIENCE).check().await.unwrap().is_allowed());
    }
    let count = || cluster.nodes().filter(|node| node.url() != victim.url()).map(moved).sum::<u64>();
    let before = count();
    let _paused = victim.pause().unwrap();
    let begun = Instant::now();
    // Before it is taken for gone.
    let callers = (0..500).map(|_| {
        let (gate, key) = (gate.clone(), its[0].clone());
        tokio::spawn(async move {
            let mut failed = 0;
            while begun.elapsed() < Duration::from_millis(500) {
                failed += u64::from(gate.check(&key).await.is_err());
            }
            failed
        })
    });
    let mut failed = 0;
    for caller in callers.collect::<Vec<_>>() {
        failed += caller.await.unwrap();
    }
    let looked = count() - before;
    eprintln!("{failed} asks failed, {looked} times it was looked for another node");
    assert!(failed > 1_000, "{failed} asks failed");
    // Every 10 ms at most.
    assert!((1..=60).contains(&looked), "{looked}");
}
