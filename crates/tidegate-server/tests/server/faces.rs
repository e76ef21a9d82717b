//! The same rules decide alike through the library, gRPC, `/json` and `/v1`. Where they do not, an option of
//! [`Mode`] makes the difference.

use std::collections::BTreeSet;

use axum::Router;
use axum::routing::get;
use http::request::Parts;
use serde_json::{Value, json};
use tidegate::{Error, Limiter, ManualClock};
use tidegate_http::{Descriptors, RateLimitLayer};
use tidegate_rules::{ChargedDenials, Descriptor, Mode, RuleOutcome, Rules, RulesGrant, RulesLimiter};
use tidegate_server::RateLimitService;
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::net::TcpListener;

use super::fixture::{self, Running, with_hits};
use crate::support::world::START;

const RULES: &str = "
domain: all
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: path, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: bucket, rate_limit: { unit: year, requests_per_unit: 5, algorithm: token_bucket } }
  - { key: used, rate_limit: { unit: year, requests_per_unit: 5 }, charge_used: true }
  - { key: tried, rate_limit: { unit: year, requests_per_unit: 2 }, shadow_mode: true }
  - { key: free, rate_limit: { unlimited: true } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
  - { key: held, rate_limit: { in_flight: 1 } }
---
domain: each
charge: each
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: path, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: small, rate_limit: { unit: year, requests_per_unit: 1 }, quota_mode: true }
  - { key: large, rate_limit: { unit: year, requests_per_unit: 2 }, quota_mode: true }
";

/// The options that the service can set for gRPC and `/json`; it always sets [`Mode::deny_above_limit`].
#[derive(Clone, Copy, PartialEq)]
enum Set {
    Default,
    ChargeDenied,
    PeeksPassAtLimit,
    Both,
}

use Set::{Both, ChargeDenied, Default as Unset, PeeksPassAtLimit};

impl Set {
    fn charged_denials(self) -> ChargedDenials {
        match self {
            ChargeDenied | Both => ChargedDenials::All,
            Unset | PeeksPassAtLimit => ChargedDenials::None,
        }
    }

    fn passes_peeks(self) -> bool {
        matches!(self, PeeksPassAtLimit | Both)
    }

    fn mode(self) -> Mode {
        let mode = Mode::check().deny_above_limit(true).charge_denied(self.charged_denials());
        mode.peeks_pass_at_limit(self.passes_peeks())
    }

    fn service(self, rules: &RulesLimiter) -> RateLimitService {
        let service = RateLimitService::new(rules.clone()).charge_denied(self.charged_denials());
        service.peeks_pass_at_limit(self.passes_peeks())
    }
}

/// The options, the domain, requests, and their answers: by the library and `/v1`, and by gRPC and `/json` if they differ.
///
/// `user 1 + path 0, path 1` is a request with two descriptors and one with one, each with its hits. An answer has the units
/// left of each descriptor, `!` after those of one that denies, and `-` for one without a decision.
type Case = (Set, &'static str, &'static str, &'static str, Option<&'static str>);

