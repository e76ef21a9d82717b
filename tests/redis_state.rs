//! A Redis that does not decide checks is reported at once, and so is its return: the failure policy would
//! otherwise hide it.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Event, Limiter, Observer, OnFailure, Quota, Source, Switch, deadpool_redis};
use tidegate_testkit::Server;

use crate::support::acl;
use crate::support::fixture::{HOUR, Paused, builder_as_is, closed_port, soon};

const QUOTA: Quota = Quota::fixed_window(1_000_000, HOUR);

#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

impl Reports {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Reports {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Warned(warning) => {
                self.0.lock().unwrap().push(warning.to_string());
            }
            Event::Recovered => {
                self.0.lock().unwrap().push("recovered".to_owned());
            }
            _ => {}
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn wrong_address_is_reported_at_the_first_check_although_the_fallback_decides() {
    let reports = Reports::default();
    let url = format!("redis://zx9user:secret@127.0.0.1:{}/3", closed_port());
    let limiter = builder_as_is(&url).observer(reports.clone()).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    for _ in 0..100 {
        assert_eq!(gate.check("key").await.unwrap().source(), Source::Local);
    }
    assert_eq!(
        reports.all(),
        [
            "limits are not shared: redis://127.0.0.1:1: Redis is unavailable: Connection refused (os error 111). \
          Until Redis answers, each process decides within its own share of the limits (on_failure: local), \
          unless a gate has another policy. To mend it, correct the address, or start the server \
          [redis-unreachable]"
        ]
    );
}

#[tokio::test]
async fn report_of_an_outage_names_the_share_that_is_known() {
    for (instances, share) in
        [(1, "(on_failure: local), here all of them,"), (3, "(on_failure: local), here 1/3 of each,")]
    {
        let reports = Reports::default();
        let url = format!("redis://127.0.0.1:{}", closed_port());
        let limiter = builder_as_is(&url).instances(instances).observer(reports.clone()).build().unwrap();
        assert_eq!(limiter.gate("gate", QUOTA).check("key").await.unwrap().source(), Source::Local);
        assert!(reports.all()[0].contains(share), "{:?}", reports.all());
    }
}

#[tokio::test]
async fn missing_permission_is_reported_until_it_is_granted() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    server.cli(&["ACL", "SETUSER", acl::USER, "-hset"]).unwrap();
    let reports = Reports::default();
    let limiter = Limiter::builder()
        .url(server.url())
        .credentials(acl::USER, acl::PASSWORD)
        .deadline(HOUR)
        .on_failure(OnFailure::Open)
        .observer(reports.clone())
        .build()
        .unwrap();
    let gate = limiter.gate("gate", Quota::token_bucket(1_000_000, tidegate::Rate::per_hour(1_000_000)));
    assert_eq!(gate.check("key").await.unwrap().source(), Source::Open);
    let address = server.url().trim_end_matches('/');
    let expected = format!("limits are not shared: {address}: Redis rejected the call: NOPERM ");
    let all = reports.all();
    assert!(all.len() == 1 && all[0].starts_with(&expected), "{all:?}");
    for words in
        ["the Redis user lacks ", "docs/operate/redis-user.md", "(on_failure: open)", "[redis-refused]"]
    {
        assert!(all[0].contains(words), "{words}: {all:?}");
    }
    server.cli(&["ACL", "SETUSER", acl::USER, "+hset"]).unwrap();
    // A heartbeat may have been rejected, too.
    let of_checks = || -> Vec<_> {
        reports.all().into_iter().filter(|report| !report.ends_with(" [figures-rejected]")).collect()
    };
    soon("the end is reported", async || {
        assert_eq!(gate.check("key").await.unwrap().source(), Source::Redis);
        of_checks().len() == 2
    })
    .await;
    assert_eq!(of_checks()[1], "recovered");
}

#[tokio::test]
async fn missing_permission_of_background_work_is_reported() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    let operator = builder_as_is(server.url()).namespace("tidegate").build().unwrap();
    operator.control().switch("other", Switch::Closed, None).await.unwrap();
    server.cli(&["ACL", "SETUSER", acl::USER, "-hgetall", "-zadd"]).unwrap();
    let reports = Reports::default();
    let limiter = builder_as_is(server.url())
        .namespace("tidegate")
        .credentials(acl::USER, acl::PASSWORD)
        .observer(reports.clone())
        .build()
        .unwrap();
    let gate = limiter.gate("gate", Quota::token_bucket(9, tidegate::Rate::per_hour(9)));
    assert_eq!(gate.check("key").await.unwrap().source(), Source::Redis);
    for (code, words) in [
        ("overrides-unreadable", "operators' switches and overrides are not followed: redis://127.0.0.1:"),
        (
            "heartbeat-rejected",
            "this process is not counted, and its share in an outage is too large: redis://",
        ),
    ] {
        soon(code, async || {
            let all = reports.all();
            all.iter().any(|text| text.contains(code) && text.starts_with(words) && text.contains("NOPERM"))
        })
        .await;
    }
}

