//! Reservations while Redis is away: the failure policy decides, and the token says so.

use std::sync::Arc;
use std::time::Duration;

use futures_util::poll;
use tidegate::{Gate, HeldReservation, Limiter, OnFailure, Quota, Settlement, Source};
use tidegate_testkit::{Fault, Proxy, Server};

use crate::support::fixture::{builder, builder_as_is, namespace, soon};

const SECRET: [u8; 32] = [3; 32];
const QUOTA: Quota = Quota::fixed_window(1_000, Duration::from_secs(24 * 3_600));

struct Outage {
    proxy: Proxy,
    service: Limiter,
    budget: Gate,
    /// Another process, which always reaches Redis.
    other: Limiter,
    observed: Gate,
    namespace: String,
    server: Arc<Server>,
}

impl Outage {
    /// Starts during an outage.
    fn new(on_failure: OnFailure) -> Self {
        let server = tidegate_testkit::shared();
        let proxy = Proxy::start(server.url()).unwrap();
        proxy.set(Fault::Refuse);
        let namespace = namespace();
        let service = builder_as_is(&proxy.url()).namespace(&namespace).on_failure(on_failure);
        let service = service.reservation_secret(SECRET);
        let service = service.deadline(Duration::from_secs(2)).instances(2).build().unwrap();
        let budget = service.gate("budget", QUOTA);
        let other = builder(server.url()).namespace(&namespace).reservation_secret(SECRET).build().unwrap();
        let observed = other.gate("budget", QUOTA);
        Self { proxy, service, budget, other, observed, namespace, server }
    }

    async fn reserve(&self, units: u64) -> HeldReservation {
        self.service.reserve([self.budget.key("acme").cost(units)]).await.unwrap()
    }

    async fn end(&self) {
        self.proxy.set(Fault::None);
        soon("Redis answers", async || self.service.ready().await.is_ok()).await;
    }

    async fn until_used(&self, expected: u64) {
        let used = async || 1_000 - self.observed.peek("acme").await.unwrap().remaining();
        soon(&format!("{expected} used"), async || used().await == expected).await;
    }
}

#[tokio::test]
async fn local_reservation_is_limited_to_the_share_and_charged_its_actual_units_once() {
    let outage = Outage::new(OnFailure::Local);
    let reserved = outage.reserve(400).await;
    assert_eq!(reserved.decision().binding().source(), Source::Local);
    assert!(!outage.reserve(200).await.is_allowed(), "the share is 500");
    let token = reserved.token().unwrap();
    outage.end().await;
    outage.until_used(400).await;
    assert_eq!(outage.service.commit(token, [120]).await.unwrap(), [Settlement::Settled]);
    outage.until_used(120).await;
    assert_eq!(outage.service.commit(token, [0]).await.unwrap(), [Settlement::Nothing]);
    outage.until_used(120).await;
}

#[tokio::test]
async fn local_reservation_settled_during_the_outage_frees_its_share() {
    let outage = Outage::new(OnFailure::Local);
    let reserved = outage.reserve(500).await;
    let settled = outage.service.commit(reserved.token().unwrap(), [100]).await.unwrap();
    assert_eq!(settled, [Settlement::Settled]);
    assert!(outage.reserve(400).await.is_allowed());
    assert!(!outage.reserve(1).await.is_allowed());
    outage.end().await;
    outage.until_used(500).await;
}

/// Another process cannot know whether the units were reconciled by now, so it returns none.
#[tokio::test]
async fn another_process_charges_only_what_exceeds_a_local_reservation() {
    let outage = Outage::new(OnFailure::Local);
    let (less, more) = (outage.reserve(100).await, outage.reserve(100).await);
    outage.end().await;
    outage.until_used(200).await;
    assert_eq!(outage.other.commit(less.token().unwrap(), [10]).await.unwrap(), [Settlement::Settled]);
    assert_eq!(outage.other.commit(more.token().unwrap(), [130]).await.unwrap(), [Settlement::Settled]);
    outage.until_used(230).await;
}

