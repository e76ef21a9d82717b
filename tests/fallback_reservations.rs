//! A reservation that the fallback admitted is charged to Redis exactly once, however and whenever it is
//! settled.

use std::time::Duration;

use tidegate::{Gate, Limiter, Quota, Reservation, Source};
use tidegate_testkit::{Fault, Proxy, Server};

use crate::support::fixture::{builder, builder_as_is, namespace, quotas, soon};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A service whose connection to Redis can be cut, and a limiter that always reaches Redis.
struct Outage {
    proxy: Proxy,
    service: Limiter,
    observer: Limiter,
    _server: Server,
}

impl Outage {
    fn new() -> Self {
        let server = Server::process(&[]).unwrap();
        let proxy = Proxy::start(server.url()).unwrap();
        let namespace = namespace();
        let service = builder_as_is(&proxy.url()).namespace(&namespace).instances(2).build().unwrap();
        let observer = builder(server.url()).namespace(&namespace).build().unwrap();
        Self { proxy, service, observer, _server: server }
    }

    fn begin(&self) {
        self.proxy.set(Fault::Refuse);
    }

    fn end(&self) {
        self.proxy.set(Fault::None);
    }

    /// Returns, for each algorithm, the gate of the service and that of the observer.
    fn gates(&self) -> impl Iterator<Item = (Gate, Gate, Quota)> {
        let gates = |(name, quota)| (self.service.gate(name, quota), self.observer.gate(name, quota), quota);
        quotas(20, DAY).into_iter().map(gates)
    }

    /// Reserves ten units, which are the whole share, for each algorithm.
    async fn reserve(&self, key: &str) -> Vec<Reservation> {
        let mut reservations = Vec::new();
        for (gate, _, quota) in self.gates() {
            let reservation = gate.reserve(key, 10).await.unwrap();
            let decision = reservation.decision();
            assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Local), "{quota}");
            reservations.push(reservation);
        }
        reservations
    }

    /// Waits until Redis reports this many units of the key as used, for each algorithm.
    async fn until_used(&self, key: &str, expected: u64) {
        for (_, observer, quota) in self.gates() {
            soon(&format!("{quota}: {expected} used"), async || used(&observer, key).await == expected).await;
        }
    }

    async fn assert_used(&self, key: &str, expected: u64) {
        for (_, observer, quota) in self.gates() {
            assert_eq!(used(&observer, key).await, expected, "{quota}");
        }
    }
}

async fn used(gate: &Gate, key: &str) -> u64 {
    let peeked = gate.peek(key).await.unwrap();
    peeked.limit() - peeked.remaining()
}

#[tokio::test]
async fn a_local_reservation_that_is_committed_after_redis_is_back_is_charged_once() {
    let outage = Outage::new();
    outage.begin();
    let reservations = outage.reserve("key").await;
    outage.end();
    outage.until_used("key", 10).await;
    for reservation in reservations {
        reservation.commit(10).await.unwrap();
    }
    outage.assert_used("key", 10).await;
}

#[tokio::test]
async fn a_local_reservation_that_was_charged_to_redis_is_settled_there() {
    let outage = Outage::new();
    for (key, actual) in [("less", 4), ("more", 12), ("nothing", 0)] {
        outage.begin();
        let reservations = outage.reserve(key).await;
        outage.end();
        outage.until_used(key, 10).await;
        for reservation in reservations {
            match actual {
                0 => reservation.cancel().await.unwrap(),
                _ => reservation.commit(actual).await.unwrap(),
            }
        }
        outage.until_used(key, actual).await;
    }
}

/// The fallback has not sent anything to Redis yet, so it has nothing to refund there.
#[tokio::test]
async fn a_local_reservation_that_is_settled_during_the_outage_needs_no_redis() {
    let outage = Outage::new();
    outage.begin();
    let others = outage.reserve("other").await;
    let (less, nothing) = (outage.reserve("less").await, outage.reserve("nothing").await);
    for reservation in less {
        reservation.commit(4).await.unwrap();
    }
    for reservation in nothing {
        reservation.cancel().await.unwrap();
    }
    for (gate, _, quota) in outage.gates() {
        assert_eq!(gate.peek("less").await.unwrap().remaining(), 6, "{quota}: of the share");
        assert_eq!(gate.peek("nothing").await.unwrap().remaining(), 10, "{quota}: of the share");
    }
    drop(others);
    outage.end();
    outage.until_used("other", 10).await;
    outage.until_used("less", 4).await;
    outage.assert_used("nothing", 0).await;
}

/// Also those above the share, and above the limit.
#[tokio::test]
async fn units_above_a_reservation_that_are_committed_during_the_outage_are_charged_once() {
    let outage = Outage::new();
    let mut of_redis = Vec::new();
    for (gate, _, quota) in outage.gates() {
        let reservation = gate.reserve("of Redis", 4).await.unwrap();
        assert_eq!(reservation.decision().source(), Source::Redis, "{quota}");
        of_redis.push(reservation);
    }
    outage.begin();
    let (more, most) = (outage.reserve("more").await, outage.reserve("most").await);
    for (reservations, actual) in [(of_redis, 9), (more, 13), (most, 25)] {
        for reservation in reservations {
            reservation.commit(actual).await.unwrap();
        }
    }
    for (gate, _, quota) in outage.gates() {
        assert!(!gate.check("more").await.unwrap().is_allowed(), "{quota}: the share is used");
    }
    outage.end();
    for (key, used) in [("of Redis", 9), ("more", 13), ("most", 20)] {
        outage.until_used(key, used).await;
    }
    for (_, observer, quota) in outage.gates() {
        observer.refund("most", 6).await.unwrap();
        assert_eq!(used(&observer, "most").await, 19, "{quota}: five were debt");
    }
}

/// The proxy delays replies: Redis has charged the units, but the process does not know it yet.
#[tokio::test]
async fn a_local_reservation_that_is_settled_while_its_charge_is_in_flight_is_charged_once() {
    let outage = Outage::new();
    outage.begin();
    let reservations = outage.reserve("key").await;
    outage.proxy.set(Fault::Slow(Duration::from_millis(300)));
    outage.until_used("key", 10).await;
    for reservation in reservations {
        reservation.commit(4).await.unwrap();
    }
    outage.until_used("key", 4).await;
}

/// A reservation of the first outage must not be refunded from the units of the second.
#[tokio::test]
async fn a_local_reservation_of_an_earlier_outage_is_not_settled_from_a_later_one() {
    let outage = Outage::new();
    outage.begin();
    let first = outage.reserve("key").await;
    outage.end();
    outage.until_used("key", 10).await;
    for (gate, _, quota) in outage.gates() {
        let peek = async || gate.peek("key").await.unwrap().source() == Source::Redis;
        soon(&format!("{quota}: Redis decides"), peek).await;
    }
    outage.begin();
    for reservation in first {
        assert!(reservation.cancel().await.unwrap_err().is_unavailable(), "the units stay charged");
    }
    outage.end();
    outage.assert_used("key", 10).await;
}