#[tokio::test]
async fn wrong_password_is_reported_as_a_rejection() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    let reports = Reports::default();
    let builder = Limiter::builder().url(server.url()).credentials(acl::USER, "wrong").deadline(HOUR);
    let limiter = builder.observer(reports.clone()).build().unwrap();
    let _ = limiter.gate("gate", QUOTA).check("key").await.unwrap();
    let all = reports.all();
    assert!(all.len() == 1 && all[0].contains("WRONGPASS invalid user or password"), "{all:?}");
    assert!(all[0].ends_with("[redis-refused]") && !all[0].contains("wrong"), "{all:?}");
}

#[tokio::test]
async fn outage_and_its_end_are_reported() {
    let server = Server::process(&[]).unwrap();
    let reports = Reports::default();
    let limiter = builder_as_is(server.url()).observer(reports.clone()).build().unwrap();
    let gate = limiter.gate("gate", QUOTA);
    assert_eq!(gate.check("key").await.unwrap().source(), Source::Redis);
    assert_eq!(reports.all(), [""; 0]);
    drop(limiter);

    let builder = builder_as_is(server.url()).deadline(Duration::from_millis(50)).breaker(false);
    let reports = Reports::default();
    let gate = builder.observer(reports.clone()).build().unwrap().gate("gate", QUOTA);
    let paused = Paused::new(&server);
    soon("the outage is reported", async || {
        let _ = gate.check("key").await.unwrap();
        !reports.all().is_empty()
    })
    .await;
    drop(paused);
    soon("its end is reported", async || {
        let _ = gate.check("key").await.unwrap();
        reports.all().last().is_some_and(|last| last == "recovered")
    })
    .await;
    let all = reports.all();
    assert!(all[0].contains("timed out after 50ms") && all[0].ends_with("[redis-unreachable]"), "{all:?}");
}

#[tokio::test]
async fn ready_names_the_address_without_credentials() {
    let port = closed_port();
    let url = format!("redis://zx9user:secret@127.0.0.1:{port}/3");
    let other = format!("redis://zx9user:secret@127.0.0.2:{port}");
    let pool = deadpool_redis::Config::from_url(&url).create_pool(Some(deadpool_redis::Runtime::Tokio1));
    let builders = [
        ("redis://127.0.0.1:1: ", Limiter::builder().url(&url)),
        ("redis://[::1]:1: ", Limiter::builder().url("redis://zx9user:secret@[::1]:1")),
        (
            "unix:///nonexistent/redis.sock: ",
            Limiter::builder().url("unix:///nonexistent/redis.sock?user=zx9user&pass=secret"),
        ),
        (
            "the primary \"main\" of the sentinels redis://127.0.0.1:1, redis://127.0.0.2:1: ",
            Limiter::builder().sentinel([url.as_str(), &other], "main"),
        ),
        ("the Redis of the pool that the builder was given: ", Limiter::builder().pool(pool.unwrap())),
        #[cfg(feature = "tls")]
        ("rediss://127.0.0.1:1: ", Limiter::builder().url(&url.replace("redis", "rediss"))),
        #[cfg(feature = "cluster")]
        (
            "the cluster of redis://127.0.0.2:1, redis://127.0.0.2:1, redis://127.0.0.2:1 and 2 more: ",
            Limiter::builder().cluster([other.as_str(); 5]),
        ),
    ];
    for (address, builder) in builders {
        let error = builder.deadline(HOUR).build().unwrap().ready().await.unwrap_err();
        let text = error.to_string();
        assert!(error.is_unavailable() && text.starts_with(address), "{text}");
        assert!(!text.contains("zx9user") && !text.contains("secret"), "{text}");
    }
}

struct Silent;

impl Observer for Silent {
    fn on(&self, _: &Event<'_>) {}
}

/// Started by the test below, since the lines of a process's standard error cannot be read from inside.
#[tokio::test]
#[ignore = "a part of the next test"]
async fn child_without_a_report() {
    let shows_warnings = std::env::var("TIDEGATE_TEST_STDERR").as_deref() == Ok("on");
    let url = format!("redis://zx9user:secret@127.0.0.1:{}", closed_port());
    let builder = Limiter::builder().url(&url).stderr_warnings(shows_warnings);
    // An observer that does not report warnings, as one that only counts.
    let limiter = builder.observer(Silent).build().unwrap();
    for _ in 0..100 {
        let _ = limiter.gate("gate", QUOTA).check("key").await.unwrap();
    }
    let rejected = "no limit".parse::<Quota>().unwrap_err();
    limiter.notify(&Event::RulesReloaded(Err(&rejected)));
}

#[test]
fn wrong_address_and_rejected_rules_are_a_line_each_on_standard_error_if_nothing_else_reports_them() {
    let lines = [
        "tidegate: limits are not shared: redis://127.0.0.1:1: ",
        "tidegate: rules not reloaded, the previous ones stay in force: ",
    ];
    for (setting, lines) in [("on", &lines[..]), ("off", &[])] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "redis_state::child_without_a_report", "--ignored", "--nocapture"])
            .env("TIDEGATE_TEST_STDERR", setting)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let written: Vec<&str> = text.lines().filter(|line| line.starts_with("tidegate: ")).collect();
        assert!(output.status.success() && written.len() == lines.len(), "{setting}: {text}");
        assert!(written.iter().zip(lines).all(|(line, start)| line.starts_with(start)), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}