const CASES: &[Case] = &[
    (Unset, "all", "user 1, user 0", "ok 4, ok 4", None),
    (Unset, "all", "user 5, user 0, user 1", "ok 0, denied 0!, denied 0!", None),
    (Unset, "all", "user 6, user 1", "mistake, ok 4", Some("denied 5!, ok 4")),
    (Unset, "all", "user 3, user 4, user 2", "ok 2, denied 2!, ok 0", None),
    (Unset, "all", "bucket 3, bucket 4, bucket 2, bucket 0", "ok 2, denied 2!, ok 0, denied 0!", None),
    (Unset, "all", "used 6, used 0", "denied 0!, denied 0!", None),
    // Denied requests that are charged.
    (
        ChargeDenied,
        "all",
        "user 3, user 4, user 2",
        "ok 2, denied 2!, ok 0",
        Some("ok 2, denied 0!, denied 0!"),
    ),
    (ChargeDenied, "all", "user 9, user 1", "mistake, ok 4", Some("denied 0!, denied 0!")),
    (ChargeDenied, "all", "bucket 3, bucket 4, bucket 2", "ok 2, denied 2!, ok 0", None),
    (ChargeDenied, "all", "tried 1, tried 2, tried 0", "ok 1, ok 1, ok 1", Some("ok 1, ok 0, ok 0")),
    // 0 hits at the limit.
    (PeeksPassAtLimit, "all", "user 5, user 0", "ok 0, denied 0!", Some("ok 0, ok 0")),
    (PeeksPassAtLimit, "all", "bucket 5, bucket 0", "ok 0, denied 0!", None),
    (Both, "all", "user 5, user 1, user 0", "ok 0, denied 0!, denied 0!", None),
    // Rules in shadow mode.
    (Unset, "all", "tried 2, tried 1, tried 3", "ok 0, ok 0, ok 0", None),
    (Unset, "all", "tried 3, tried 0", "ok 2, ok 2", None),
    (Unset, "all", "user 3 + tried 1, user 3 + tried 1, tried 0", "ok 2 1, denied 2! 0, ok 0", None),
    // No limit, and no request.
    (Unset, "all", "free 9, other 1, free 1 + user 1", "ok -, ok -, ok - 4", None),
    (Unset, "unknown", "user 9", "ok -", None),
    (Unset, "all", "none 1, none 0", "denied 0!, denied 0!", None),
    (Unset, "all", "user 1 + none 1, user 0", "denied - 0!, ok 5", Some("denied 5 0!, ok 5")),
    // Several rules.
    (Unset, "all", "user 2 + path 2, user 2 + path 2, user 0 + path 0", "ok 3 1, denied 3 1!, ok 3 1", None),
    (Unset, "all", "user 1 + path 9, user 0", "mistake, ok 5", Some("denied 5 3!, ok 5")),
    (Unset, "all", "user 2 + user 2, user 2 + user 2", "ok 1 1, denied 1! 1!", None),
    (Unset, "all", "user 3 + user 3, user 0", "mistake, ok 5", Some("denied 5 5!, ok 5")),
    // A descriptor that only checks denies the others, too.
    (Unset, "all", "user 0 + path 1", "ok 5 2", None),
    (
        Unset,
        "all",
        "user 5, user 0 + path 1, path 0",
        "ok 0, denied 0! -, ok 3",
        Some("ok 0, denied 0! 3, ok 3"),
    ),
    (Unset, "all", "user 5, user 0 + tried 1, tried 0", "ok 0, denied 0! 2, ok 2", None),
    (Unset, "all", "user 5, user 0 + used 2, used 0", "ok 0, denied 0! 3, ok 3", None),
    (PeeksPassAtLimit, "all", "user 5, user 0 + path 1", "ok 0, denied 0! -", Some("ok 0, ok 0 2")),
    // Each rule on its own.
    (Unset, "each", "user 5, user 1 + path 1, path 0", "ok 0, denied 0! 2, ok 2", None),
    (Unset, "each", "user 5, user 0 + path 1, path 0", "ok 0, denied 0! 2, ok 2", None),
    (Unset, "each", "user 9 + path 1, path 0", "mistake, ok 2", Some("denied 5! 2, ok 2")),
    (Unset, "each", "small 1, small 1 + large 1, small 1 + large 2", "ok 0, ok 0! 1, denied 0! 1!", None),
    // A rule in flight needs an acquire.
    (Unset, "all", "held 1, held 1 + user 1, user 0", "mistake, mistake, ok 5", None),
];

/// The descriptors of a request, each with its hits.
type Hits<'c> = Vec<(&'c str, u64)>;

fn hits_of(descriptor: &str) -> (&str, u64) {
    let (key, hits) = descriptor.split_once(' ').unwrap();
    (key, hits.parse().unwrap())
}

fn requests(text: &str) -> impl Iterator<Item = Hits<'_>> {
    text.split(", ").map(|request| request.split(" + ").map(hits_of).collect())
}

/// Returns the answer of a decision: whether it admits, and of each descriptor whether it does, and the units left.
fn answer(is_allowed: bool, descriptors: impl Iterator<Item = Option<(bool, u64)>>) -> String {
    let shown = descriptors.map(|decision| match decision {
        None => " -".to_owned(),
        Some((true, left)) => format!(" {left}"),
        Some((false, left)) => format!(" {left}!"),
    });
    let shown: String = shown.collect();
    format!("{}{shown}", if is_allowed { "ok" } else { "denied" })
}

fn of_decision(decided: Result<RulesGrant, Error>) -> String {
    match decided {
        Ok(RulesGrant { decision, .. }) => {
            let decisions = decision.outcomes().iter().map(RuleOutcome::decision);
            let decisions = decisions.map(|it| it.map(|it| (it.is_allowed(), it.remaining())));
            answer(decision.is_allowed(), decisions)
        }
        Err(error) => {
            assert!(error.is_over_capacity() || error.is_config(), "{error}");
            "mistake".to_owned()
        }
    }
}

