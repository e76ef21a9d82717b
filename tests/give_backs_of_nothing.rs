//! A refund of 0 units does not change the key, and a cancel does not if none of its units count any more.

use std::time::Duration;

use tidegate::{Gate, Limiter};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, builder, quotas};
use crate::support::world::START;

const KEY: &str = "user:42";

/// Returns pairs of gates that keep their state in one key, under two versions of a quota.
fn two_versions(limiter: &Limiter) -> Vec<[Gate; 2]> {
    let [one, other] = [5, 7].map(|limit| quotas(limit, HOUR));
    one.into_iter()
        .zip(other)
        .map(|((name, a), (_, b))| [a, b].map(|quota| limiter.gate(name, quota)))
        .collect()
}

fn micros(since_start: Duration) -> u64 {
    u64::try_from((START + since_start).as_micros()).unwrap()
}

/// Returns the value of the key and its expiry.
fn stored_state(server: &Server, gate: &Gate) -> [String; 2] {
    let key = gate.redis_key(KEY).unwrap();
    ["DUMP", "PEXPIRETIME"].map(|command| server.cli(&[command, &key]).unwrap())
}

fn set_up() -> (Server, Limiter) {
    let server = Server::with_shiftable_clock().unwrap();
    server.freeze_clock(micros(Duration::ZERO));
    let limiter = builder(server.url()).deny_cache(Duration::ZERO).build().unwrap();
    (server, limiter)
}

#[tokio::test]
async fn refund_of_0_units_writes_nothing() {
    let (server, limiter) = set_up();
    for [gate, other_version] in two_versions(&limiter) {
        other_version.refund(KEY, 0).await.unwrap();
        assert_eq!(stored_state(&server, &gate)[1], "(integer) -2", "{gate:?}: no key is created");
        assert!(gate.check_cost(KEY, 3).await.unwrap().is_allowed());
        let before = stored_state(&server, &gate);
        server.freeze_clock(micros(HOUR / 100));
        other_version.refund(KEY, 0).await.unwrap();
        assert_eq!(stored_state(&server, &gate), before, "{gate:?}");
        server.freeze_clock(micros(Duration::ZERO));
    }
}

#[tokio::test]
async fn cancel_of_units_that_no_longer_count_writes_nothing() {
    let (server, limiter) = set_up();
    for [gate, other_version] in two_versions(&limiter) {
        server.freeze_clock(micros(Duration::ZERO));
        let reservation = gate.reserve(KEY, 2).await.unwrap();
        assert!(reservation.decision().is_allowed());
        server.freeze_clock(micros(3 * HOUR));
        assert!(other_version.check_cost(KEY, 3).await.unwrap().is_allowed());
        let before = stored_state(&server, &gate);
        server.freeze_clock(micros(3 * HOUR + HOUR / 100));
        reservation.cancel().await.unwrap();
        assert_eq!(stored_state(&server, &gate), before, "{gate:?}");
    }
}
