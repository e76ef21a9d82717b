//! Limiters of several regions: a replicated gate is used as any other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::regions::{Mode, Replication, WhenCutOff};
use tidegate::{Builder, Error, Event, Gate, KeyMode, Lease, Limiter, Observer, Quota, Rate};
use tidegate_testkit::Server;

use crate::support::acl;
use crate::support::fixture::{closed_port, soon};

const GUIDE: &str = include_str!("../../docs/guide/regions.md");
const NAMES: [&str; 3] = ["eu", "us", "ap"];
/// So long that no unit becomes available during a test.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The limiters of regions, and their servers.
struct Fleet {
    limiters: Vec<Limiter>,
    servers: Vec<Server>,
}

impl Fleet {
    /// Starts this many regions, which have heard of each other.
    async fn start(regions: usize) -> Self {
        let servers: Vec<Server> = (0..regions).map(|_| Server::process(&[]).unwrap()).collect();
        let urls: Vec<&str> = servers.iter().map(Server::url).collect();
        let limiters = (0..regions).map(|at| region(&urls, at).build().unwrap()).collect();
        let fleet = Self { limiters, servers };
        soon("all regions have heard of each other", async || {
            let statuses = || fleet.limiters.iter().filter_map(Limiter::regions);
            statuses().all(|status| status.peers.iter().all(|peer| !peer.is_cut_off))
        })
        .await;
        fleet
    }

    fn gates(&self, quota: Quota, mode: Mode) -> Vec<Gate> {
        let gate = |limiter: &Limiter| limiter.gate("search", quota).replicated(mode);
        self.limiters.iter().map(gate).collect()
    }
}

/// Returns the builder of the region at this index.
fn region(urls: &[&str], at: usize) -> Builder {
    let peers = (0..urls.len()).filter(|peer| *peer != at);
    let builder = Limiter::builder().url(urls[at]).region(NAMES[at]);
    // A check may wait for a machine under load.
    let builder = builder.deadline(Duration::from_secs(10)).replication(fast());
    peers.fold(builder, |builder, peer| builder.peer(NAMES[peer], urls[peer]))
}

fn fast() -> Replication {
    Replication::default().flush_every(Duration::from_millis(5)).cut_off_after(Duration::from_secs(10))
}

fn quotas(limit: u64) -> [Quota; 5] {
    [
        Quota::token_bucket(limit, Rate::new(limit, YEAR)),
        Quota::leaky_bucket(limit, Rate::new(limit, YEAR)),
        Quota::fixed_window(limit, YEAR).aligned_to_clock(),
        Quota::sliding_log(limit, YEAR),
        Quota::sliding_counter(limit, YEAR),
    ]
}

async fn remaining(gate: &Gate, key: &str) -> u64 {
    gate.peek(key).await.unwrap().remaining()
}

async fn wait_for_remaining(gates: &[Gate], key: &str, units: u64) {
    for gate in gates {
        let what = format!("all regions know the units: {units} of {key} are left of {gate:?}");
        soon(&what, async || remaining(gate, key).await == units).await;
    }
}

#[tokio::test]
async fn charges_of_each_region_count_in_all_others() {
    let fleet = Fleet::start(3).await;
    for quota in quotas(10) {
        let gates = fleet.gates(quota, Mode::gossip());
        for (gate, cost) in gates.iter().zip([1, 2, 3]) {
            assert!(gate.check_cost("ann", cost).await.unwrap().is_allowed(), "{quota}");
        }
        wait_for_remaining(&gates, "ann", 4).await;
        for gate in &gates {
            assert!(!gate.check_cost("ann", 5).await.unwrap().is_allowed(), "{quota}");
            assert_eq!(remaining(gate, "bob").await, 10, "{quota}");
        }
    }
}

