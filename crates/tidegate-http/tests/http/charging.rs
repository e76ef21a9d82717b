//! Charges that depend on the response.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use tidegate::{Gate, Limiter, Quota};
use tidegate_http::{Abandoned, Charge, GateRule, Key, RateLimitLayer};
use tidegate_testkit::Server;
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

use super::fixture::{Tested, by_key, request};
use crate::support::fixture::{HOUR, limiter, quotas, soon};

/// Returns a service that replies with the status of the query, and with its cost in `x-cost`.
fn service_from_query(layer: RateLimitLayer) -> Tested {
    Tested::with(layer, |request: Request<String>| {
        let (status, cost) = request.uri().query().unwrap().split_once(',').unwrap();
        let response = Response::builder().status(status).header("x-cost", cost);
        std::future::ready(response.body(String::new()).unwrap())
    })
}

async fn get(tested: &Tested, query: &str) -> super::fixture::Reply {
    tested
        .send(Request::get(format!("/?{query}")).header("x-api-key", "a").body(String::new()).unwrap())
        .await
}

async fn remaining(gate: &Gate) -> u64 {
    gate.peek("a").await.unwrap().remaining()
}

/// Returns a limiter for each store. The server lives as long as the first value.
fn limiters() -> (std::sync::Arc<Server>, [Limiter; 2]) {
    let server = tidegate_testkit::shared();
    let redis = limiter(&server);
    (server, [Limiter::in_memory(), redis])
}

#[tokio::test]
async fn only_matching_responses_are_charged() {
    let (_server, limiters) = limiters();
    for limiter in limiters {
        for (name, quota) in quotas(3, 100 * HOUR) {
            let gate = limiter.gate(name, quota);
            let failures = Charge::when(|response| response.status == StatusCode::UNAUTHORIZED);
            let tested = service_from_query(
                RateLimitLayer::new(gate.clone(), by_key()).charge(failures).wait(Duration::from_nanos(1), 1),
            );
            for (status, left) in [("200", 3), ("401", 2), ("200", 2), ("200", 2), ("401", 1)] {
                let reply = get(&tested, &format!("{status},0")).await;
                assert_eq!(reply.status.as_str(), status, "{quota}");
                // The gate admits no second request without a delay.
                if quota.has_queue() {
                    gate.reset("a").await.unwrap();
                    continue;
                }
                assert_eq!(remaining(&gate).await, left, "{quota} after {status}");
                assert_eq!(reply.number("x-ratelimit-remaining"), left, "the headers show the final state");
                assert_eq!(reply.limits()[0].remaining, i64::try_from(left).unwrap());
            }
        }
    }
}

