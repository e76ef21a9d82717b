//! Tests that each alert fires for its cause, after its configured time, and has a section in the runbook.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select};
use tidegate::regions::Mode;
use tidegate::{Lease, Limiter, OnFailure, Quota, Rate, Switch};
use tidegate_testkit::{Fault, Proxy, Server, promtool};

use super::service::{Followed, Load, Service};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{HOUR, namespace};
use crate::support::prometheus::{ALERTS, PATIENCE, QuickAlerts, Scraping, soon};

const RUNBOOK: &str = include_str!("../../../../docs/operate/runbook.md");

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate")
}

/// Returns the text after `mark` of each line that begins with `mark`.
fn after<'t>(text: &'t str, mark: &str) -> BTreeSet<&'t str> {
    text.lines().filter_map(|line| line.trim_start().strip_prefix(mark)).map(str::trim).collect()
}

fn is_accepted(folder: &Path, arguments: &[&str]) {
    let output = promtool(folder, arguments).unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn each_alert_has_a_runbook_section_and_each_section_an_alert() {
    let alerts = after(ALERTS, "- alert:");
    assert_eq!(after(RUNBOOK, "## Tidegate"), alerts.iter().map(|name| &name["Tidegate".len()..]).collect());
    let links: BTreeSet<_> =
        alerts.iter().map(|name| format!("docs/operate/runbook.md#{}", name.to_lowercase())).collect();
    assert_eq!(after(ALERTS, "runbook:").into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), links);
    for section in RUNBOOK.split("\n## ").filter(|section| section.starts_with("Tidegate")) {
        for part in ["**It means**", "**Users feel**", "**Look at**", "**Do**"] {
            assert!(section.contains(part), "{}: no {part}", section.lines().next().unwrap());
        }
    }
}

#[test]
fn promtool_accepts_the_alerts_and_each_fires_after_its_configured_time() {
    is_accepted(&docs(), &["check", "rules", "alerts.yml"]);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/prometheus");
    is_accepted(&tests, &["test", "rules", "alerts.test.yml"]);
    let tested = after(include_str!("alerts.test.yml"), "alertname:");
    assert_eq!(tested, after(ALERTS, "- alert:"));
}

/// Alerts of regions fire below, and those of the rate-limit service in the tests of tidegate-server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_of_a_limiter_fires_when_its_cause_occurs() {
    let mut server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let (service, other) = (Service::start().await, Service::start().await);
    let quick = QuickAlerts::write();
    let scraping = Scraping::of(
        &[service.address, other.address].map(|address| address.to_string()),
        Some(quick.path()),
    );
    let mut fired = BTreeSet::new();
    let mut fires = async |alert: &'static str| {
        scraping.fires(alert).await;
        assert!(fired.insert(alert));
    };

    // There were no checks yet.
    fires("TidegateNoDecisions").await;

    let rules = [&service, &other].map(|service| Followed::new(service, server.url(), 2));
    rules[1].write(3);
    fires("TidegateRulesDiffer").await;
    rules[0].spoil();
    fires("TidegateReloadFailed").await;

    let limiter = service.builder(&proxy.url()).deadline(Duration::from_millis(500)).build().unwrap();
    let large = Quota::token_bucket(1_000_000, Rate::per_second(1_000_000));
    let steady = limiter.gate("steady", large);
    let load = Load::on(steady.clone());
    let denying = Load::on(limiter.gate("tight", Quota::fixed_window(1, HOUR)));
    fires("TidegateDeniesMuch").await;
    drop(denying);

    limiter.control().switch("other", Switch::Shadow, None).await.unwrap();
    fires("TidegateSwitched").await;

    let broken = limiter.gate("broken", large);
    server.cli(&["SET", &broken.redis_key("user:1").unwrap(), "text"]).unwrap();
    let refused = Load::on(broken);
    fires("TidegateRedisRefuses").await;
    drop(refused);

    // Redis loses its state, and so the lease of a process that holds a permit.
    let holding = service.builder(server.url()).permit_ttl(Duration::from_secs(1)).build().unwrap();
    let held = holding.gate("held", Quota::in_flight(3)).acquire("user:1").await.unwrap().permit();
    soon("the series exists", async || !scraping.query("tidegate_permits_lapsed_total").await.is_empty())
        .await;
    server.flush().unwrap();
    fires("TidegatePermitsLapsed").await;
    drop(held);

    proxy.set(Fault::Slow(Duration::from_millis(60)));
    fires("TidegateNearDeadline").await;
    proxy.set(Fault::None);

    let paused = server.pause().unwrap();
    let full = service.builder(server.url()).deadline(HOUR).on_failure(OnFailure::Error).breaker(false);
    let full = full.build().unwrap().gate("full", large);
    {
        // One thread sends more checks than the queue holds, and then another check in the same queue.
        let burst = join_all((0..20_000).map(|key| full.check(format!("user:{key}"))));
        let is_full = soon("a further check finds the queue full", async || {
            let late = full.key("late").deadline(Duration::from_millis(50)).check().await;
            late.is_err_and(|error| error.kind() == "queue_full")
        });
        select(pin!(burst), pin!(is_full)).await;
    }
    drop(paused);
    fires("TidegateQueueFull").await;

    // The leased units are to be given back when the lease ends, but Redis is stopped by then.
    let leasing = service.builder(server.url()).build().unwrap();
    let leased = leasing.gate("leased", Quota::token_bucket(1_000, Rate::per_hour(1)));
    let leased = leased.leased(Lease::new().max_units(100).hold(Duration::from_secs(2)));
    soon("units are leased", async || {
        let _ = leased.check("hot").await.unwrap();
        leased.lease_stats().held > 10
    })
    .await;
    server.kill();
    // Waits for all at once, because units are stranded only once, and that alert then fires for 3 s.
    let last = ["TidegateBreakerOpen", "TidegateFallbackDecides", "TidegateLeaseUnitsStranded"];
    join_all(last.map(|alert| scraping.fires(alert))).await;
    for alert in last {
        assert!(fired.insert(alert));
    }
    drop(load);

    let written: BTreeSet<_> = scraping.alerts("tidegate").await.into_iter().collect();
    assert_eq!(fired.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), written);
}