#[tokio::test]
async fn merged_checks_are_charged_once_each() {
    let fleet = Fleet::start(2).await;
    for quota in quotas(50) {
        let gates = fleet.gates(quota, Mode::gossip());
        let decided = futures_util::future::join_all((0..80).map(|_| gates[0].check("ann"))).await;
        let admitted = decided.into_iter().filter(|decision| decision.as_ref().unwrap().is_allowed());
        assert_eq!(admitted.count(), 50, "{quota}");
        wait_for_remaining(&gates, "ann", 0).await;
        let granted = gates[0].key("bob").take_up_to(60).await.unwrap();
        assert_eq!(granted.granted(), 50, "{quota}");
        wait_for_remaining(&gates, "bob", 0).await;
    }
}

#[tokio::test]
async fn surplus_of_a_window_delays_the_next_check_until_it_is_repaid() {
    let fleet = Fleet::start(2).await;
    let day = Duration::from_secs(24 * 3_600);
    let gates = fleet.gates(Quota::fixed_window(10, 365 * day).aligned_to_clock(), Mode::gossip());
    // Each region charges the whole limit before it hears of the other: if it hears first, the next key.
    let mut key = String::new();
    soon("both regions charge a key", async || {
        key.push('a');
        let (first, second) = tokio::join!(gates[0].check_cost(&key, 10), gates[1].check_cost(&key, 10));
        first.unwrap().is_allowed() && second.unwrap().is_allowed()
    })
    .await;
    for gate in &gates {
        soon("the surplus has arrived", async || gate.check(&key).await.unwrap().retry_after() > 365 * day)
            .await;
        // The cached denial says the same.
        let cached = gate.check(&key).await.unwrap();
        assert!(cached.retry_after() > 365 * day, "{cached:?}");
    }
}

#[tokio::test]
async fn refunds_penalties_blocks_and_resets_reach_the_other_region() {
    let fleet = Fleet::start(2).await;
    for quota in quotas(10) {
        let gates = fleet.gates(quota, Mode::gossip());
        let [here, there] = &gates[..] else { unreachable!() };
        assert!(here.check_cost("ann", 6).await.unwrap().is_allowed());
        here.refund("ann", 2).await.unwrap();
        wait_for_remaining(&gates, "ann", 6).await;
        here.penalize("ann", 1).await.unwrap();
        wait_for_remaining(&gates, "ann", 5).await;
        here.block("ann", Duration::from_secs(60)).await.unwrap();
        soon("the block has arrived", async || there.peek("ann").await.unwrap().is_blocked()).await;
        here.unblock("ann").await.unwrap();
        soon("the block is lifted", async || !there.peek("ann").await.unwrap().is_blocked()).await;
        here.reset("ann").await.unwrap();
        wait_for_remaining(&gates, "ann", 10).await;
    }
}

#[tokio::test]
async fn reservation_that_uses_less_gives_the_rest_back_in_all_regions() {
    let fleet = Fleet::start(2).await;
    for quota in quotas(10) {
        let gates = fleet.gates(quota, Mode::gossip());
        let reservation = gates[0].reserve("ann", 8).await.unwrap();
        wait_for_remaining(&gates, "ann", 2).await;
        reservation.commit(3).await.unwrap();
        assert_eq!(remaining(&gates[0], "ann").await, 7, "{quota}");
        // Of a level, a part of a unit has drained meanwhile: the other region is stricter by less than one.
        soon("the rest has arrived", async || (6..=7).contains(&remaining(&gates[1], "ann").await)).await;
        let reservation = gates[0].reserve("bob", 2).await.unwrap();
        reservation.commit(4).await.unwrap();
        wait_for_remaining(&gates, "bob", 6).await;
    }
}