#[tokio::test]
async fn open_policy_charges_nothing_until_the_commit() {
    let outage = Outage::new(OnFailure::Open);
    let reserved = outage.reserve(900).await;
    assert_eq!(reserved.decision().binding().source(), Source::Open);
    outage.end().await;
    outage.until_used(0).await;
    assert_eq!(outage.service.commit(reserved.token().unwrap(), [120]).await.unwrap(), [Settlement::Settled]);
    assert_eq!(outage.service.commit(reserved.token().unwrap(), [120]).await.unwrap(), [Settlement::Nothing]);
    outage.until_used(120).await;
    let error = outage.other.commit(reserved.token().unwrap(), []).await.unwrap_err();
    assert!(error.is_config(), "{error}");
}

#[tokio::test]
async fn closed_policy_denies_and_error_policy_is_an_error() {
    let outage = Outage::new(OnFailure::Closed);
    let reserved = outage.reserve(1).await;
    assert!(!reserved.is_allowed() && reserved.token().is_none());
    let outage = Outage::new(OnFailure::Error);
    let error = outage.service.reserve([outage.budget.key("acme")]).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
}

#[tokio::test]
async fn commit_without_a_hold_goes_on_after_its_future_is_dropped() {
    let outage = Outage::new(OnFailure::Open);
    let reserved = outage.reserve(900).await;
    outage.end().await;
    {
        let mut commit = std::pin::pin!(outage.service.commit(reserved.token().unwrap(), [120]));
        assert!(poll!(commit.as_mut()).is_pending());
    }
    outage.until_used(120).await;
}

#[tokio::test]
async fn commit_without_a_hold_that_failed_can_be_repeated() {
    let outage = Outage::new(OnFailure::Local);
    let reserved = outage.reserve(400).await;
    let token = reserved.token().unwrap();
    outage.end().await;
    outage.until_used(400).await;
    // Redis has been charged and this process knows it, so the refund needs Redis.
    soon("reconciled", async || format!("{:?}", outage.service).contains("keys: 0")).await;
    outage.proxy.set(Fault::Refuse);
    soon("the circuit is open", async || {
        let _ = outage.budget.peek("acme").await.unwrap();
        outage.service.health().await.breaker_open_for().is_some()
    })
    .await;
    assert!(outage.service.commit(token, [120]).await.unwrap_err().is_unavailable());
    outage.end().await;
    assert_eq!(outage.service.commit(token, [120]).await.unwrap(), [Settlement::Settled]);
    outage.until_used(120).await;
}

#[tokio::test]
async fn commit_without_a_hold_during_the_outage_is_charged_after_it() {
    let outage = Outage::new(OnFailure::Open);
    let reserved = outage.reserve(900).await;
    let token = reserved.token().unwrap();
    assert_eq!(outage.service.commit(token, [120]).await.unwrap(), [Settlement::Settled]);
    assert_eq!(outage.service.commit(token, [120]).await.unwrap(), [Settlement::Nothing]);
    outage.end().await;
    outage.until_used(120).await;
}

#[tokio::test]
async fn unsigned_token_without_a_hold_changes_nothing_in_another_process() {
    let outage = Outage::new(OnFailure::Open);
    let forger = Limiter::builder().url("redis://127.0.0.1:1").namespace(&outage.namespace);
    let forger = forger.on_failure(OnFailure::Open).build().unwrap();
    let forged = forger.reserve([forger.gate("budget", QUOTA).key("acme").cost(900)]).await.unwrap();
    let unsigned = builder(outage.server.url()).namespace(&outage.namespace).build().unwrap();
    assert_eq!(unsigned.commit(forged.token().unwrap(), [900]).await.unwrap(), [Settlement::Nothing]);
    outage.until_used(0).await;
    assert!(outage.other.commit(forged.token().unwrap(), [900]).await.unwrap_err().is_config());
}
