//! Charges for requests that the fallback admitted while Redis was unavailable.

use std::time::Duration;

use http::{Request, Response, StatusCode};
use tidegate::Quota;
use tidegate_http::{Charge, RateLimitLayer};
use tidegate_testkit::{Fault, Proxy};

use super::fixture::{Tested, by_key};
use crate::support::fixture::{builder, builder_as_is, namespace, soon};

#[tokio::test]
async fn a_request_admitted_during_an_outage_is_charged_as_its_response_says() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let namespace = namespace();
    let quota = Quota::fixed_window(20, Duration::from_secs(24 * 3_600));
    let limiter = builder_as_is(&proxy.url()).namespace(&namespace).instances(1).build().unwrap();
    let gate = limiter.gate("login", quota);
    let in_redis = builder(server.url()).namespace(&namespace).build().unwrap().gate("login", quota);

    proxy.set(Fault::Refuse);
    let failures = Charge::when(|response| response.status == StatusCode::UNAUTHORIZED);
    let layer = RateLimitLayer::new(gate.clone(), by_key()).charge(failures);
    let tested = Tested::with(layer, |request: Request<String>| {
        let status = request.uri().query().unwrap();
        std::future::ready(Response::builder().status(status).body(String::new()).unwrap())
    });
    for status in ["200", "401", "200", "401", "200"] {
        let request = Request::get(format!("/?{status}")).header("x-api-key", "a");
        let reply = tested.send(request.body(String::new()).unwrap()).await;
        assert_eq!(reply.status.as_str(), status);
    }
    assert_eq!(gate.peek("a").await.unwrap().remaining(), 18, "two failures of the share of this process");

    // The charge of a second key shows when reconciliation has run.
    assert!(gate.check("b").await.unwrap().is_allowed());
    proxy.set(Fault::None);
    soon("Redis is charged", async || in_redis.peek("b").await.unwrap().remaining() == 19).await;
    soon("Redis is charged the failures", async || in_redis.peek("a").await.unwrap().remaining() == 18).await;
}