#[tokio::test]
async fn leased_units_are_charged_in_all_regions_and_come_back() {
    let fleet = Fleet::start(2).await;
    let gates = fleet.gates(Quota::fixed_window(1_000, YEAR).aligned_to_clock(), Mode::gossip());
    let leased = gates[0].clone().leased(Lease::default());
    let mut spent = 0;
    while leased.lease_stats().spent < 20 {
        assert!(leased.check("ann").await.unwrap().is_allowed());
        spent += 1;
    }
    let held = leased.lease_stats().held;
    wait_for_remaining(&gates[1..], "ann", 1_000 - spent - held).await;
    drop(leased);
    wait_for_remaining(&gates, "ann", 1_000 - spent).await;
}

#[tokio::test]
async fn shutdown_sends_the_charges_that_wait() {
    let servers: Vec<Server> = (0..2).map(|_| Server::process(&[]).unwrap()).collect();
    let urls: Vec<&str> = servers.iter().map(Server::url).collect();
    let slow = Replication::default().flush_every(Duration::from_secs(3_600));
    let here = region(&urls, 0).replication(slow).build().unwrap();
    let there = region(&urls, 1).build().unwrap();
    let gate = |limiter: &Limiter| limiter.gate("search", quotas(10)[2]).replicated(Mode::gossip());
    // The first change leaves at once.
    for _ in 0..3 {
        assert!(gate(&here).check("ann").await.unwrap().is_allowed());
        tokio::task::yield_now().await;
    }
    here.shutdown().await;
    wait_for_remaining(&[gate(&there)], "ann", 7).await;
}

#[tokio::test]
async fn gate_that_is_replicated_has_a_state_of_its_own() {
    let fleet = Fleet::start(2).await;
    let quota = quotas(10)[0];
    let plain = fleet.limiters[0].gate("search", quota);
    let replicated = plain.clone().replicated(Mode::gossip());
    assert_eq!(plain.redis_key("ann").unwrap(), "tidegate:2:search:token_bucket:ann");
    assert_eq!(replicated.redis_key("ann").unwrap(), "tidegate:2:gossip/search:token_bucket:ann");
    assert!(plain.check("ann").await.unwrap().is_allowed());
    assert_eq!(remaining(&replicated, "ann").await, 10);
}

#[tokio::test]
async fn while_redis_is_down_each_region_decides_within_its_part() {
    let mut fleet = Fleet::start(2).await;
    let gates = fleet.gates(quotas(10)[0], Mode::gossip());
    assert!(gates[0].check("bob").await.unwrap().is_allowed());
    fleet.servers[0].kill();
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += u64::from(gates[0].check("ann").await.unwrap().is_allowed());
    }
    assert_eq!(admitted, 5);
    // Afterwards, the units are sent to the other region too.
    fleet.servers[0].restart().unwrap();
    wait_for_remaining(&gates, "ann", 5).await;
}

