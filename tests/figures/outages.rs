//! Figures while Redis rejects them or is unavailable.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::admin::Inspector;
use tidegate::{Event, Limiter, Observer, Quota, Source};
use tidegate_testkit::{Fault, Proxy, Server};

use super::TEN;
use crate::support::acl::{self, PASSWORD, USER};
use crate::support::fixture::{HOUR, builder_as_is, soon};

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Observer for Warnings {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

impl Warnings {
    fn of(&self, code: &str) -> Vec<String> {
        let warnings = self.0.lock().unwrap();
        warnings.iter().filter(|warning| warning.contains(code)).cloned().collect()
    }
}

async fn allowed(limiter: &Limiter) -> u64 {
    let found = Inspector::new(limiter).unwrap().figures(HOUR).await.unwrap();
    found.buckets.iter().flat_map(|bucket| &bucket.gates).map(|gate| gate.allowed).sum()
}

#[tokio::test]
async fn decisions_of_an_outage_are_published_after_it() {
    let mut server = Server::process(&[]).unwrap();
    let builder = || {
        builder_as_is(server.url())
            .publish_figures(true)
            .namespace("outage")
            .deadline(Duration::from_millis(500))
    };
    let (limiter, reader) = (builder().build().unwrap(), builder().build().unwrap());
    let login = limiter.gate("login", TEN);
    soon("Redis decides", async || login.check("a").await.unwrap().source() == Source::Redis).await;
    server.kill();
    soon("the circuit breaker is open", async || {
        let _ = login.check("b").await.unwrap();
        limiter.health().await.breaker_open_for().is_some()
    })
    .await;
    for number in 0..100 {
        assert_eq!(login.check(number).await.unwrap().source(), Source::Local);
    }
    server.restart().unwrap();
    soon("Redis decides again", async || login.check("c").await.unwrap().source() == Source::Redis).await;
    limiter.shutdown().await;
    assert!(allowed(&reader).await >= 100, "the decisions of the fallback are missing");
    let found = Inspector::new(&reader).unwrap().figures(HOUR).await.unwrap();
    let errors: u64 = found.buckets.iter().flat_map(|bucket| &bucket.gates).map(|gate| gate.errors).sum();
    assert!(errors >= 100, "{errors}");
}

#[tokio::test]
async fn rejected_figures_are_a_warning_and_change_no_decision() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    // Takes of a fixed window need no HSET.
    assert_eq!(server.cli(&["ACL", "SETUSER", USER, "-hset"]).unwrap(), "OK");
    let warnings = Warnings::default();
    let builder =
        builder_as_is(server.url()).publish_figures(true).namespace("tidegate").credentials(USER, PASSWORD);
    let limiter = builder.observer(warnings.clone()).build().unwrap();
    let login = limiter.gate("login", TEN);
    for _ in 0..3 {
        assert_eq!(login.check("a").await.unwrap().source(), Source::Redis);
    }
    limiter.shutdown().await;
    let found = warnings.of("figures-rejected");
    assert!(found[0].contains("the figures of this process are missing"), "{found:?}");
    assert_eq!(login.check("a").await.unwrap_err().kind(), "shut_down");
}

/// Publishes the figures of some checks by a shutdown whose replies are lost. Returns the checks, and those in Redis.
async fn lose_reply(server: &Server, attempt: usize) -> (u64, u64) {
    let proxy = Proxy::start(server.url()).unwrap();
    let builder = |url: &str| builder_as_is(url).publish_figures(true).namespace(&format!("lost-{attempt}"));
    // Without a breaker: calls of other jobs would open it first, and then nothing is published.
    let limiter = builder(&proxy.url()).deadline(Duration::from_millis(500)).breaker(false).build().unwrap();
    let login = limiter.gate("login", Quota::fixed_window(1_000_000, HOUR));
    let mut checks = 0;
    soon("Redis decides", async || {
        checks += 1;
        login.check("a").await.unwrap().source() == Source::Redis
    })
    .await;
    // The script runs, and its reply arrives after the deadline.
    proxy.set(Fault::Slow(Duration::from_secs(2)));
    limiter.shutdown().await;
    proxy.set(Fault::None);
    (checks, allowed(&builder(server.url()).build().unwrap()).await)
}

/// A publication that was in flight may be missing. So this repeats until one has run.
#[tokio::test]
async fn figures_whose_reply_is_lost_are_not_counted_twice() {
    let server = Server::process(&[]).unwrap();
    // The server knows the script from now on: it would have to be sent again otherwise.
    let other = builder_as_is(server.url()).publish_figures(true).build().unwrap();
    let _ = other.gate("login", TEN).check("a").await.unwrap();
    other.shutdown().await;
    for attempt in 0..10 {
        let (checks, found) = lose_reply(&server, attempt).await;
        if found > 0 {
            assert_eq!(found, checks);
            return;
        }
    }
    panic!("no publication has run");
}
