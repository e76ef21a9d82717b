//! Rate limit headers of the third party apply to all instances.

use std::time::Duration;

use super::third_party::ThirdParty;
use super::{AMPLE, Instance, KEY, instances};
use crate::support::fixture::soon;

const DATE: (&str, &str) = ("date", "Thu, 01 Jan 2026 00:00:00 GMT"); // 1767225600

/// Status, headers, and the seconds for which they block the key.
type Case = (u16, &'static [(&'static str, &'static str)], u64);

const CASES: [Case; 34] = [
    (429, &[("retry-after", "120")], 120),
    (503, &[("retry-after", "120")], 120),
    (200, &[("retry-after", "120")], 0),
    (301, &[("retry-after", "120")], 0),
    (500, &[("retry-after", "120")], 0),
    (429, &[("retry-after", "0")], 0),
    (429, &[("retry-after", "-5")], 0),
    (429, &[("retry-after", "soon")], 0),
    (429, &[("retry-after", " 120 ")], 120),
    (429, &[("retry-after", "99999999999999999")], 3_600),
    (429, &[("retry-after", "Thu, 01 Jan 2026 00:02:00 GMT"), DATE], 120),
    (429, &[("retry-after", "Wed, 31 Dec 2025 23:59:00 GMT"), DATE], 0),
    (429, &[], 0),
    // Drafts 08 to 11.
    (200, &[("ratelimit", "\"hourly\";r=0;t=120")], 120),
    (200, &[("ratelimit", "\"hourly\";r=1;t=120")], 0),
    (200, &[("ratelimit", "\"hourly\";r=0")], 0),
    (200, &[("ratelimit", "\"hourly\";r=0;t=-1")], 0),
    (200, &[("ratelimit", "\"a\";r=0;t=60, \"b\";r=5;t=900, \"c\";r=0;t=120;pk=:AA==:")], 120),
    (200, &[("ratelimit", "\"a\";r=0;t=60"), ("ratelimit", "\"b\";r=0;t=120")], 120),
    (200, &[("ratelimit", "hourly;r=0;t=120")], 120),
    // Draft 07.
    (200, &[("ratelimit", "limit=100, remaining=0, reset=120")], 120),
    (200, &[("ratelimit", "limit=100, remaining=1, reset=120")], 0),
    (200, &[("ratelimit", "limit=100, remaining=0")], 0),
    (200, &[("ratelimit", "\"unfinished;r=0;t=120")], 0),
    // The `x-ratelimit-*` headers.
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "120")], 120),
    (200, &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "120")], 0),
    (200, &[("x-ratelimit-reset", "120")], 0),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225720"), DATE], 120),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225720000"), DATE], 120),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225500"), DATE], 0),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "inf"), DATE], 0),
    (200, &[("x-ratelimit-remaining", "NaN"), ("x-ratelimit-reset", "120")], 0),
    // Several headers: `retry-after` has precedence, then `ratelimit`.
    (429, &[("retry-after", "120"), ("ratelimit", "\"a\";r=0;t=900")], 120),
    (
        429,
        &[("ratelimit", "\"a\";r=0;t=120"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "900")],
        120,
    ),
];

#[tokio::test]
async fn rate_limit_headers_block_the_key_for_all_instances() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    for (status, headers, seconds) in CASES {
        let [one, other]: [Instance; 2] = instances(&server, AMPLE, |layer| layer);
        third_party.respond_with(status, headers);
        let response = one.get(&third_party.url).await.unwrap();
        assert_eq!(response.status(), status, "the response is passed through");
        for (name, value) in headers {
            assert!(response.headers().get_all(*name).iter().any(|found| found == value.trim()), "{name}");
        }

        let blocked = other.blocked_for().await;
        let expected = Duration::from_secs(seconds);
        let is_as_expected = blocked <= expected && expected <= blocked + Duration::from_secs(10);
        assert!(is_as_expected, "{status} {headers:?}: blocked for {blocked:?}");
    }
}

#[tokio::test]
async fn no_instance_sends_while_the_key_is_blocked() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    let [one, other]: [Instance; 2] =
        instances(&server, AMPLE, |layer| layer.max_wait(Duration::from_secs(1)));
    third_party.respond_with(429, &[("retry-after", "60")]);
    one.get(&third_party.url).await.unwrap();
    for instance in [&one, &other] {
        let error = instance.get(&third_party.url).await.unwrap_err();
        assert!(matches!(&error, tidegate_http::OutgoingError::Limited(_)), "{error}");
        assert!(error.to_string().contains("\"outgoing\""), "{error}");
    }
    assert_eq!(third_party.received().len(), 1);

    other.gate.unblock(KEY).await.unwrap();
    third_party.respond_with(200, &[]);
    assert_eq!(other.get(&third_party.url).await.unwrap().status(), 200);
}

#[tokio::test]
async fn waiting_request_is_sent_when_the_block_ends() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    let [one, other]: [Instance; 2] = instances(&server, AMPLE, |layer| layer);
    third_party.respond_with(429, &[("retry-after", "1")]);
    one.get(&third_party.url).await.unwrap();
    third_party.respond_with(200, &[]);
    assert_eq!(other.get(&third_party.url).await.unwrap().status(), 200);
    let received = third_party.received();
    let gap = received[1] - received[0];
    assert!(gap >= Duration::from_secs(1), "{gap:?}");
}

#[tokio::test]
async fn shorter_block_does_not_replace_a_longer_one() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    let [one, other]: [Instance; 2] = instances(&server, AMPLE, |layer| layer);
    let url = format!("{}delayed", third_party.url);
    let (delayed, ()) = tokio::join!(one.get(&url), async {
        soon("the third party has received the first request", async || !third_party.received().is_empty())
            .await;
        third_party.respond_with(429, &[("retry-after", "600")]);
        other.get(&third_party.url).await.unwrap();
        third_party.respond_with(429, &[("retry-after", "5")]);
        third_party.release.notify_one();
    });
    assert_eq!(delayed.unwrap().headers()["retry-after"], "5");
    assert!(other.blocked_for().await > Duration::from_secs(500));
}

#[tokio::test]
async fn block_is_capped_at_max_block() {
    let server = tidegate_testkit::shared();
    let third_party = ThirdParty::start().await;
    third_party.respond_with(429, &[("retry-after", "86400")]);
    for (bound, least) in [(90, 60), (0, 0)] {
        let bound = Duration::from_secs(bound);
        let [one]: [Instance; 1] = instances(&server, AMPLE, |layer| layer.max_block(bound));
        one.get(&third_party.url).await.unwrap();
        let blocked = one.blocked_for().await;
        assert!((Duration::from_secs(least)..=bound).contains(&blocked), "{blocked:?}");
    }
}