/// A service, and clients of it.
struct Faces {
    limits: RulesLimiter,
    server: Running,
    grpc: fixture::Client,
    http: reqwest::Client,
}

impl Faces {
    async fn new(set: Set) -> Self {
        // The clock stands, so that no window ends.
        let limiter = Limiter::in_memory_with(ManualClock::at(START));
        let limits = Rules::parse("faces.yaml", RULES).unwrap().bind(&limiter);
        let server = Running::start(set.service(&limits)).await;
        let grpc = server.client().await;
        Self { limits, server, grpc, http: reqwest::Client::new() }
    }

    async fn by_library(&self, mode: Mode, domain: &str, hits: &Hits<'_>, value: &str) -> String {
        let descriptors: Vec<_> =
            hits.iter().map(|(key, hits)| Descriptor::new().entry(key, value).hits(*hits)).collect();
        of_decision(self.limits.decide(domain, &descriptors, &mode).await)
    }

    async fn by_grpc(&self, domain: &str, hits: &Hits<'_>, value: &str) -> String {
        let descriptors =
            hits.iter().map(|(key, hits)| with_hits(fixture::descriptor(&[(key, value)]), *hits));
        let request = RateLimitRequest { domain: domain.to_owned(), ..fixture::request(descriptors) };
        let response = match self.grpc.clone().should_rate_limit(request).await {
            Ok(response) => response.into_inner(),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
                return "mistake".to_owned();
            }
        };
        let statuses = response.statuses.iter().map(|status| {
            status.current_limit.as_ref().map(|_| (status.code() == Code::Ok, status.limit_remaining.into()))
        });
        answer(response.overall_code() == Code::Ok, statuses)
    }

    /// Posts the request. `hits_name`: the field of a descriptor with its hits.
    async fn post(
        &self,
        path: &str,
        domain: &str,
        hits: &Hits<'_>,
        value: &str,
        hits_name: &str,
    ) -> Option<Value> {
        let descriptor = |(key, hits): &(&str, u64)| json!({ "entries": [{ "key": key, "value": value }], (hits_name): hits });
        let descriptors: Vec<Value> = hits.iter().map(descriptor).collect();
        let body = json!({ "domain": domain, "descriptors": descriptors }).to_string();
        let request = self.http.post(self.server.url(path)).header("content-type", "application/json");
        let response = request.body(body).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        match status {
            200 | 429 => Some(serde_json::from_str(&text).unwrap()),
            400 => None,
            // `/json` replies to all mistakes in rules so, as over gRPC with `FAILED_PRECONDITION`.
            500 if text.contains("limits requests in flight") => None,
            _ => panic!("{status} {text}"),
        }
    }

    async fn by_json(&self, domain: &str, hits: &Hits<'_>, value: &str) -> String {
        let Some(response) = self.post("/json", domain, hits, value, "hitsAddend").await else {
            return "mistake".to_owned();
        };
        let statuses = response["statuses"].as_array().unwrap().iter().map(|status| {
            let left = status.get("limitRemaining").map_or(0, |left| left.as_u64().unwrap());
            status.get("currentLimit").map(|_| (status["code"] == "OK", left))
        });
        answer(response["overallCode"] == "OK", statuses)
    }

    async fn by_v1(&self, endpoint: &str, domain: &str, hits: &Hits<'_>, value: &str) -> String {
        let Some(response) = self.post(endpoint, domain, hits, value, "hits").await else {
            return "mistake".to_owned();
        };
        let outcomes = response["outcomes"].as_array().unwrap().iter().map(|outcome| {
            let decision = outcome["decision"].as_object()?;
            Some((decision["allowed"] == true, decision["remaining"].as_u64().unwrap()))
        });
        answer(response["allowed"] == true, outcomes)
    }
}