#[tokio::test]
async fn unreachable_peer_is_shown_and_delays_no_check() {
    let server = Server::process(&[]).unwrap();
    let lost = format!("redis://:s3cret@127.0.0.1:{}", closed_port());
    let limiter = region(&[server.url(), &lost], 0).build().unwrap();
    let gate = limiter.gate("search", quotas(10)[0]).replicated(Mode::gossip().when_cut_off(WhenCutOff::Own));
    assert!(gate.check("ann").await.unwrap().is_allowed());
    soon("the error is shown", async || {
        limiter.regions().is_some_and(|status| status.peers[0].error.is_some())
    })
    .await;
    let status = limiter.regions().unwrap();
    assert!(status.peers[0].is_cut_off && status.peers[0].heard_us.is_none(), "{status:?}");
    for text in [format!("{status:?}"), format!("{limiter:?} {gate:?}")] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[tokio::test]
async fn limiter_in_memory_is_one_region() {
    let gate = Limiter::in_memory().gate("search", quotas(10)[0]).replicated(Mode::gossip());
    assert!(gate.check("ann").await.unwrap().is_allowed());
    let in_flight = Limiter::in_memory().gate("search", Quota::in_flight(2)).replicated(Mode::gossip());
    assert!(in_flight.check("ann").await.unwrap_err().is_config());
}

#[tokio::test]
async fn what_cannot_be_replicated_is_a_config_error() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = region(&[&url, &url], 0).build().unwrap();
    let bucket = quotas(10)[0];
    let gate = |quota| limiter.gate("search", quota).replicated(Mode::gossip());
    let month = Quota::try_calendar_window(10, "month@UTC".parse().unwrap());
    let refused = [
        ("an in-flight limit", gate(Quota::in_flight(2))),
        ("a window that begins with its first charge", gate(Quota::fixed_window(10, YEAR))),
        ("a calendar window", gate(month.unwrap())),
        ("counts denied checks", gate(Quota::sliding_log(10, YEAR).count_denied())),
        ("holds", gate(bucket).holds()),
        ("units used", gate(bucket).charge_used(true)),
        ("leases", limiter.gate("search", bucket).leased(Lease::default()).replicated(Mode::gossip())),
        ("without debt", limiter.gate("search", bucket).replicated(Mode::gossip().debt(0))),
        ("other regions", Limiter::open(&url).unwrap().gate("search", bucket).replicated(Mode::gossip())),
    ];
    for (cause, gate) in refused {
        let error = gate.check("ann").await.unwrap_err();
        assert!(error.is_config() && error.to_string().contains(cause), "{cause}: {error}");
    }
    let plain = limiter.gate("other", bucket);
    let error = limiter.check_all([gate(bucket).key("ann"), plain.key("ann")]).await.unwrap_err();
    assert!(error.is_config() && error.to_string().contains("replicated"), "{error}");
}

#[test]
fn regions_that_cannot_be_are_config_errors() {
    let url = "redis://127.0.0.1:1";
    let builder = || Limiter::builder().url(url);
    let refused: [(&str, Builder); 7] = [
        ("no region", builder().peer("us", url)),
        ("no peers", builder().region("eu")),
        ("named twice", builder().region("eu").peer("eu", url)),
        ("cannot be named so", builder().region("eu/1").peer("us", url)),
        ("cannot be used", builder().region("eu").peer("us", "127.0.0.1")),
        ("memory", Limiter::builder().in_memory().region("eu").peer("us", url)),
        (
            "at least 1 s",
            builder()
                .region("eu")
                .peer("us", url)
                .replication(Replication::default().cut_off_after(Duration::ZERO)),
        ),
    ];
    for (cause, builder) in refused {
        let error: Error = builder.build().unwrap_err();
        assert!(error.is_config() && error.to_string().contains(cause), "{cause}: {error}");
    }
}

#[tokio::test]
async fn group_of_replicated_gates_is_all_or_nothing_in_every_region() {
    let fleet = Fleet::start(2).await;
    let small = fleet.gates(quotas(3)[2], Mode::gossip());
    let large = |at: usize| fleet.limiters[at].gate("all", quotas(100)[0]).replicated(Mode::gossip());
    let [here, there] = [large(0), large(1)];
    let check = || fleet.limiters[0].check_all([small[0].key("ann"), here.key("").cost(10)]);
    for _ in 0..3 {
        assert!(check().await.unwrap().is_allowed());
    }
    let denied = check().await.unwrap();
    assert_eq!((denied.is_allowed(), denied.binding_index()), (false, 0));
    wait_for_remaining(&small, "ann", 0).await;
    wait_for_remaining(&[here, there], "", 70).await;
}

