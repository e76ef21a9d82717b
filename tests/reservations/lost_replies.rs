//! Redis runs a call, and its reply is lost.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{Builder, Gate, Limiter, OnFailure, Quota, Settlement, Source};
use tidegate_testkit::{Fault, Proxy, Server};

use crate::support::fixture::{HOUR, PATIENCE, builder, builder_as_is, namespace, soon};

/// A service with a slow connection to Redis, and a gate of a limiter that always reaches Redis.
struct Slow {
    proxy: Proxy,
    service: Limiter,
    budget: Gate,
    observed: Gate,
    _server: Arc<Server>,
}

impl Slow {
    async fn new(settings: impl FnOnce(Builder) -> Builder) -> Self {
        let server = tidegate_testkit::shared();
        let proxy = Proxy::start(server.url()).unwrap();
        let namespace = namespace();
        let service = settings(builder_as_is(&proxy.url()).namespace(&namespace)).build().unwrap();
        let quota = Quota::fixed_window(1_000, 24 * HOUR);
        let budget = service.gate("budget", quota);
        let observer = builder(server.url()).namespace(&namespace).build().unwrap();
        let observed = observer.gate("budget", quota);
        // Loads the scripts: otherwise their first call is answered NOSCRIPT, and that reply is delayed.
        let reserved = observer.reserve([observed.key("other")]).await.unwrap();
        observer.cancel(reserved.token().unwrap()).await.unwrap();
        service.ready().await.unwrap();
        Self { proxy, service, budget, observed, _server: server }
    }

    async fn left(&self) -> u64 {
        self.observed.peek("acme").await.unwrap().remaining()
    }

    async fn until_left(&self, expected: u64) {
        soon(&format!("{expected} left"), async || self.left().await == expected).await;
    }
}

#[tokio::test]
async fn settle_is_sent_again_after_a_lost_reply_and_counts_once() {
    let slow = Slow::new(|builder| builder.on_failure(OnFailure::Error).breaker(false)).await;
    let reserved = slow.service.reserve([slow.budget.key("acme").cost(700)]).await.unwrap();
    let token = reserved.token().unwrap().clone();
    slow.proxy.set(Fault::Slow(2 * PATIENCE));
    let service = slow.service.clone();
    let commit = tokio::spawn(async move { service.commit(&token, [100]).await });
    slow.until_left(900).await;
    slow.proxy.set(Fault::None);
    slow.proxy.cut();
    // The repetition finds the hold settled.
    assert_eq!(commit.await.unwrap().unwrap(), [Settlement::Nothing]);
    assert_eq!(slow.left().await, 900);
}

#[tokio::test]
async fn reservation_is_repeated_with_its_id_after_a_timeout_and_is_charged_once() {
    let slow = Slow::new(|builder| {
        builder.on_failure(OnFailure::Error).breaker(false).deadline(Duration::from_millis(300))
    })
    .await;
    slow.proxy.set(Fault::Slow(PATIENCE));
    let reserve = || slow.service.reserve([slow.budget.key("acme").cost(700)]).id("request-1");
    // On a busy machine, the deadline may pass before a call is sent.
    soon("Redis has run one", async || {
        let error = reserve().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        slow.left().await == 300
    })
    .await;
    slow.proxy.set(Fault::None);
    let mut token = None;
    soon("the repetition is answered", async || {
        token = reserve().await.ok().and_then(|reserved| reserved.token().cloned());
        token.is_some()
    })
    .await;
    assert_eq!(slow.left().await, 300, "charged once");
    soon("it is settled", async || {
        slow.service.commit(token.as_ref().unwrap(), [100]).await.unwrap();
        slow.left().await == 900
    })
    .await;
}

/// Redis holds the estimate, and the policy admits the request without knowing.
#[tokio::test]
async fn hold_that_the_failure_policy_does_not_know_is_settled_too() {
    for on_failure in [OnFailure::Open, OnFailure::Local] {
        let slow = Slow::new(|builder| {
            builder.on_failure(on_failure).breaker(false).instances(1).deadline(Duration::from_secs(1))
        })
        .await;
        slow.proxy.set(Fault::Slow(PATIENCE));
        let reserved = slow.service.reserve([slow.budget.key("acme").cost(700)]).ttl(HOUR).await.unwrap();
        let source = reserved.decision().binding().source();
        assert!(matches!(source, Source::Open | Source::Local), "{source}");
        slow.until_left(300).await;
        slow.proxy.set(Fault::None);
        soon("Redis answers", async || slow.service.ready().await.is_ok()).await;
        let _ = slow.service.commit(reserved.token().unwrap(), [100]).await;
        // The hold is cancelled, and the actual units are charged, at the latest when the units of the fallback are
        // reconciled.
        slow.until_left(900).await;
    }
}
