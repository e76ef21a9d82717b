//! Replicators as processes that are killed at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::Rng;
use serde_json::json;
use tidegate::regions::replicator::Replicator;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::site::{self, Site, Units, add, assert_converged, settings_of, sites};
use super::wait_for_cursors;
use crate::support::instance::Instance;
use crate::support::plan::sequences;

/// The variable that gives a process the index of its region, and the URLs of all.
const JOB: &str = "TIDEGATE_TEST_REPLICATOR";
const PROCESS: &str = "regions::replicator::kills::process";
const PER_REGION: usize = 2;

async fn spawn(urls: &[String], region: usize) -> Instance {
    let region = region.to_string();
    let settings: Vec<&str> = std::iter::once(&*region).chain(urls.iter().map(String::as_str)).collect();
    let mut process = Instance::spawn(PROCESS, JOB, &settings);
    assert_eq!(process.says().await, json!({"ready": true}));
    process
}

/// Charges keys of all gates in all regions until it is told to stop. Returns the units.
fn charge(mut sites: Vec<Site>, stop: &AtomicBool) -> (Vec<Site>, Units) {
    let (mut units, mut random) = (Units::new(), rand::rng());
    while !stop.load(Ordering::Relaxed) {
        let site = random.random_range(0..sites.len());
        let gate = random.random_range(0..site::gates().len());
        let subject = ["ann", "bob", "cy", "di"][random.random_range(0..4)];
        let cost = random.random_range(1..=3);
        sites[site].charge(gate, subject, cost);
        add(&mut units, gate, subject, cost);
        std::thread::sleep(Duration::from_micros(random.random_range(0..1_000)));
    }
    (sites, units)
}

async fn kill_replicators_of(regions: usize, kills: u32) {
    let mut sites = sites(regions);
    let urls: Vec<String> = sites.iter().map(|site| site.server.url().to_owned()).collect();
    let mut fleet = Vec::new();
    for index in 0..regions * PER_REGION {
        fleet.push(spawn(&urls, index % regions).await);
    }
    wait_for_cursors(&mut sites).await;
    let stop = Arc::new(AtomicBool::new(false));
    let traffic = {
        let stop = stop.clone();
        tokio::task::spawn_blocking(move || charge(sites, &stop))
    };
    let start = Instant::now();
    for _ in 0..kills {
        let victim = rand::rng().random_range(0..fleet.len());
        // Another one sleeps meanwhile, and wakes up with an old read.
        let sleeper = (victim + 1) % fleet.len();
        fleet[sleeper].signal("-STOP");
        fleet[victim].process.kill().await.unwrap();
        fleet[victim] = spawn(&urls, victim % regions).await;
        let pause = rand::rng().random_range(0..20);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        fleet[sleeper].signal("-CONT");
    }
    stop.store(true, Ordering::Relaxed);
    let (mut sites, units) = traffic.await.unwrap();
    let charged: u64 = units.values().sum();
    eprintln!("{regions} regions: {kills} kills and {charged} units in {:?}", start.elapsed());
    assert_converged(&mut sites, &units).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_charge_counts_once_while_replicators_are_killed() {
    kill_replicators_of(2, sequences() / 10).await;
    kill_replicators_of(3, sequences() / 10).await;
}

/// Not a test: the program that the processes of the test above run.
#[tokio::test]
#[ignore = "run by the other tests"]
async fn process() {
    let Ok(job) = std::env::var(JOB) else { return };
    let words: Vec<&str> = job.split(' ').collect();
    let mut settings = settings_of(&words[1..], words[0].parse().unwrap());
    settings.replication = settings.replication.flush_every(Duration::from_millis(2));
    let _replicator = Replicator::start(settings).unwrap();
    report();
    // Ends with its parent.
    let _ = BufReader::new(tokio::io::stdin()).lines().next_line().await;
}

#[expect(clippy::print_stdout, reason = "a process reports on its standard output")]
fn report() {
    println!("\n{}", json!({"ready": true}));
}
