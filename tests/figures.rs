//! The figures of the fleet: what instances publish, what a reader gets, and that neither changes a decision.

use std::time::Duration;

use tidegate::admin::{FigureBucket, FleetFigures, GateFigures, Inspector};
use tidegate::{Ban, Builder, Lease, Limiter, ManualClock, OnFailure, Quota, Rate, Source, Switch};
use tidegate_testkit::{Pool, Pooled, Server};

use crate::support::acl::{self, PASSWORD, USER};
use crate::support::fixture::{HOUR, builder_as_is, calls, soon};
use crate::support::world::START;

mod outages;
mod script;
mod servers;

const TEN: Quota = Quota::fixed_window(10, HOUR);

static SERVERS: Pool<Server> = Pool::new(4);

/// A server with a stopped clock, whose user has only the documented permissions.
struct Fleet(Pooled<Server>);

impl Fleet {
    fn new() -> Self {
        let start = || {
            let server = Server::with_shiftable_clock()?;
            acl::create_user(&server);
            Ok(server)
        };
        let server = SERVERS.get(start).unwrap();
        server.flush().unwrap();
        let fleet = Self(server);
        fleet.set(Duration::ZERO);
        fleet
    }

    fn set(&self, since_start: Duration) {
        self.0.freeze_clock(u64::try_from((START + since_start).as_micros()).unwrap());
    }

    fn builder(&self) -> Builder {
        builder_as_is(self.0.url()).namespace("tidegate").credentials(USER, PASSWORD).publish_figures(true)
    }

    fn limiter(&self) -> Limiter {
        self.builder().build().unwrap()
    }

    async fn figures(&self, span: Duration) -> FleetFigures {
        Inspector::new(&self.limiter()).unwrap().figures(span).await.unwrap()
    }

    /// Returns the names of the keys in which figures are.
    fn keys(&self) -> Vec<String> {
        let keys = self.0.cli(&["KEYS", "tidegate:1:*/*"]).unwrap();
        let mut keys: Vec<_> =
            keys.lines().filter_map(|line| Some(line.split('"').nth(1)?.to_owned())).collect();
        keys.sort();
        keys
    }
}

fn gate<'f>(bucket: &'f FigureBucket, name: &str) -> &'f GateFigures {
    bucket.gates.iter().find(|gate| gate.gate == name).unwrap()
}

fn sources(gate: &GateFigures) -> Vec<(&str, u64)> {
    gate.by_source.iter().map(|(source, count)| (&**source, *count)).collect()
}

#[tokio::test]
async fn shutdown_publishes_the_decisions_of_each_gate_by_outcome_and_source() {
    let fleet = Fleet::new();
    let limiter = fleet.limiter();
    let login = limiter.gate("login", TEN);
    for _ in 0..12 {
        let _ = login.check("user:42").await.unwrap();
    }
    let _ = login.peek("user:42").await.unwrap();
    let watched = limiter.gate("watched", Quota::fixed_window(1, HOUR)).shadow(true);
    for _ in 0..3 {
        assert!(watched.check("user:42").await.unwrap().is_allowed());
    }
    limiter.shutdown().await;

    let found = fleet.figures(Duration::from_secs(60)).await;
    let [bucket] = found.buckets.as_slice() else { panic!("{found:?}") };
    assert_eq!((found.bucket, bucket.start_unix_s), (Duration::from_secs(5), START.as_secs()));
    let login = gate(bucket, "login");
    // 9 used of 10 leave less than 20 %, and so do 10.
    assert_eq!((login.allowed, login.near_limit, login.denied), (10, 2, 2));
    assert_eq!((login.shadow_denied, login.errors), (0, 0));
    let sum: u64 = sources(login).iter().map(|(_, count)| count).sum();
    assert_eq!(sum, 12, "{login:?}");
    assert!(sources(login).contains(&("deny_cache", 1)), "the second denial is cached: {login:?}");
    let watched = gate(bucket, "watched");
    assert_eq!((watched.allowed, watched.shadow_denied, watched.denied), (1, 2, 0));
    assert_eq!(bucket.gates.len(), 2);
    // Each check that no cache decided waited for Redis.
    assert!(bucket.latency_us.count >= 13, "{bucket:?}");
    assert!(bucket.latency_us.p50_us <= bucket.latency_us.p99_us, "{bucket:?}");
    assert_eq!(found.instances, [], "it was shut down");
}