#[tokio::test]
async fn all_faces_answer_alike_but_for_named_options() {
    for set in [Unset, ChargeDenied, PeeksPassAtLimit, Both] {
        let faces = Faces::new(set).await;
        for (at, (_, domain, asked, plain, of_proxy)) in
            CASES.iter().enumerate().filter(|(_, it)| it.0 == set)
        {
            let mut answers: [Vec<String>; 5] = Default::default();
            let of = |face: &str| format!("{face}-{at}");
            for hits in requests(asked) {
                answers[0].push(faces.by_library(Mode::check(), domain, &hits, &of("library")).await);
                answers[1].push(faces.by_v1("/v1/check", domain, &hits, &of("v1")).await);
                answers[2].push(faces.by_library(set.mode(), domain, &hits, &of("options")).await);
                answers[3].push(faces.by_grpc(domain, &hits, &of("grpc")).await);
                answers[4].push(faces.by_json(domain, &hits, &of("json")).await);
            }
            let of_proxy = of_proxy.unwrap_or(plain);
            let expected = [*plain, plain, of_proxy, of_proxy, of_proxy];
            assert_eq!(answers.map(|answers| answers.join(", ")), expected, "{domain}: {asked}");
        }
        assert!(faces.server.stop().await);
    }
}

/// The layer has permits of rules in flight. The other requests are answered as by the library.
#[tokio::test]
async fn http_layer_answers_as_the_library() {
    let actions = |key| {
        format!("  - actions: [{{ request_headers: {{ header_name: {key}, descriptor_key: {key} }} }}]\n")
    };
    // A layer supports neither.
    let mut rules = RULES.replace(", charge_used: true", "").replace(", quota_mode: true", "");
    for (domain, keys) in [
        ("domain: all\n", &["user", "path", "bucket", "tried", "free", "none"][..]),
        ("charge: each\n", &["user", "path", "small", "large"][..]),
    ] {
        let actions: String = keys.iter().map(actions).collect();
        rules = rules.replace(domain, &format!("{domain}rate_limits:\n{actions}"));
    }
    let limits =
        Rules::parse("faces.yaml", &rules).unwrap().bind(&Limiter::in_memory_with(ManualClock::at(START)));
    let mut compared = 0;
    for (domain, has_own_hits) in [("all", false), ("all", true), ("each", false), ("each", true)] {
        let layer = match has_own_hits {
            false => {
                let hits = |parts: &Parts| text_of(parts, "hits").parse().unwrap();
                RateLimitLayer::with_rules(limits.clone(), domain).unwrap().cost(hits)
            }
            // Each descriptor with hits of its own, also 0.
            true => {
                let descriptors = Descriptors::from_fn(domain, |parts| {
                    let hits = text_of(parts, "asked").split(" + ").map(hits_of);
                    let value = text_of(parts, "value");
                    hits.map(|(key, hits)| Descriptor::from([(key, value)]).hits(hits)).collect()
                });
                RateLimitLayer::with_rules(limits.clone(), descriptors).unwrap()
            }
        };
        let router = Router::new().route("/", get(async || "served")).layer(layer);
        let port = TcpListener::bind(fixture::ANY).await.unwrap();
        let url = format!("http://{}/", port.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(port, router).await });
        for (at, (.., asked, plain, _)) in CASES.iter().enumerate().filter(|(_, it)| it.1 == domain) {
            if ["held", "used", "small"].iter().any(|key| asked.contains(key)) {
                continue;
            }
            let value = format!("http-{at}-{has_own_hits}");
            for ((hits, asked), answer) in requests(asked).zip(asked.split(", ")).zip(plain.split(", ")) {
                let is_uniform = hits.iter().all(|(_, units)| *units == hits[0].1);
                let keys: BTreeSet<_> = hits.iter().map(|(key, _)| key).collect();
                if !has_own_hits && hits[0].1 == 0 {
                    continue;
                } else if !has_own_hits && (!is_uniform || keys.len() < hits.len()) {
                    break;
                }
                let request = reqwest::Client::new().get(&url).header("hits", hits[0].1);
                let request = request.header("asked", asked).header("value", &value);
                let request = hits.iter().fold(request, |request, (key, _)| request.header(*key, &value));
                let found = match request.send().await.unwrap().status().as_u16() {
                    200 => "ok",
                    429 => "denied",
                    400 => "mistake",
                    other => panic!("{other}"),
                };
                assert_eq!(found, answer.split(' ').next().unwrap(), "{domain}: {asked}, {hits:?}");
                compared += 1;
            }
        }
        server.abort();
    }
    assert!(compared > 70, "{compared}");
}

fn text_of<'p>(parts: &'p Parts, header: &str) -> &'p str {
    parts.headers[header].to_str().unwrap()
}