/// The peer does not reply, and was never heard of. Of levels, the whole share is there since; of windows and logs too.
#[tokio::test]
async fn region_that_is_cut_off_admits_its_part_of_the_limit() {
    let server = Server::process(&[]).unwrap();
    let lost = format!("redis://127.0.0.1:{}", closed_port());
    let limiter = region(&[server.url(), &lost, &lost], 0).build().unwrap();
    soon("the peers are cut off", async || {
        limiter.regions().is_some_and(|status| status.peers.iter().all(|peer| peer.error.is_some()))
    })
    .await;
    for quota in quotas(30) {
        let of = |policy| limiter.gate("search", quota).replicated(Mode::gossip().when_cut_off(policy));
        let [share, own] = [of(WhenCutOff::Share), of(WhenCutOff::Own)];
        assert!(!share.check_cost("ann", 11).await.unwrap().is_allowed(), "{quota}: more than a third");
        let granted = share.key("ann").take_up_to(30).await.unwrap();
        assert_eq!(granted.granted(), 10, "{quota}");
        let denied = share.check("ann").await.unwrap();
        assert!(!denied.is_allowed() && denied.remaining() == 0, "{quota}: {denied:?}");
        assert_eq!(own.check("ann").await.unwrap().remaining(), 19, "{quota}");
    }
}

#[tokio::test]
async fn at_the_moment_of_a_cut_nothing_is_available() {
    let mut fleet = Fleet::start(2).await;
    let quick = Replication::default().cut_off_after(Duration::from_secs(1));
    let urls: Vec<&str> = fleet.servers.iter().map(Server::url).collect();
    let limiter = region(&urls, 0).replication(quick).build().unwrap();
    let gate = |quota| limiter.gate("search", quota).replicated(Mode::gossip());
    for quota in quotas(30) {
        assert!(gate(quota).check("ann").await.unwrap().is_allowed(), "{quota}");
    }
    // The first limiter keeps on hearing of the peer.
    drop(fleet.limiters.remove(0));
    fleet.servers[1].kill();
    soon("the peer is cut off", async || limiter.regions().is_some_and(|status| status.peers[0].is_cut_off))
        .await;
    for quota in quotas(30) {
        let denied = gate(quota).check("ann").await.unwrap();
        assert!(!denied.is_allowed(), "{quota}: {denied:?}");
        assert!(denied.retry_after() > Duration::from_secs(24 * 3_600), "{quota}: {denied:?}");
        assert!(!gate(quota).check("bob").await.unwrap().is_allowed(), "{quota}: a key that was not used");
    }
    fleet.servers[1].restart().unwrap();
    soon("the cut has ended", async || gate(quotas(30)[0]).check("ann").await.unwrap().is_allowed()).await;
}

#[tokio::test]
async fn documented_rights_are_enough_and_each_of_a_peer_is_needed() {
    let servers = [Server::process(&[]).unwrap(), Server::process(&[]).unwrap()];
    let line = GUIDE.lines().find(|line| line.starts_with("ACL SETUSER")).unwrap();
    let reader: Vec<&str> = line.split(' ').collect();
    assert!(GUIDE.contains("`+hincrby`, `+hlen`, `+hrandfield`, `+mget`, `+xadd` and `+xtrim`"));
    for server in &servers {
        acl::create_user(server);
        let more = acl::CALLED_BY_REGIONS.map(|command| format!("+{}", command.to_lowercase()));
        let more = more.iter().map(String::as_str).chain(["+mget"]);
        server.cli(&["ACL", "SETUSER", acl::USER].into_iter().chain(more).collect::<Vec<_>>()).unwrap();
        assert_eq!(server.cli(&reader).unwrap(), "OK");
    }
    let urls: Vec<String> =
        servers.iter().map(|server| server.url().replace("redis://", "redis://reader:PASSWORD@")).collect();
    let limiter = |at: usize| {
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let own = region(&urls, at).url(servers[at].url()).credentials(acl::USER, acl::PASSWORD);
        own.follow_overrides(false).instances(1).build().unwrap()
    };
    let limiters = [limiter(0), limiter(1)];
    let gates =
        limiters.each_ref().map(|limiter| limiter.gate("search", quotas(10)[2]).replicated(Mode::gossip()));
    let [here, _] = &gates;
    assert!(here.check("ann").await.unwrap().is_allowed());
    here.penalize("ann", 2).await.unwrap();
    here.refund("ann", 1).await.unwrap();
    wait_for_remaining(&gates, "ann", 8).await;
    here.block("ann", Duration::from_secs(60)).await.unwrap();
    here.unblock("ann").await.unwrap();
    here.reset("ann").await.unwrap();
    wait_for_remaining(&gates, "ann", 10).await;
    let has_error = || {
        let status = limiters[0].regions().unwrap();
        status.error.is_some() || status.peers[0].error.is_some()
    };
    assert!(!has_error(), "{:?}", limiters[0].regions());
    for right in reader.iter().filter(|word| word.starts_with('+')) {
        // The right to an own command of a connection is needed only when it is made.
        if *right == "+ping" {
            continue;
        }
        let without = right.split('|').next().unwrap().replacen('+', "-", 1);
        servers[1].cli(&["ACL", "SETUSER", "reader", &without]).unwrap();
        soon(&format!("{right} is missed"), async || has_error()).await;
        servers[1].cli(&["ACL", "SETUSER", "reader", right]).unwrap();
        soon(&format!("{right} is back"), async || !has_error()).await;
    }
}