#[tokio::test]
async fn two_instances_sum_and_buckets_are_of_the_servers_time() {
    let fleet = Fleet::new();
    for (at_s, checks) in [(0, 2), (4, 3), (5, 1), (12, 4)] {
        fleet.set(Duration::from_secs(at_s));
        let limiter = fleet.limiter();
        for _ in 0..checks {
            let _ = limiter.gate("login", TEN).check("user:42").await.unwrap();
        }
        limiter.shutdown().await;
    }
    let found = fleet.figures(HOUR).await;
    let decided =
        |bucket: &FigureBucket| (bucket.start_unix_s - START.as_secs(), gate(bucket, "login").allowed);
    assert_eq!(found.buckets.iter().map(decided).collect::<Vec<_>>(), [(0, 5), (5, 1), (10, 4)]);
    let newest = fleet.figures(Duration::from_secs(10)).await;
    assert_eq!(newest.buckets.iter().map(decided).collect::<Vec<_>>(), [(5, 1), (10, 4)]);
    assert_eq!(newest.buckets.last(), found.buckets.last());
}

#[tokio::test]
async fn heartbeats_publish_figures_and_a_record_of_the_instance() {
    let fleet = Fleet::new();
    let limiters = [fleet.limiter(), fleet.builder().instances(2).build().unwrap()];
    for limiter in &limiters {
        let _ = limiter.gate("login", TEN).check("user:42").await.unwrap();
    }
    soon("both instances have published", async || {
        let found = fleet.figures(HOUR).await;
        // A heartbeat between the check and its count publishes no gate.
        let gates = found.buckets.iter().flat_map(|bucket| &bucket.gates);
        let allowed: u64 = gates.filter(|gate| gate.gate == "login").map(|gate| gate.allowed).sum();
        allowed == 2 && found.instances.len() == 2
    })
    .await;
    fleet.set(Duration::from_secs(14));
    let found = fleet.figures(HOUR).await;
    for instance in &found.instances {
        assert!(instance.age <= Duration::from_secs(14), "{instance:?}");
        assert_eq!(instance.version, env!("CARGO_PKG_VERSION"));
        assert_eq!((instance.breaker_open, instance.store_errors), (false, 0));
        assert_eq!(instance.id.len(), 32);
    }
    assert_ne!(found.instances[0].id, found.instances[1].id);
    // One that ends without a notice is listed for at most two times of its record.
    drop(limiters);
    fleet.set(Duration::from_secs(31));
    soon("the records have expired", async || fleet.figures(HOUR).await.instances.is_empty()).await;
}

#[tokio::test]
async fn figures_expire_an_hour_after_their_bucket_and_records_sooner() {
    let fleet = Fleet::new();
    fleet.set(Duration::from_secs(7));
    let limiter = fleet.limiter();
    let _ = limiter.gate("login", TEN).check("user:42").await.unwrap();
    limiter.shutdown().await;
    let expiry = |key: &str| fleet.0.cli(&["PEXPIRETIME", key]).unwrap();
    let keys = fleet.keys();
    assert_eq!(keys, ["tidegate:1:figures/1577836805", "tidegate:1:instances/1577836800"]);
    let ms = |since_start: u64| format!("(integer) {}", (START.as_secs() + since_start) * 1_000);
    assert_eq!(expiry(&keys[0]), ms(10 + 3_600));
    assert_eq!(expiry(&keys[1]), ms(7 + 30));
    // Redis keeps a key until the end of the millisecond of its expiry.
    fleet.set(Duration::from_secs(10 + 3_601));
    soon("both keys have expired", async || fleet.keys().is_empty()).await;
}

