//! Settles while Redis is away are repeated in the background.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::poll;
use tidegate::{Event, Gate, Limiter, Observer, Quota, Settlement, Token};
use tidegate_testkit::{Fault, Proxy, Server};

use crate::support::fixture::{HOUR, builder, builder_as_is, namespace, soon};

/// The events about settles, in order.
#[derive(Default)]
struct Events(Mutex<Vec<String>>);

impl Events {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, event: &str) -> usize {
        self.all().iter().filter(|known| known.contains(event)).count()
    }
}

impl Observer for Events {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Settled { gate, settlement } => {
                self.0.lock().unwrap().push(format!("{gate} {settlement}"));
            }
            Event::Failed { gate, error } => {
                self.0.lock().unwrap().push(format!("{gate} failed: {error}"));
            }
            _ => {}
        }
    }
}

/// A service whose connection to Redis can be cut, and a gate of a limiter that always reaches Redis.
struct Outage {
    proxy: Proxy,
    service: Limiter,
    budget: Gate,
    observed: Gate,
    events: Arc<Events>,
    _server: Arc<Server>,
}

impl Outage {
    fn new() -> Self {
        Self::with_limit(1_000)
    }

    fn with_limit(limit: u64) -> Self {
        let server = tidegate_testkit::shared();
        let proxy = Proxy::start(server.url()).unwrap();
        let (namespace, events) = (namespace(), Arc::new(Events::default()));
        let service = builder_as_is(&proxy.url()).namespace(&namespace).observer(events.clone());
        let service = service.deadline(Duration::from_secs(2)).instances(1).build().unwrap();
        let quota = Quota::fixed_window(limit, 24 * HOUR);
        let budget = service.gate("budget", quota);
        let observed = builder(server.url()).namespace(&namespace).build().unwrap().gate("budget", quota);
        Self { proxy, service, budget, observed, events, _server: server }
    }

    /// Reserves 700 units while Redis answers.
    async fn reserve(&self, ttl: Duration) -> Token {
        self.reserve_units(700, ttl).await
    }

    async fn reserve_units(&self, units: u64, ttl: Duration) -> Token {
        // On a busy machine, a check may time out: then the fallback decides.
        loop {
            let checks = [self.budget.key("acme").cost(units)];
            let reserved = self.service.reserve(checks).ttl(ttl).await.unwrap();
            if reserved.decision().binding().source() == tidegate::Source::Redis {
                return reserved.token().unwrap().clone();
            }
            self.service.cancel(reserved.token().unwrap()).await.unwrap();
        }
    }

    fn begin(&self) {
        self.proxy.set(Fault::Refuse);
    }

    fn end(&self) {
        self.proxy.set(Fault::None);
    }

    async fn left(&self) -> u64 {
        self.observed.peek("acme").await.unwrap().remaining()
    }

    async fn until_left(&self, expected: u64) {
        soon(&format!("{expected} left"), async || self.left().await == expected).await;
    }
}

#[tokio::test]
async fn commit_during_an_outage_takes_effect_when_redis_is_back() {
    let outage = Outage::new();
    let token = outage.reserve(HOUR).await;
    outage.begin();
    assert_eq!(outage.service.commit(&token, [100]).await.unwrap(), [Settlement::Queued]);
    assert_eq!(outage.left().await, 300);
    outage.end();
    outage.until_left(900).await;
    soon("it is reported", async || outage.events.count("budget settled") == 1).await;
    assert_eq!(outage.events.count("budget queued"), 1, "{:?}", outage.events.all());
    assert_eq!(outage.service.commit(&token, [0]).await.unwrap(), [Settlement::Nothing]);
}

#[tokio::test]
async fn commit_whose_future_is_dropped_takes_effect() {
    let outage = Outage::new();
    let token = outage.reserve(HOUR).await;
    outage.proxy.set(Fault::BlackHole);
    {
        let mut commit = std::pin::pin!(outage.service.commit(&token, [100]));
        assert!(poll!(commit.as_mut()).is_pending());
    }
    outage.end();
    outage.until_left(900).await;
}

#[tokio::test]
async fn shutdown_sends_the_queued_settles() {
    let outage = Outage::new();
    let token = outage.reserve(HOUR).await;
    outage.begin();
    assert_eq!(outage.service.commit(&token, [100]).await.unwrap(), [Settlement::Queued]);
    outage.end();
    outage.service.shutdown().await;
    outage.until_left(900).await;
    assert!(outage.service.commit(&token, [100]).await.unwrap_err().is_shut_down());
}

#[tokio::test]
async fn shutdown_reports_settles_that_redis_did_not_answer() {
    let outage = Outage::new();
    let token = outage.reserve(HOUR).await;
    outage.begin();
    assert_eq!(outage.service.commit(&token, [100]).await.unwrap(), [Settlement::Queued]);
    outage.service.shutdown().await;
    assert_eq!(outage.events.count("its hold ends after its ttl"), 1, "{:?}", outage.events.all());
    assert_eq!(outage.left().await, 300);
}

#[tokio::test]
async fn settle_is_abandoned_when_its_hold_has_ended() {
    let outage = Outage::new();
    let token = outage.reserve(Duration::from_secs(1)).await;
    outage.begin();
    assert_eq!(outage.service.commit(&token, [100]).await.unwrap(), [Settlement::Queued]);
    soon("it is abandoned", async || outage.events.count("its hold ends after its ttl") == 1).await;
    outage.end();
    assert_eq!(outage.left().await, 300);
}

#[tokio::test]
async fn repeated_settles_wait_once() {
    let outage = Outage::new();
    let token = outage.reserve(HOUR).await;
    outage.begin();
    for actual in [100, 200, 300] {
        assert_eq!(outage.service.commit(&token, [actual]).await.unwrap(), [Settlement::Queued]);
    }
    outage.end();
    outage.until_left(900).await;
    soon("it is reported", async || outage.events.count("budget settled") == 1).await;
    // Another call of the hold would be sent in the same round, and find nothing.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(outage.events.count("budget nothing"), 0, "{:?}", outage.events.all());
}

#[tokio::test]
async fn full_queue_is_an_error() {
    const ROOM: usize = 8_192;
    let outage = Outage::with_limit(10_000);
    let mut tokens = Vec::with_capacity(ROOM + 1);
    while tokens.len() <= ROOM {
        let reserved = (0..128).map(|_| outage.reserve_units(1, HOUR));
        tokens.extend(futures_util::future::join_all(reserved).await);
    }
    outage.begin();
    // The first ones open the circuit breaker, so that the others return at once.
    for (number, token) in tokens[..ROOM].iter().enumerate() {
        assert_eq!(outage.service.commit(token, [0]).await.unwrap(), [Settlement::Queued], "{number}");
    }
    let error = outage.service.commit(&tokens[ROOM], [0]).await.unwrap_err();
    assert!(error.is_unavailable() && error.gate() == Some("budget"), "{error}");
    assert!(error.to_string().contains("8192 settles"), "{error}");
    outage.end();
    soon("the queue has room", async || outage.events.count("budget settled") == ROOM).await;
    outage.until_left(10_000 - (tokens.len() - ROOM) as u64).await;
}