#[tokio::test]
async fn login_is_denied_after_too_many_failures() {
    let (_server, limiters) = limiters();
    for limiter in limiters {
        let gate = limiter.gate("login", Quota::fixed_window(2, HOUR));
        let failures = Charge::when(|response| response.status == StatusCode::UNAUTHORIZED);
        let tested = service_from_query(RateLimitLayer::new(gate, by_key()).charge(failures));
        for status in ["200", "401", "200", "401"] {
            assert_eq!(get(&tested, &format!("{status},0")).await.status.as_str(), status);
        }
        assert_eq!(get(&tested, "200,0").await.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(tested.calls(), 4);
    }
}

#[tokio::test]
async fn units_from_the_response_are_charged() {
    let (_server, limiters) = limiters();
    for limiter in limiters {
        let gate = limiter.gate("tokens", Quota::fixed_window(100, HOUR));
        let reported_cost = Charge::units(|response| response.headers["x-cost"].to_str().ok()?.parse().ok());
        let tested = service_from_query(
            RateLimitLayer::new(gate.clone(), by_key()).cost(|_| 10).charge(reported_cost),
        );
        for (cost, left) in [("3", 97), ("10", 87), ("27", 60), ("0", 60), ("unknown", 50), ("45", 5)] {
            let reply = get(&tested, &format!("200,{cost}")).await;
            assert_eq!(reply.number("x-ratelimit-remaining"), left, "{cost}");
            assert_eq!(remaining(&gate).await, left, "{cost}");
        }
        assert_eq!(
            get(&tested, "200,1").await.status,
            StatusCode::TOO_MANY_REQUESTS,
            "the check costs 10 units"
        );
        assert_eq!(remaining(&gate).await, 5);
    }
}

#[tokio::test]
async fn each_gate_is_charged_by_its_own_rule() {
    let (_server, limiters) = limiters();
    for limiter in limiters {
        let gate = |name| limiter.gate(name, Quota::fixed_window(100, HOUR));
        let (requests, failures, units, ours) =
            (gate("requests"), gate("failures"), gate("units"), gate("ours"));
        let layer = RateLimitLayer::of([
            GateRule::new(requests.clone(), by_key()).charge(Charge::always()),
            GateRule::new(failures.clone(), by_key())
                .charge(Charge::when(|response| response.status == StatusCode::UNAUTHORIZED)),
            GateRule::new(units.clone(), by_key())
                .cost(|_| 5)
                .charge(Charge::units(|response| response.headers["x-cost"].to_str().ok()?.parse().ok())),
            GateRule::new(ours.clone(), by_key()),
        ]);
        let tested =
            service_from_query(layer.charge(Charge::when(|response| !response.status.is_server_error())));
        for query in ["200,7", "401,0", "500,1"] {
            get(&tested, query).await;
        }
        let left = [&requests, &failures, &units, &ours].map(remaining);
        assert_eq!(futures_util::future::join_all(left).await, [97, 99, 92, 98]);
    }
}

#[tokio::test]
async fn service_error_is_charged_as_configured() {
    let (_server, limiters) = limiters();
    for limiter in limiters {
        for (name, charge, left) in [
            ("always", Charge::always(), 8),
            ("when", Charge::when(|_| true), 10),
            ("units", Charge::units(|_| Some(1)), 8),
        ] {
            let gate = limiter.gate(name, Quota::fixed_window(10, HOUR));
            let failing =
                service_fn(|_: Request<String>| async { Err::<Response<String>, _>("no response") });
            let layer = RateLimitLayer::new(gate.clone(), by_key()).cost(|_| 2).charge(charge);
            assert_eq!(layer.layer(failing).oneshot(request("a")).await.unwrap_err(), "no response");
            assert_eq!(remaining(&gate).await, left, "{name}");
        }
    }
}

/// Sends a request whose handler never returns, and drops it once the handler runs.
async fn abandoned(gate: &Gate, charge: Charge) {
    static ENTERED: Notify = Notify::const_new();
    let layer =
        RateLimitLayer::new(gate.clone(), by_key()).and(gate.clone(), Key::constant("all")).charge(charge);
    let tested = Tested::with(layer, |_| async {
        ENTERED.notify_one();
        std::future::pending::<Response<String>>().await
    });
    let request_task = tokio::spawn(async move { tested.get("a").await });
    ENTERED.notified().await;
    request_task.abort();
    assert!(request_task.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn abandoned_request_stays_charged_unless_refunded() {
    let (_server, limiters) = limiters();
    for limiter in limiters {
        let gate = limiter.gate("api", Quota::fixed_window(10, HOUR));
        let all = async || gate.peek("all").await.unwrap().remaining();
        abandoned(&gate, Charge::when(|_| false).if_abandoned(Abandoned::Refunded)).await;
        soon("both are refunded", async || remaining(&gate).await + all().await == 20).await;
        abandoned(&gate, Charge::when(|_| false)).await;
        abandoned(&gate, Charge::always()).await;
        // If these requests caused a refund, it would reach the store before the peeks below.
        tokio::task::yield_now().await;
        assert_eq!((remaining(&gate).await, all().await), (8, 8));
    }
}

#[tokio::test]
async fn response_is_sent_when_its_refund_fails() {
    let server = std::sync::Arc::new(std::sync::Mutex::new(Server::process(&[]).unwrap()));
    let url = server.lock().unwrap().url().to_owned();
    let gate = Limiter::builder().url(&url).build().unwrap().gate("api", Quota::fixed_window(10, HOUR));
    let layer = RateLimitLayer::new(gate, by_key()).charge(Charge::when(|_| false));
    let tested = Tested::with(layer, move |_| {
        server.lock().unwrap().kill();
        std::future::ready(Response::new("done".to_owned()))
    });
    let reply = tested.get("a").await;
    assert_eq!((reply.status, &*reply.body), (StatusCode::OK, "done"));
    assert_eq!(reply.number("x-ratelimit-remaining"), 9, "the request stays charged");
}
