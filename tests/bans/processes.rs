//! Processes that share the count of denials.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use serde_json::json;
use tidegate::{Ban, Builder, Event, Gate, Observer, Quota};
use tidegate_testkit::Server;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::fixture::{HOUR, builder, calls, namespace};
use crate::support::instance::Instance;

const PROCESSES: u64 = 8;
const DENIALS_EACH: u64 = 5;
pub(super) const BAN: Ban = Ban::after(PROCESSES * DENIALS_EACH, HOUR).lasting(Duration::from_secs(7_200));
const JOB: &str = "TIDEGATE_TEST_BANS";

/// Counts the bans that a limiter reports.
#[derive(Default)]
pub(super) struct Bans(AtomicU64);

impl Observer for Bans {
    fn on(&self, event: &Event<'_>) {
        if let Event::Banned { gate, key, lasts } = *event {
            assert_eq!((gate, lasts), ("login", BAN.lasts()));
            assert!(key.to_string().contains(":login:fixed_window/3600s:"), "{key}");
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Bans {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(super) fn gate(builder: Builder, ban: Ban) -> (Gate, Arc<Bans>) {
    let bans = Arc::new(Bans::default());
    let limiter = builder.observer(bans.clone()).build().unwrap();
    (limiter.gate("login", Quota::fixed_window(1, HOUR)).ban(ban), bans)
}

/// Returns the Redis key of the count of denials.
pub(super) fn count_key(gate: &Gate, key: &str) -> String {
    gate.redis_key(key).unwrap().replace(":login:", ":login:denials/")
}

#[tokio::test]
async fn concurrent_denials_begin_one_ban() {
    let server = tidegate_testkit::shared();
    for (is_batched, after) in [(true, 1_000), (true, 999), (true, 1), (false, 1_000)] {
        let builder = builder(server.url()).batching(is_batched);
        let (gate, bans) = gate(builder, Ban::after(after, BAN.within()).lasting(BAN.lasts()));
        assert!(gate.check("x").await.unwrap().is_allowed());
        let checks: Vec<_> = (0..1_000)
            .map(|_| {
                let gate = gate.clone();
                tokio::spawn(async move { gate.check("x").await.unwrap() })
            })
            .collect();
        for check in checks {
            assert!(!check.await.unwrap().is_allowed());
        }
        assert_eq!(bans.count(), 1, "after {after} denials");
        assert!(gate.check("x").await.unwrap().retry_after() > HOUR);
        assert_eq!(server.cli(&["EXISTS", &count_key(&gate, "x")]).unwrap(), "(integer) 0");
    }
}

#[tokio::test]
async fn processes_share_the_count() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let (gate, _) = gate(builder(server.url()).namespace(&namespace), BAN);
    assert!(gate.check("x").await.unwrap().is_allowed());
    let spawn = || Instance::spawn("bans::processes::instance", JOB, &[server.url(), &namespace]);
    let mut fleet: Vec<Instance> = (0..PROCESSES).map(|_| spawn()).collect();
    for instance in &mut fleet {
        assert_eq!(instance.says().await, json!({"ready": true}));
    }
    for instance in &mut fleet {
        instance.start().await;
    }
    let mut bans = 0;
    for instance in &mut fleet {
        bans += instance.says().await["bans"].as_u64().unwrap();
    }
    assert_eq!(bans, 1);
    assert!(gate.peek("x").await.unwrap().retry_after() > HOUR);
}

#[tokio::test]
#[ignore = "one process of processes_share_the_count"]
#[expect(clippy::print_stdout, reason = "an instance reports on its standard output")]
async fn instance() {
    let settings = std::env::var(JOB).unwrap();
    let (url, namespace) = settings.split_once(' ').unwrap();
    let (gate, bans) = gate(builder(url).namespace(namespace), BAN);
    // The first call connects.
    let _ = gate.peek("x").await.unwrap();
    println!("{}", json!({"ready": true}));
    BufReader::new(tokio::io::stdin()).lines().next_line().await.unwrap();
    for _ in 0..DENIALS_EACH {
        assert!(!gate.check("x").await.unwrap().is_allowed());
    }
    println!("{}", json!({"bans": bans.count()}));
}

#[tokio::test]
async fn dropped_check_is_counted_exactly_if_it_was_sent() {
    let server = Server::process(&[]).unwrap();
    for is_batched in [true, false] {
        let builder = builder(server.url()).batching(is_batched).publish_figures(false);
        let (gate, _) = gate(builder, BAN);
        assert!(gate.check("x").await.unwrap().is_allowed());
        let before = calls(&server, "evalsha");
        for _ in 0..10 {
            let mut check = pin!(gate.check("x"));
            // Mostly sent and not answered yet.
            let _ = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        // Redis answers the calls of a connection in their order.
        assert!(!gate.check("x").await.unwrap().is_allowed());
        let sent = calls(&server, "evalsha") - before;
        assert!((1..=11).contains(&sent), "{sent} calls");
        assert_eq!(server.cli(&["GET", &count_key(&gate, "x")]).unwrap(), format!("\"{sent}\""));
    }
}

#[tokio::test]
async fn count_is_a_readable_number_of_few_bytes_that_expires() {
    let server = tidegate_testkit::shared();
    let (gate, _) = gate(builder(server.url()), BAN);
    assert!(gate.check("user:42").await.unwrap().is_allowed());
    let key = count_key(&gate, "user:42");
    assert_eq!(server.cli(&["EXISTS", &key]).unwrap(), "(integer) 0", "an admitted check stores no count");
    for count in 1..=3 {
        assert!(!gate.check("user:42").await.unwrap().is_allowed());
        assert_eq!(server.cli(&["GET", &key]).unwrap(), format!("\"{count}\""));
    }
    let integer = |command: &[&str]| -> u64 {
        server.cli(command).unwrap().trim_start_matches("(integer) ").parse().unwrap()
    };
    let ttl_ms = integer(&["PTTL", &key]);
    assert!((3_590_000..=3_600_001).contains(&ttl_ms), "{ttl_ms} ms");
    let bytes = integer(&["MEMORY", "USAGE", &key]);
    eprintln!("{bytes} bytes for a key of {}", key.len());
    assert!(bytes <= 200, "{bytes} bytes");
}
