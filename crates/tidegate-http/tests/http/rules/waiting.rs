//! Requests that wait under `charge: each`: limits admit one after the other.

use std::time::Duration;

use http::StatusCode;
use tidegate::{Limiter, ManualClock};
use tidegate_http::RateLimitLayer;
use tidegate_rules::Rules;
use tokio::task::JoinHandle;

use super::{BY_HEADERS, request};
use crate::http::fixture::{Reply, Tested, settle};

const SECOND: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// A layer under `charge: each`, on a clock that the test moves.
struct Each {
    clock: ManualClock,
    tested: Tested,
}

impl Each {
    fn new(descriptors: &str) -> Self {
        let clock = ManualClock::new();
        let text = format!("{BY_HEADERS}charge: each\ndescriptors:\n{descriptors}");
        let rules = Rules::parse("api.yaml", &text).unwrap();
        let limiter = Limiter::in_memory_with(clock.clone());
        let layer = RateLimitLayer::with_rules(rules.bind(&limiter), "api").unwrap();
        Self { clock, tested: Tested::new(layer.wait(MAX_WAIT, 10)) }
    }

    /// Sends a request for an API key and a user, and runs it until it waits for the clock.
    async fn send(&self, api_key: &str, user: &str) -> JoinHandle<Reply> {
        self.tested.begin(request(&[("x-api-key", api_key), ("x-user", user)])).await
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        settle().await;
    }
}

const BUCKET_AND_LAST_UNIT_OF_AN_HOUR: &str = "
  - { key: api_key, rate_limit: { algorithm: token_bucket, every: 1s, requests_per_unit: 1 } }
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

#[tokio::test]
async fn a_limit_that_has_admitted_a_request_does_not_prolong_its_wait() {
    let service = Each::new(BUCKET_AND_LAST_UNIT_OF_AN_HOUR);
    assert_eq!(service.send("k", "ada").await.await.unwrap().status, StatusCode::OK);
    // The user's limit admits the request with its last unit of the hour.
    // The API key's limit denies it for 1 s.
    let waits = service.send("k", "bob").await;
    assert!(!waits.is_finished(), "the wait of 1 s fits into {MAX_WAIT:?}");
    service.advance(SECOND - Duration::from_micros(1)).await;
    assert!(!waits.is_finished());
    service.advance(Duration::from_micros(1)).await;
    assert!(waits.is_finished(), "the request waits no longer than for the limit that denied");
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn a_limit_that_denies_for_longer_than_max_wait_ends_the_wait_at_once() {
    let service = Each::new(BUCKET_AND_LAST_UNIT_OF_AN_HOUR);
    assert_eq!(service.send("k", "ada").await.await.unwrap().status, StatusCode::OK);
    service.advance(SECOND).await;
    let denied = service.send("k", "ada").await;
    assert!(denied.is_finished());
    let denied = denied.await.unwrap();
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.header("retry-after"), Some("3599"));
}

#[tokio::test]
async fn the_delay_of_a_queue_passes_while_another_limit_is_waited_for() {
    let service = Each::new(
        "
  - { key: api_key, rate_limit: { algorithm: leaky_bucket, every: 1s, requests_per_unit: 1, burst: 3 } }
  - { key: user, rate_limit: { algorithm: token_bucket, every: 1s, requests_per_unit: 1 } }
",
    );
    assert_eq!(service.send("k", "ada").await.await.unwrap().status, StatusCode::OK);
    // The queue admits the request with a delay of 1 s. The user's limit denies it for 1 s.
    let waits = service.send("k", "ada").await;
    assert!(!waits.is_finished());
    service.advance(SECOND).await;
    assert!(waits.is_finished(), "both waits run at the same time");
    assert_eq!(waits.await.unwrap().status, StatusCode::OK);
}
