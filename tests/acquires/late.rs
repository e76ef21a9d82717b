//! Messages that reach Redis after everyone has given them up, and what an outage leaves behind.

use std::time::{Duration, Instant};

use tidegate::{OnFailure, Quota};
use tidegate_testkit::{Fault, Proxy, Server};

use super::{TTL, remaining};
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{PATIENCE, Paused, builder, calls, soon};

const DEADLINE: Duration = Duration::from_millis(100);

/// Longer than the delay of a late message, so that the lease does not refuse it.
const LONG_TTL: Duration = Duration::from_secs(20);

/// Returns a limiter that makes no calls but those for permits, in a namespace that all limiters of a test share.
fn connect(url: &str, ttl: Duration) -> tidegate::Builder {
    let builder = builder(url).namespace("late").follow_overrides(false).instances(1).publish_figures(false);
    builder.deadline(DEADLINE).permit_ttl(ttl)
}

#[tokio::test]
async fn acquire_that_arrives_after_its_caller_gave_up_holds_nothing() {
    const LATE: Duration = Duration::from_secs(1);
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let gate = connect(&proxy.url(), LONG_TTL).build().unwrap().gate("gate", Quota::in_flight(1));
    let other =
        connect(server.url(), TTL).deadline(PATIENCE).build().unwrap().gate("gate", Quota::in_flight(1));
    soon("the process is connected", async || gate.try_acquire("other key").await.is_ok()).await;
    let evals = || calls(&server, "evalsha") + calls(&server, "eval");
    proxy.set(Fault::Late(LATE));
    let sent = Instant::now();
    assert!(gate.acquire("x").await.unwrap_err().is_timeout());
    proxy.set(Fault::None);
    // A newer acquire and its release remove the key from Redis and from the process.
    soon("another message is answered", async || {
        let permit = gate.try_acquire("x").await.ok().and_then(AcquiredParts::permit);
        match permit {
            Some(permit) => permit.release().await.is_ok(),
            None => false,
        }
    })
    .await;
    assert!(sent.elapsed() < LATE, "too slow to show anything: {:?}", sent.elapsed());
    let before = evals();
    soon("the late message has arrived", async || evals() > before).await;
    assert_eq!(remaining(&other, "x").await, 1, "a unit without an owner is counted");
}

#[tokio::test]
async fn outage_longer_than_a_lease_leaves_no_key_and_no_lease() {
    const KEYS: usize = 300;
    let server = Server::process(&[]).unwrap();
    let limiter = connect(server.url(), TTL).on_failure(OnFailure::Open).breaker(true).build().unwrap();
    let gate = limiter.gate("gate", Quota::in_flight(1));
    soon("the process is connected", async || gate.try_acquire("x").await.is_ok_and(|it| it.is_allowed()))
        .await;
    {
        let _paused = Paused::new(&server);
        let started = Instant::now();
        while started.elapsed() < 2 * TTL {
            for key in 0..KEYS {
                drop(gate.acquire(key.to_string()).await);
            }
        }
    }
    soon("the process decides", async || gate.try_acquire("x").await.is_ok_and(|it| it.is_allowed())).await;
    tokio::time::sleep(4 * TTL).await;
    assert_eq!(server.cli(&["ZCARD", "late:1:holders"]).unwrap(), "(integer) 0");
    let before = calls(&server, "evalsha");
    tokio::time::sleep(2 * TTL).await;
    assert_eq!(calls(&server, "evalsha"), before, "an idle process renews a lease");
}