#[tokio::test]
async fn instance_that_does_not_publish_writes_nothing() {
    let fleet = Fleet::new();
    let silent = fleet.builder().publish_figures(false).build().unwrap();
    let gate = silent.gate("login", TEN);
    let _ = gate.check("user:42").await.unwrap();
    soon("it has sent heartbeats", async || {
        fleet.0.cli(&["EXISTS", "tidegate:1:instances"]).unwrap() == "(integer) 1"
    })
    .await;
    silent.shutdown().await;
    assert_eq!(fleet.keys(), Vec::<String>::new());
    // Without heartbeats, no job runs at all.
    let silent = fleet.builder().publish_figures(false).instances(3).build().unwrap();
    let _ = silent.gate("login", TEN).check("user:42").await.unwrap();
    silent.shutdown().await;
    assert_eq!(fleet.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn unused_limiter_publishes_nothing_when_it_is_shut_down() {
    let fleet = Fleet::new();
    let before = calls(&fleet.0, "evalsha");
    let limiter = fleet.limiter();
    let _gate = limiter.gate("login", TEN);
    limiter.shutdown().await;
    assert_eq!(calls(&fleet.0, "evalsha"), before);
}

/// Returns the decisions of a gate by a source.
fn count(found: &FleetFigures, name: &str, source: &str) -> u64 {
    let gates = found.buckets.iter().flat_map(|bucket| &bucket.gates).filter(|gate| gate.gate == name);
    gates.flat_map(sources).filter(|(other, _)| *other == source).map(|(_, count)| count).sum()
}

#[tokio::test]
async fn leased_switched_and_grouped_decisions_are_counted() {
    let fleet = Fleet::new();
    let limiter = fleet.limiter();
    let leased = limiter.gate("leased", Quota::token_bucket(1_000_000, Rate::per_second(1_000_000)));
    let leased = leased.leased(Lease::new());
    soon("a lease decides", async || {
        let _ = leased.check("user:42").await.unwrap();
        leased.try_check("user:42").is_some()
    })
    .await;
    let (one, two) = (limiter.gate("one", TEN), limiter.gate("two", Quota::fixed_window(1, HOUR)));
    for _ in 0..2 {
        let _ = limiter.check_all([one.key("x"), two.key("x")]).await.unwrap();
    }
    limiter.control().switch("one", Switch::Closed, None).await.unwrap();
    soon("the gate is closed", async || !one.check("x").await.unwrap().is_allowed()).await;
    limiter.shutdown().await;
    let found = fleet.figures(HOUR).await;
    let sum = |name: &str, source: &str| count(&found, name, source);
    assert!(sum("leased", "lease") >= 1 && sum("leased", "redis") >= 1, "{found:?}");
    assert!(sum("one", "switch") >= 1, "{found:?}");
    // Of a denied group, only the gates that denied are counted.
    assert_eq!(sum("two", "redis"), 2, "{found:?}");
}

#[tokio::test]
async fn switch_that_admits_is_not_counted_in_a_group_that_another_gate_denies() {
    let fleet = Fleet::new();
    let limiter = fleet.limiter();
    let (open, one) = (limiter.gate("open", TEN), limiter.gate("one", Quota::fixed_window(1, HOUR)));
    limiter.control().switch("open", Switch::Open, None).await.unwrap();
    soon("the gate is open", async || open.peek("x").await.unwrap().source() == Source::Switch).await;
    let allowed = limiter.check_all([open.key("x"), one.key("x")]).await.unwrap();
    let denied = limiter.check_all([open.key("x"), one.key("x")]).await.unwrap();
    assert!(allowed.is_allowed() && !denied.is_allowed());
    limiter.shutdown().await;
    assert_eq!(count(&fleet.figures(HOUR).await, "open", "switch"), 1);
}

#[tokio::test]
async fn no_decision_of_many_gates_is_lost() {
    let fleet = Fleet::new();
    let limiter = fleet.limiter();
    for number in 0..140 {
        let _ = limiter.gate(&format!("gate-{number}"), TEN).check("user:42").await.unwrap();
    }
    limiter.shutdown().await;
    let found = fleet.figures(HOUR).await;
    let gates = found.buckets.iter().flat_map(|bucket| &bucket.gates);
    assert_eq!(gates.map(|gate| gate.allowed).sum::<u64>(), 140);
}

#[tokio::test]
async fn in_memory_limiter_keeps_its_figures_for_an_hour_in_this_process() {
    let clock = ManualClock::new();
    let limiter =
        Limiter::builder().in_memory().manual_clock(clock.clone()).publish_figures(true).build().unwrap();
    assert!(Inspector::new(&limiter).unwrap_err().is_config());
    let inspector = Inspector::in_memory(&limiter).unwrap();
    let login = limiter.gate("login", TEN);
    for _ in 0..11 {
        let _ = login.check("user:42").await.unwrap();
    }
    let found = inspector.figures(HOUR).await.unwrap();
    let [bucket] = &*found.buckets else { panic!("{found:?}") };
    let [gate] = &*bucket.gates else { panic!("{found:?}") };
    assert_eq!((gate.allowed, gate.denied), (10, 1));
    assert_eq!(gate.by_source, [("memory".to_owned(), 11)]);
    assert_eq!((bucket.latency_us.count, found.instances.len()), (0, 1), "no check has waited for Redis");
    clock.advance(HOUR + Duration::from_secs(5));
    assert!(inspector.figures(HOUR).await.unwrap().buckets.is_empty());
    limiter.shutdown().await;
}

#[tokio::test]
async fn keys_in_memory_are_found_with_their_states_and_counted_denials() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().in_memory().manual_clock(clock.clone()).build().unwrap();
    let inspector = Inspector::in_memory(&limiter).unwrap();
    let ban = Ban::after(5, HOUR).lasting(HOUR);
    let login = limiter.gate("login", TEN).ban(ban);
    for _ in 0..12 {
        let _ = login.check("user:42").await.unwrap();
    }
    let _ = login.check("user:43").await.unwrap();
    let exports = limiter.gate("exports", Quota::in_flight(2));
    let permit = exports.acquire("user:42").await.unwrap();
    let states = inspector.find_key(None, &["user:42".to_owned()]).await.unwrap();
    let used = states.found.iter().map(|found| (&*found.name.gate, found.usage.as_ref().unwrap().used));
    assert_eq!(used.collect::<Vec<_>>(), [("exports", 1.0), ("login", 10.0)]);
    let [counted] = &*states.with_denials else { panic!("{states:?}") };
    assert_eq!(inspector.denials(counted).await.unwrap().unwrap().count, 2);
    assert!(inspector.figures(HOUR).await.unwrap_err().is_config(), "it keeps no figures");
    assert!(inspector.redis_load().await.unwrap_err().is_config());
    drop(permit);
    clock.advance(HOUR * 2);
    let states = inspector.find_key(None, &["user:42".to_owned()]).await.unwrap();
    assert!(states.found.iter().all(|found| found.name.gate != "login") && states.with_denials.is_empty());
}

#[tokio::test]
async fn errors_are_counted_and_the_failure_policy_decides() {
    let fleet = Fleet::new();
    let limiter = fleet.builder().on_failure(OnFailure::Closed).build().unwrap();
    let login = limiter.gate("login", TEN);
    fleet.0.cli(&["SET", &login.redis_key("bad").unwrap(), "garbage"]).unwrap();
    for _ in 0..2 {
        assert!(login.check("bad").await.unwrap_err().is_corrupt_state());
    }
    let _ = login.check("good").await.unwrap();
    limiter.shutdown().await;
    let found = fleet.figures(HOUR).await;
    let errors: u64 = found.buckets.iter().flat_map(|bucket| &bucket.gates).map(|gate| gate.errors).sum();
    assert_eq!(errors, 2, "{found:?}");
}

#[tokio::test]
async fn span_longer_than_an_hour_reads_an_hour() {
    let fleet = Fleet::new();
    let limiter = fleet.limiter();
    let _ = limiter.gate("login", TEN).check("user:42").await.unwrap();
    limiter.shutdown().await;
    assert_eq!(fleet.figures(Duration::MAX).await.buckets.len(), 1);
    assert_eq!(fleet.figures(Duration::ZERO).await.buckets.len(), 1);
}