/// `/v1/peek` decides as a check would, and charges nothing.
#[tokio::test]
async fn peeks_answer_alike() {
    let faces = Faces::new(Unset).await;
    for (at, (charged, peeked, expected)) in [
        ("user 3", "user 2, user 3, user 0", "ok 2, denied 2!, ok 2"),
        ("user 3", "user 9, used 9", "mistake, denied 5!"),
        ("user 5", "user 1 + path 1, path 1 + tried 3", "denied 0! 3, ok 3 2"),
        ("user 5", "held 1, held 1 + user 0", "ok 1, denied 1 0!"),
        ("user 1", "none 1 + user 1, free 1 + other 1", "denied 0! -, ok - -"),
    ]
    .into_iter()
    .enumerate()
    {
        let (library, v1) = (format!("library-{at}"), format!("v1-{at}"));
        for hits in requests(charged) {
            faces.by_library(Mode::check(), "all", &hits, &library).await;
            faces.by_v1("/v1/check", "all", &hits, &v1).await;
        }
        let mut answers: [Vec<String>; 2] = Default::default();
        for hits in requests(peeked) {
            answers[0].push(faces.by_library(Mode::peek(), "all", &hits, &library).await);
            answers[1].push(faces.by_v1("/v1/peek", "all", &hits, &v1).await);
        }
        assert_eq!(answers.map(|answers| answers.join(", ")), [expected, expected], "{charged}: {peeked}");
    }
    assert!(faces.server.stop().await);
}

/// `/v1/acquire` holds what it has acquired, as the caller of the library.
#[tokio::test]
async fn acquires_answer_alike() {
    let faces = Faces::new(Unset).await;
    for (at, (asked, expected)) in [
        ("held 1, held 1", "ok 0, denied 0!"),
        ("held 1 + user 3, held 1 + user 1, user 0", "ok 0 2, denied 0! 2, ok 2"),
        ("user 5, held 1 + user 1, held 1", "ok 0, denied 1 0!, ok 0"),
        ("held 1 + user 9, held 2, held 0", "mistake, mistake, ok 1"),
        ("user 5, user 0 + held 1, held 1", "ok 0, denied 0! -, ok 0"),
    ]
    .into_iter()
    .enumerate()
    {
        let (library, v1) = (format!("library-{at}"), format!("v1-{at}"));
        let (mut answers, mut held) = (<[Vec<String>; 2]>::default(), Vec::new());
        for hits in requests(asked) {
            let descriptors: Vec<_> =
                hits.iter().map(|(key, hits)| Descriptor::new().entry(key, &library).hits(*hits)).collect();
            let mut acquired = faces.limits.decide("all", &descriptors, &Mode::in_flight()).await;
            held.extend(acquired.iter_mut().map(|grant| std::mem::take(&mut grant.permits)));
            answers[0].push(of_decision(acquired));
            answers[1].push(faces.by_v1("/v1/acquire", "all", &hits, &v1).await);
        }
        assert_eq!(answers.map(|answers| answers.join(", ")), [expected, expected], "{asked}");
    }
    assert!(faces.server.stop().await);
}

/// Only the library has partial grants. They take from the same counts.
#[tokio::test]
async fn partial_grants_count_as_checks_do() {
    let faces = Faces::new(Unset).await;
    for (asked, granted, left) in [
        ("user 1 + path 1", 3, ["ok 2", "ok 0"]),
        ("user 2", 2, ["ok 1", "ok 3"]),
        ("user 6", 0, ["ok 5", "ok 3"]),
        ("user 0 + path 1", 3, ["ok 5", "ok 0"]),
    ] {
        let hits = requests(asked).next().unwrap();
        let descriptors: Vec<_> =
            hits.iter().map(|(key, hits)| Descriptor::new().entry(key, asked).hits(*hits)).collect();
        let mode = Mode::up_to(9).deny_above_limit(true);
        let grant = faces.limits.decide("all", &descriptors, &mode).await.unwrap();
        assert_eq!(grant.granted, granted, "{asked}");
        for (key, left) in ["user", "path"].into_iter().zip(left) {
            let peek = vec![(key, 0)];
            let left = left.replace("ok 0", "denied 0!");
            assert_eq!(faces.by_grpc("all", &peek, asked).await, left, "{asked}: {key}");
            assert_eq!(faces.by_v1("/v1/peek", "all", &peek, asked).await, left, "{asked}: {key}");
        }
    }
    assert!(faces.server.stop().await);
}