#[derive(Clone, Default)]
struct Warned(Arc<Mutex<Vec<String>>>);

impl Observer for Warned {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }
}

#[test]
fn peer_that_is_read_without_encryption_is_reported_without_its_password() {
    for (url, is_reported) in [
        ("redis://reader:s3cret@peer.invalid", true),
        ("rediss://reader:s3cret@peer.invalid", false),
        ("redis://127.0.0.1:1", false),
    ] {
        let warned = Warned::default();
        let builder =
            region(&["redis://127.0.0.1:1", url], 0).stderr_warnings(false).observer(warned.clone());
        let _limiter = builder.build().unwrap();
        let warnings = warned.0.lock().unwrap();
        let is_of_plaintext = |text: &String| {
            text.ends_with("[peer-plaintext]") && text.contains("\"us\"") && !text.contains("s3cret")
        };
        assert_eq!(warnings.iter().any(is_of_plaintext), is_reported, "{url}: {warnings:?}");
    }
}

#[tokio::test]
async fn regions_with_other_peers_or_another_key_mode_are_named_in_health() {
    let servers = [0; 3].map(|_| Server::process(&[]).unwrap());
    let urls: Vec<&str> = servers.iter().map(Server::url).collect();
    let secret = KeyMode::Hmac(b"of 16 bytes or more".to_vec());
    for (us, has) in
        [(region(&urls[..2], 1).key_mode(secret), "eu,us/%hmac="), (region(&urls, 1), "ap,eu,us/regions")]
    {
        let [eu, us] = [region(&urls[..2], 0).build().unwrap(), us.build().unwrap()];
        let differs = async |limiter: &Limiter, peer: &str| {
            let warnings = limiter.health().await.warnings();
            let names = |warning: &String| {
                warning.starts_with(&format!("the region \"{peer}\""))
                    && warning.contains("has other regions")
            };
            warnings.iter().any(|warning| names(warning) && warning.contains(has))
        };
        soon("eu knows it", async || differs(&eu, "us").await).await;
        soon("us knows it", async || differs(&us, "eu").await).await;
        for limiter in [eu, us] {
            limiter.shutdown().await;
        }
    }
}

#[tokio::test]
async fn health_is_good_while_all_regions_are_heard_of_and_names_one_that_is_not() {
    let mut servers = [0; 2].map(|_| Server::process(&[]).unwrap());
    let urls: Vec<String> = servers.iter().map(|server| server.url().to_owned()).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let limiters = [0, 1].map(|at| region(&urls, at).replication(Replication::default()).build().unwrap());
    for limiter in &limiters {
        soon("health is good", async || limiter.health().await.is_good()).await;
    }
    servers[1].kill();
    soon("health names the region", async || {
        let warnings = limiters[0].health().await.warnings();
        matches!(&warnings[..], [cut] if cut.starts_with("the region \"us\" is cut off: "))
    })
    .await;
}
