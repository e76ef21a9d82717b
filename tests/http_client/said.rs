//! What the other side says of its limit holds for all instances.

use std::time::Duration;

use super::third_party::ThirdParty;
use super::{AMPLE, Instance, KEY, instances};
use crate::support::fixture::soon;

const DATE: (&str, &str) = ("date", "Thu, 01 Jan 2026 00:00:00 GMT"); // 1767225600

/// Status, headers, and the seconds for which nobody asks any more.
type Said = (u16, &'static [(&'static str, &'static str)], u64);

const SAID: [Said; 34] = [
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
    // Draft -11, and -08 to -10.
    (200, &[("ratelimit", "\"hourly\";r=0;t=120")], 120),
    (200, &[("ratelimit", "\"hourly\";r=1;t=120")], 0),
    (200, &[("ratelimit", "\"hourly\";r=0")], 0),
    (200, &[("ratelimit", "\"hourly\";r=0;t=-1")], 0),
    (200, &[("ratelimit", "\"a\";r=0;t=60, \"b\";r=5;t=900, \"c\";r=0;t=120;pk=:AA==:")], 120),
    (200, &[("ratelimit", "\"a\";r=0;t=60"), ("ratelimit", "\"b\";r=0;t=120")], 120),
    (200, &[("ratelimit", "hourly;r=0;t=120")], 120),
    // Draft -07.
    (200, &[("ratelimit", "limit=100, remaining=0, reset=120")], 120),
    (200, &[("ratelimit", "limit=100, remaining=1, reset=120")], 0),
    (200, &[("ratelimit", "limit=100, remaining=0")], 0),
    (200, &[("ratelimit", "\"unfinished;r=0;t=120")], 0),
    // The older fields.
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "120")], 120),
    (200, &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "120")], 0),
    (200, &[("x-ratelimit-reset", "120")], 0),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225720"), DATE], 120),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225720000"), DATE], 120),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1767225500"), DATE], 0),
    (200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "inf"), DATE], 0),
    (200, &[("x-ratelimit-remaining", "NaN"), ("x-ratelimit-reset", "120")], 0),
    // Several: this very request's comes first.
    (429, &[("retry-after", "120"), ("ratelimit", "\"a\";r=0;t=900")], 120),
    (
        429,
        &[("ratelimit", "\"a\";r=0;t=120"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "900")],
        120,
    ),
];

#[tokio::test]
async fn what_a_response_says_blocks_the_key_for_all_instances() {
    let server = harness::shared();
    let third_party = ThirdParty::start().await;
    for (status, headers, seconds) in SAID {
        let [one, other]: [Instance; 2] = instances(&server, AMPLE, |layer| layer);
        third_party.answers(status, headers);
        let response = one.get(&third_party.url).await.unwrap();
        assert_eq!(response.status(), status, "it comes back as it is");
        for (name, value) in headers {
            assert!(response.headers().get_all(*name).iter().any(|found| found == value.trim()), "{name}");
        }

        let blocked = other.blocked_for().await;
        let expected = Duration::from_secs(seconds);
        let is_so = blocked <= expected && expected <= blocked + Duration::from_secs(10);
        assert!(is_so, "{status} {headers:?}: blocked for {blocked:?}");
    }
}

#[tokio::test]
async fn while_it_is_blocked_no_instance_asks() {
    let server = harness::shared();
    let third_party = ThirdParty::start().await;
    let [one, other]: [Instance; 2] =
        instances(&server, AMPLE, |layer| layer.max_wait(Duration::from_secs(1)));
    third_party.answers(429, &[("retry-after", "60")]);
    one.get(&third_party.url).await.unwrap();
    for instance in [&one, &other] {
        let error = instance.get(&third_party.url).await.unwrap_err();
        assert!(matches!(&error, tidegate::http::OutgoingError::Limited(_)), "{error}");
        assert!(error.to_string().contains("\"outgoing\""), "{error}");
    }
    assert_eq!(third_party.asked().len(), 1);

    other.gate.unblock(KEY).await.unwrap();
    third_party.answers(200, &[]);
    assert_eq!(other.get(&third_party.url).await.unwrap().status(), 200);
}

#[tokio::test]
async fn who_waits_goes_on_when_the_other_side_lets_it() {
    let server = harness::shared();
    let third_party = ThirdParty::start().await;
    let [one, other]: [Instance; 2] = instances(&server, AMPLE, |layer| layer);
    third_party.answers(429, &[("retry-after", "1")]);
    one.get(&third_party.url).await.unwrap();
    third_party.answers(200, &[]);
    assert_eq!(other.get(&third_party.url).await.unwrap().status(), 200);
    let asked = third_party.asked();
    assert!(asked[1] - asked[0] >= Duration::from_secs(1), "{:?}", asked[1] - asked[0]);
}

#[tokio::test]
async fn a_shorter_pause_does_not_cut_a_longer_one_short() {
    let server = harness::shared();
    let third_party = ThirdParty::start().await;
    let [one, other]: [Instance; 2] = instances(&server, AMPLE, |layer| layer);
    let url = format!("{}held", third_party.url);
    let (held, ()) = tokio::join!(one.get(&url), async {
        soon("the first request is there", async || !third_party.asked().is_empty()).await;
        third_party.answers(429, &[("retry-after", "600")]);
        other.get(&third_party.url).await.unwrap();
        third_party.answers(429, &[("retry-after", "5")]);
        third_party.release.notify_one();
    });
    assert_eq!(held.unwrap().headers()["retry-after"], "5");
    assert!(other.blocked_for().await > Duration::from_secs(500));
}

#[tokio::test]
async fn a_pause_is_believed_up_to_a_bound() {
    let server = harness::shared();
    let third_party = ThirdParty::start().await;
    third_party.answers(429, &[("retry-after", "86400")]);
    for (bound, least) in [(90, 60), (0, 0)] {
        let bound = Duration::from_secs(bound);
        let [one]: [Instance; 1] = instances(&server, AMPLE, |layer| layer.max_block(bound));
        one.get(&third_party.url).await.unwrap();
        let blocked = one.blocked_for().await;
        assert!((Duration::from_secs(least)..=bound).contains(&blocked), "{blocked:?}");
    }
}