/// A service is scraped in one of two regions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_of_regions_fires_when_its_cause_occurs() {
    let (here, mut there) = (Server::process(&[]).unwrap(), Server::process(&[]).unwrap());
    let service = Service::start().await;
    let namespace = namespace();
    let eu = service.builder(here.url()).namespace(&namespace).region("eu").peer("us", there.url());
    let us = Limiter::builder().url(there.url()).namespace(&namespace).region("us").peer("eu", here.url());
    let large = Quota::token_bucket(1_000_000, Rate::per_second(1_000_000));
    let [eu, us] = [eu, us].map(|region| {
        // On a busy machine, checks may exceed the default deadline.
        let limiter = region.deadline(PATIENCE).build().unwrap();
        limiter.gate("search", large).replicated(Mode::gossip())
    });
    let quick = QuickAlerts::write();
    let scraping = Scraping::of(&[service.address.to_string()], Some(quick.path()));
    let alerts = scraping.alerts("tidegate-regions").await;
    let firing = format!("ALERTS{{alertname=~'{}'}}", alerts.join("|"));
    let is_quiet = async || scraping.query(&firing).await.is_empty();
    let mut fired = BTreeSet::new();
    let mut fires = async |alert: &str| {
        scraping.fires(alert).await;
        assert!(fired.insert(alert.to_owned()));
    };

    soon("a change has arrived, and nothing fires", async || {
        // One of before the first read does not count.
        assert!(us.check("user:1").await.unwrap().is_allowed());
        let applied = scraping.query("tidegate_replication_changes_total{fate='applied'} > 0").await;
        !applied.is_empty() && is_quiet().await
    })
    .await;

    // This region's Redis rejects what it reads of the other: more entries than one read has.
    here.cli(&["ACL", "SETUSER", "default", "-set"]).unwrap();
    let add = "for _ = 1, 200 do redis.call('XADD', KEYS[1], '*', 'unknown', '1') end";
    there.cli(&["EVAL", add, "1", &format!("{namespace}:1:regions:log")]).unwrap();
    fires("TidegateReplicationLags").await;
    here.cli(&["ACL", "SETUSER", "default", "+set"]).unwrap();
    fires("TidegateChangesNotApplied").await;

    there.flush().unwrap();
    fires("TidegateChangesLost").await;

    here.cli(&["ACL", "SETUSER", "default", "-xadd"]).unwrap();
    assert!(eu.check("user:1").await.unwrap().is_allowed());
    fires("TidegateOutboxNotFlushed").await;
    here.cli(&["ACL", "SETUSER", "default", "+xadd"]).unwrap();

    soon("nothing fires", is_quiet).await;
    there.kill();
    fires("TidegateRegionCutOff").await;
    assert_eq!(fired, alerts.into_iter().collect());
}

/// Shows that the alerts above fire because of their causes, not for every service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_alert_fires_for_a_healthy_service() {
    let service = Service::start().await;
    let quick = QuickAlerts::write();
    let server = tidegate_testkit::shared();
    // On a busy machine, checks may exceed the default deadline.
    let builder = service.builder(server.url()).namespace(&namespace()).deadline(PATIENCE);
    let limiter: Limiter = builder.build().unwrap();
    let _load = Load::on(limiter.gate("steady", Quota::token_bucket(1_000_000, Rate::per_second(1_000_000))));
    let scraping = Scraping::of(&[service.address.to_string()], Some(quick.path()));
    soon("the scrapes cover the range of the alerts", async || {
        let scraped = scraping.query("count_over_time(tidegate_breaker_open[1m])").await;
        scraped.first().is_some_and(|(_, scrapes)| *scrapes > 25.0)
    })
    .await;
    // The latency of Redis depends on the machine, so this alert may fire.
    let firing = scraping.query("ALERTS{alertname!='TidegateNearDeadline'}").await;
    assert!(firing.is_empty(), "{firing:?}");
}
