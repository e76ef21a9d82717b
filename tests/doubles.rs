//! Limiters that stand in for one, and what a limiter says when its Redis
//! cannot be asked.

use std::time::Duration;

use tidegate::{Decision, Double, Error, Limiter, OnFailure, Quota, Source};
use tokio::time::Instant;

use crate::support::fixture::{HOUR, builder, closed_port, quotas};

const DEADLINE: Duration = Duration::from_millis(100);
const QUOTA: Quota = Quota::fixed_window(5, HOUR);

async fn check_of(double: Double) -> Result<Decision, Error> {
    Limiter::double(double).gate("login", QUOTA).check("user:42").await
}

#[tokio::test]
async fn a_double_that_allows_lets_everything_pass() {
    let gate = Limiter::double(Double::Allow).gate("login", QUOTA);
    for _ in 0..10 {
        let decision = gate.check("user:42").await.unwrap();
        assert!(decision.is_allowed());
        assert_eq!((decision.source(), decision.limit(), decision.remaining()), (Source::Open, 5, 5));
    }
}

#[tokio::test]
async fn a_double_that_denies_lets_nothing_pass() {
    let decision = check_of(Double::Deny).await.unwrap();
    assert!(!decision.is_allowed() && decision.retry_after() > Duration::ZERO);
    assert_eq!((decision.source(), decision.limit(), decision.remaining()), (Source::Closed, 5, 0));
}

#[tokio::test]
async fn a_double_answers_alike_whatever_its_gates_would_do_without_redis() {
    for (double, allowed) in [(Double::Allow, true), (Double::Deny, false)] {
        let limiter = Limiter::double(double);
        limiter.ready().await.unwrap();
        for on_failure in [OnFailure::Error, OnFailure::Open, OnFailure::Closed] {
            let gate = limiter.gate("login", QUOTA).on_failure(on_failure);
            assert_eq!(gate.check("user:42").await.unwrap().is_allowed(), allowed);
            gate.reserve("user:42", 2).await.unwrap().commit(1).await.unwrap();
            gate.penalize("user:42", 1).await.unwrap();
            gate.block("user:42", HOUR).await.unwrap();
            gate.reset("user:42").await.unwrap();
        }
    }
}

#[tokio::test]
async fn after_shutdown_no_failure_policy_lets_anything_pass() {
    let limiter = Limiter::builder().in_memory().on_failure(OnFailure::Open).build().unwrap();
    let gate = limiter.gate("login", QUOTA);
    assert!(gate.check("user:42").await.unwrap().is_allowed());
    limiter.shutdown().await;
    assert!(gate.check("user:42").await.unwrap_err().is_shut_down());
    assert!(limiter.check_all([gate.ask("user:42")]).await.unwrap_err().is_shut_down());
    assert!(gate.refund("user:42", 1).await.unwrap_err().is_shut_down());
}

#[tokio::test]
async fn a_double_that_fails_is_unavailable_at_once() {
    let error = check_of(Double::Fail).await.unwrap_err();
    assert!(error.is_unavailable() && !error.is_timeout(), "{error}");
    assert!(Limiter::double(Double::Fail).ready().await.unwrap_err().is_unavailable());
}

