//! A gate in shadow mode allows every check, even if the limiter cannot decide the check.

use harness::Server;
use tidegate::{Decision, Gate, Limiter, Quota, Source, Switch};

use crate::support::fixture::{HOUR, builder};

const QUOTA: Quota = Quota::fixed_window(2, HOUR);

/// Returns a gate in shadow mode whose key `x` holds a value that tidegate never writes, and another gate.
async fn corrupt(server: &Server) -> (Limiter, Gate, Gate) {
    let limiter = builder(server.url()).build().unwrap();
    let (shadow, other) = (limiter.gate("shadow", QUOTA), limiter.gate("other", QUOTA));
    server.cli(&["SADD", &shadow.redis_key("x").unwrap(), "garbage"]).unwrap();
    assert!(shadow.check("x").await.unwrap_err().is_corrupt_state());
    limiter.control().switch("shadow", Switch::Shadow, None).await.unwrap();
    (limiter, shadow, other)
}

fn is_open(decision: &Decision) -> bool {
    decision.is_allowed() && decision.source() == Source::Open
}

#[tokio::test]
async fn an_error_of_a_gate_in_shadow_does_not_fail_the_group() {
    let server = Server::process(&[]).unwrap();
    let (limiter, shadow, other) = corrupt(&server).await;
    for remaining in [1, 0] {
        let all = limiter.check_all([other.key("x"), shadow.key("x")]).await.unwrap();
        assert!(all.is_allowed() && is_open(&all.decisions()[1]));
        assert_eq!((all.binding().gate(), all.binding().remaining()), ("other", remaining));
    }
    let all = limiter.check_all([shadow.key("x"), other.key("x")]).await.unwrap();
    assert_eq!((all.is_allowed(), all.binding().gate()), (false, "other"));
}

#[tokio::test]
async fn a_cost_above_the_limit_of_a_gate_in_shadow_does_not_fail_the_group() {
    let server = harness::shared();
    let limiter = builder(server.url()).build().unwrap();
    let (shadow, other) = (limiter.gate("shadow", QUOTA), limiter.gate("other", QUOTA));
    limiter.control().switch("shadow", Switch::Shadow, None).await.unwrap();
    let all = limiter.check_all([other.key("x"), shadow.key("x").cost(3)]).await.unwrap();
    assert!(all.is_allowed() && is_open(&all.decisions()[1]));
    assert_eq!(other.peek("x").await.unwrap().remaining(), 1);
}

#[tokio::test]
async fn an_error_of_a_gate_in_shadow_fails_no_check_of_it_alone() {
    let server = Server::process(&[]).unwrap();
    let (_limiter, shadow, _) = corrupt(&server).await;
    assert!(is_open(&shadow.check("x").await.unwrap()));
    assert!(is_open(&shadow.check_many(["x"]).await[0].clone().unwrap()));
    assert!(is_open(&shadow.peek("x").await.unwrap()));
}
