//! Processes that end between a reservation and its settle.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Gate, Limiter, Quota, Settlement, Token};

use crate::support::fixture::{HOUR, PATIENCE, namespace, soon};
use crate::support::instance::Instance;

/// The variable that gives an instance its URL and namespace, separated by a space.
const JOB: &str = "TIDEGATE_TEST_RESERVING";
const TTL: Duration = Duration::from_secs(2);

fn connect(url: &str, namespace: &str) -> (Limiter, Gate) {
    let limiter = Limiter::builder().url(url).namespace(namespace).deadline(PATIENCE);
    let limiter = limiter.deny_cache(Duration::ZERO).build().unwrap();
    let budget = limiter.gate("budget", Quota::fixed_window(1_000, 24 * HOUR)).holds();
    (limiter, budget)
}

/// Starts a process that reserves the whole budget, and kills it. Returns its report.
async fn killed_after_reserving(url: &str, namespace: &str) -> Value {
    let mut instance = Instance::spawn("reservations::processes::instance", JOB, &[url, namespace]);
    let report = instance.says().await;
    instance.process.kill().await.unwrap();
    report
}

#[tokio::test]
async fn hold_of_a_killed_process_ends_at_its_ttl_and_not_earlier() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let (_limiter, budget) = connect(server.url(), &namespace);
    let report = killed_after_reserving(server.url(), &namespace).await;
    let ends_us = report["now_us"].as_u64().unwrap() + TTL.as_micros() as u64;
    let mut admitted_us = 0;
    soon("the units return", async || {
        let decision = budget.check("acme").await.unwrap();
        let now_us = decision.server_now_us();
        assert_eq!(decision.is_allowed(), now_us >= ends_us, "at {now_us}, the hold ends at {ends_us}");
        admitted_us = now_us;
        decision.is_allowed()
    })
    .await;
    assert!(admitted_us >= ends_us);
    assert_eq!(budget.peek("acme").await.unwrap().remaining(), 999);
}

#[tokio::test]
async fn another_process_settles_for_a_killed_one() {
    let (server, namespace) = (tidegate_testkit::shared(), namespace());
    let (limiter, budget) = connect(server.url(), &namespace);
    // On a busy machine, the hold may end first. Then the commit is late, and charges the same.
    let report = killed_after_reserving(server.url(), &namespace).await;
    let token: Token = report["token"].as_str().unwrap().parse().unwrap();
    let settled = limiter.commit(&token, [120]).await.unwrap();
    assert!(matches!(settled[..], [Settlement::Settled | Settlement::Late]), "{settled:?}");
    assert_eq!(budget.peek("acme").await.unwrap().remaining(), 880);
    assert_eq!(limiter.commit(&token, [0]).await.unwrap(), [Settlement::Nothing]);
}

/// Not a test: the program that the processes of the tests above run.
#[tokio::test]
#[ignore = "run by the other tests"]
async fn instance() {
    let Ok(settings) = std::env::var(JOB) else { return };
    let (url, namespace) = settings.split_once(' ').unwrap();
    let (limiter, budget) = connect(url, namespace);
    let reserved = limiter.reserve([budget.key("acme").cost(1_000)]).ttl(TTL).back().await.unwrap();
    let now_us = reserved.decision().binding().server_now_us();
    let token = reserved.token().unwrap().to_string();
    report(&json!({ "now_us": now_us, "token": token }));
    std::future::pending::<()>().await;
}

/// Begins a new line: the test runner may have written a part of this one.
#[expect(clippy::print_stdout, reason = "an instance reports on its standard output")]
fn report(value: &Value) {
    println!("\n{value}");
}