#[tokio::test(start_paused = true)]
async fn a_double_that_hangs_does_so_until_the_deadline_exactly() {
    let limiter = Limiter::double(Double::Hang);
    let gate = limiter.gate("login", QUOTA);
    for own in [None, Some(Duration::from_millis(30)), Some(2 * HOUR)] {
        let ask = gate.ask("user:42");
        let start = Instant::now();
        let error = own.map_or(ask.clone(), |own| ask.deadline(own)).check().await.unwrap_err();
        assert!(error.is_timeout() && error.is_unavailable(), "{error}");
        // The runtime's timer counts in milliseconds, and rounds up.
        let (took, wanted) = (start.elapsed(), own.unwrap_or(DEADLINE));
        assert!(took >= wanted && took <= wanted + Duration::from_millis(1), "{took:?} for {wanted:?}");
    }
    let start = Instant::now();
    assert!(gate.refund("user:42", 1).await.unwrap_err().is_timeout());
    assert!(limiter.ready().await.unwrap_err().is_timeout());
    let both = [gate.ask("x"), gate.ask("y").deadline(DEADLINE / 2)];
    assert!(limiter.check_all(both).await.unwrap_err().is_timeout(), "the shortest deadline counts");
    let took = start.elapsed();
    assert!(took >= DEADLINE * 5 / 2 && took <= DEADLINE * 5 / 2 + Duration::from_millis(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gate_may_answer_for_a_double_that_hangs() {
    let gate = Limiter::double(Double::Hang).gate("login", QUOTA).on_failure(OnFailure::Closed);
    assert_eq!(gate.check("user:42").await.unwrap().source(), Source::Closed);
}

#[tokio::test]
async fn an_unreachable_redis_is_answered_as_chosen() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    for (name, quota) in quotas(5, HOUR) {
        for chosen in [OnFailure::Error, OnFailure::Open, OnFailure::Closed] {
            let by_limiter = builder(&url).on_failure(chosen).build().unwrap();
            let by_gate = builder(&url).on_failure(OnFailure::Closed).build().unwrap();
            for (limiter, gate) in [
                (&by_limiter, by_limiter.gate(name, quota)),
                (&by_gate, by_gate.gate(name, quota).on_failure(chosen)),
            ] {
                let decisions = [
                    gate.check("x").await,
                    gate.check_cost("x", 5).await,
                    gate.peek("x").await,
                    gate.check_many(["x"]).await.remove(0),
                    limiter.check_all([gate.ask("x"), gate.ask("y")]).await.map(|all| all.binding().clone()),
                    gate.reserve("x", 3).await.map(|reservation| reservation.decision().clone()),
                    gate.until_allowed("x", Duration::ZERO).await,
                ];
                for decision in decisions {
                    match (chosen, decision) {
                        (OnFailure::Error, Err(error)) => assert!(error.is_unavailable(), "{error}"),
                        (OnFailure::Open, Ok(decision)) => {
                            assert_eq!((decision.is_allowed(), decision.source()), (true, Source::Open));
                            assert_eq!((decision.limit(), decision.remaining()), (5, 5));
                        }
                        (OnFailure::Closed, Ok(decision)) => {
                            assert_eq!((decision.is_allowed(), decision.source()), (false, Source::Closed));
                            assert_eq!((decision.limit(), decision.remaining()), (5, 0));
                            assert_eq!(decision.retry_after(), Duration::from_secs(1));
                        }
                        (chosen, other) => panic!("{chosen:?}: {other:?}"),
                    }
                }
                assert!(gate.refund("x", 1).await.unwrap_err().is_unavailable(), "a write has no answer");
                let over = gate.check_cost("x", 6).await.unwrap_err();
                assert!(
                    over.is_over_capacity(),
                    "what can never pass is an error whatever is chosen: {over}"
                );
            }
        }
    }
}

#[tokio::test]
async fn each_gate_of_a_group_answers_as_chosen_for_it() {
    let limiter = builder(&format!("redis://127.0.0.1:{}", closed_port())).build().unwrap();
    let [error, open, closed] = [OnFailure::Error, OnFailure::Open, OnFailure::Closed]
        .map(|chosen| limiter.gate("login", QUOTA).on_failure(chosen));
    assert!(limiter.check_all([open.ask("x"), error.ask("y")]).await.unwrap_err().is_unavailable());
    let all = limiter.check_all([open.ask("x"), closed.ask("y")]).await.unwrap();
    assert!(!all.is_allowed());
    assert_eq!(all.binding().source(), Source::Closed);
    assert!(limiter.check_all([open.ask("x"), open.ask("y")]).await.unwrap().is_allowed());
}

#[tokio::test]
async fn what_was_let_pass_without_redis_is_not_given_back_to_it() {
    let server = harness::shared();
    let mut reservations = Vec::new();
    for (url, chosen) in [
        (server.url().to_owned(), OnFailure::Error),
        (format!("redis://127.0.0.1:{}", closed_port()), OnFailure::Open),
    ] {
        let gate = builder(&url).on_failure(chosen).build().unwrap().gate("login", QUOTA);
        reservations.push((gate.clone(), gate.reserve("x", 3).await.unwrap()));
    }
    let (_, open) = reservations.pop().unwrap();
    open.cancel().await.expect("nothing was taken, so nothing is sent");
    let (gate, taken) = reservations.pop().unwrap();
    taken.cancel().await.unwrap();
    assert_eq!(gate.peek("x").await.unwrap().remaining(), 5);
}
