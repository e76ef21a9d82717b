//! The cases: requests, and the responses that each framework must give.

use std::time::Duration;

use futures_util::future::join_all;
use http::{Method, Response};
use serde_json::json;
use tidegate::{Gate, Limiter, ManualClock, OnFailure, Quota, Rate, Switch};
use tidegate_http::{
    Charge, ClientIp, Draft, GateRule, Headers, Key, MissingKey, OnError, RateLimitLayer, Reason,
};
use tidegate_rules::Rules;
use tidegate_testkit::Server as Redis;

use super::app::{App, FAILED, Serve, Server};
use super::client::{Client, next_piece};
use crate::http::fixture::{Reply, by_key, three_a_minute};
use crate::support::fixture::{HOUR, builder, builder_as_is, closed_port, limiter, soon};

const KEY_A: (&str, &str) = ("x-api-key", "a");

/// A server with the service behind a layer, and a client.
struct World {
    app: App,
    server: Server,
    client: Client,
}

impl World {
    async fn start(serve: Serve, layer: RateLimitLayer) -> Self {
        let app = App::new();
        let server = serve(layer, app.clone());
        let client = server.connect().await;
        Self { app, server, client }
    }

    async fn get(&mut self, path: &str) -> Reply {
        self.client.get(path).await
    }

    /// Returns the statuses of requests with these API keys.
    async fn statuses(&mut self, keys: &[&str]) -> Vec<u16> {
        let mut statuses = Vec::new();
        for key in keys {
            statuses.push(self.send(Method::GET, "/", &[("x-api-key", key)]).await.status.as_u16());
        }
        statuses
    }

    async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.client.send(method, path, headers).await
    }

    /// Waits until a request is admitted by an in-flight limit.
    async fn admitted_soon(&mut self) {
        soon("the permit is released", async || self.client.get("/").await.status == 200).await;
    }
}

async fn status(server: &Server, path: &str) -> u16 {
    server.connect().await.get(path).await.status.as_u16()
}

/// Returns a limiter whose clock stands still.
fn in_memory() -> Limiter {
    Limiter::in_memory_with(ManualClock::new())
}

/// Returns a gate with two units and no more within the hour.
fn two(limiter: &Limiter, name: &str) -> Gate {
    limiter.gate(name, Quota::fixed_window(2, HOUR))
}

async fn remaining(gate: &Gate) -> u64 {
    gate.peek("a").await.unwrap().remaining()
}

pub(super) async fn requests_of_one_connection_are_counted_and_rejected_with_a_problem(serve: Serve) {
    let layer = RateLimitLayer::new(three_a_minute(&in_memory(), "api"), by_key());
    let mut world = World::start(serve, layer).await;
    for left in [2, 1, 0] {
        let reply = world.get("/").await;
        assert_eq!((reply.status.as_u16(), reply.body.as_str()), (200, &*format!("hello, {left} more")));
        assert_eq!(reply.number("x-ratelimit-remaining"), left);
        assert_eq!(reply.header("retry-after"), None);
        assert_eq!(reply.header("cache-control"), None);
    }
    let denied = world.get("/").await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), Some("20"));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.number("content-length") as usize, denied.body.len());
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&denied.body).unwrap(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "The limit \"api\" of 3 in 60 seconds is exceeded. Try again in 20 seconds.",
            "violated-policies": ["api"],
        })
    );
    assert_eq!(world.statuses(&["b", "a", "b"]).await, [200, 429, 200]);
    assert_eq!(world.app.calls(), 5);
}

pub(super) async fn connections_of_all_workers_share_one_limit(serve: Serve) {
    let redis = tidegate_testkit::shared();
    let gate = limiter(&redis).gate("api", Quota::fixed_window(7, HOUR));
    let world = World::start(serve, RateLimitLayer::new(gate, by_key())).await;
    let statuses = join_all((0..20).map(|_| status(&world.server, "/"))).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 7, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 13, "{statuses:?}");
    assert_eq!(world.app.calls(), 7);
}

pub(super) async fn headers_of_both_spellings_report_the_limit(serve: Serve) {
    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit-policy"];
    let names = names.iter().chain(&["ratelimit", "x-ratelimit-shadow"]);
    for (headers, expected) in [
        (Headers::new(), ["3", "2", "20", r#""api";q=3;w=60"#, r#""api";r=2;t=20"#, ""]),
        (
            Headers::new().draft(Some(Draft::Seven)).shadow(true),
            ["3", "2", "20", "3;w=60", "limit=3, remaining=2, reset=20", r#""login";r=2;t=20"#],
        ),
        (Headers::none(), [""; 6]),
    ] {
        let limiter = in_memory();
        let shadow = three_a_minute(&limiter, "login").shadow(true);
        let layer = RateLimitLayer::new(three_a_minute(&limiter, "api"), by_key()).and(shadow, by_key());
        let reply = World::start(serve, layer.headers(headers)).await.get("/").await;
        let sent: Vec<_> = names.clone().map(|name| reply.header(name).unwrap_or_default()).collect();
        assert_eq!(sent, expected);
    }
}

pub(super) async fn accept_selects_a_text_for_people(serve: Serve) {
    let gate = in_memory().gate("api", Quota::fixed_window(1, HOUR));
    let mut world = World::start(serve, RateLimitLayer::new(gate, by_key())).await;
    world.get("/").await;
    let denied = world.send(Method::GET, "/", &[KEY_A, ("accept", "text/plain")]).await;
    assert_eq!(
        (denied.status.as_u16(), denied.header("content-type")),
        (429, Some("text/plain; charset=utf-8"))
    );
    assert_eq!(
        denied.body,
        "The limit \"api\" of 1 in 3600 seconds is exceeded. Try again in 3600 seconds.\n"
    );
}

pub(super) async fn several_gates_are_charged_all_or_none(serve: Serve) {
    let limiter = in_memory();
    let (user, all) = (two(&limiter, "user"), limiter.gate("all", Quota::fixed_window(3, HOUR)));
    let layer = RateLimitLayer::new(user, by_key()).and(all.clone(), Key::constant("all"));
    let mut world = World::start(serve, layer).await;
    assert_eq!(world.statuses(&["a", "a", "a", "b", "b"]).await, [200, 200, 429, 200, 429]);
    let limits = world.get("/").await.limits();
    assert_eq!(
        limits.iter().map(|limit| (&*limit.name, limit.remaining)).collect::<Vec<_>>(),
        [("user", 0), ("all", 0)]
    );
}

pub(super) async fn closure_and_lookup_choose_the_tier(serve: Serve) {
    let limiter = in_memory();
    let free = GateRule::new(limiter.gate("free", Quota::fixed_window(1, HOUR)), by_key());
    let pro = GateRule::new(limiter.gate("pro", Quota::fixed_window(2, HOUR)), by_key());
    let choose = move |parts: &http::request::Parts| {
        let is_pro = parts.headers["x-api-key"].as_bytes().starts_with(b"pro");
        [if is_pro { pro.clone() } else { free.clone() }]
    };
    let looked_up = choose.clone();
    let lookup = RateLimitLayer::lookup(move |parts| {
        let rules = looked_up(parts);
        async move {
            tokio::task::yield_now().await;
            rules
        }
    });
    for (layer, key, other) in [(RateLimitLayer::choose(choose), "1", "2"), (lookup, "3", "4")] {
        let mut world = World::start(serve, layer).await;
        let (free, pro) = (format!("free-{key}"), format!("pro-{other}"));
        assert_eq!(world.statuses(&[&free, &free, &pro, &pro, &pro]).await, [200, 429, 200, 200, 429]);
    }
}

pub(super) async fn cost_is_charged_and_one_above_the_limit_is_a_400_with_both(serve: Serve) {
    let gate = in_memory().gate("upload", Quota::fixed_window(10, HOUR));
    let layer = RateLimitLayer::new(gate, by_key());
    let layer = layer.cost(|parts| parts.uri.query().map_or(1, |query| query.parse().unwrap()));
    let mut world = World::start(serve, layer).await;
    assert_eq!(world.get("/?7").await.number("x-ratelimit-remaining"), 3);
    assert_eq!(world.get("/?0").await.header("x-ratelimit-remaining"), None);
    assert_eq!(world.get("/?4").await.status, 429);
    assert_eq!(world.get("/?3").await.status, 200);
    let never = world.get("/?11").await;
    assert_eq!((never.status.as_u16(), never.header("retry-after")), (400, None));
    let problem: serde_json::Value = serde_json::from_str(&never.body).unwrap();
    assert_eq!(
        (&problem["policy"], &problem["cost"], &problem["limit"]),
        (&"upload".into(), &11.into(), &10.into())
    );
    assert_eq!(world.app.calls(), 3);
}

pub(super) async fn skipped_request_is_not_counted_and_has_no_decision(serve: Serve) {
    let layer = RateLimitLayer::new(two(&in_memory(), "api"), by_key());
    let mut world = World::start(serve, layer.skip(|parts| parts.uri.path() == "/health")).await;
    for _ in 0..5 {
        let reply = world.get("/health").await;
        assert_eq!((reply.status.as_u16(), &*reply.body), (200, "hello"));
        assert_eq!(reply.header("x-ratelimit-limit"), None);
    }
    assert_eq!(world.get("/").await.body, "hello, 1 more");
}

pub(super) async fn request_without_a_key_is_rejected_shared_or_skipped(serve: Serve) {
    for (missing_key, expected) in [
        (MissingKey::Reject, [400, 400, 400]),
        (MissingKey::Share, [200, 200, 429]),
        (MissingKey::Skip, [200, 200, 200]),
    ] {
        let layer = RateLimitLayer::new(two(&in_memory(), "api"), by_key()).missing_key(missing_key);
        let mut world = World::start(serve, layer).await;
        for expected in expected {
            let reply = world.send(Method::GET, "/", &[]).await;
            assert_eq!(reply.status, expected, "{missing_key:?}");
            assert_eq!(reply.body.contains("lacks the key that the limit"), expected == 400);
        }
    }
}

pub(super) async fn preflight_without_a_key_is_rejected_unless_it_is_skipped(serve: Serve) {
    let preflight = [("origin", "https://shop.example"), ("access-control-request-method", "POST")];
    let layer = || RateLimitLayer::new(two(&in_memory(), "api"), by_key());
    let mut rejecting = World::start(serve, layer()).await;
    assert_eq!(rejecting.send(Method::OPTIONS, "/", &preflight).await.status, 400);
    let skipping = layer().skip(|parts| parts.method == Method::OPTIONS);
    let mut skipping = World::start(serve, skipping).await;
    for _ in 0..3 {
        assert_eq!(skipping.send(Method::OPTIONS, "/", &preflight).await.body, "hello");
    }
    assert_eq!(skipping.get("/").await.body, "hello, 1 more");
}

pub(super) async fn rejection_hook_responds_in_place_of_the_layer(serve: Serve) {
    let layer = RateLimitLayer::new(two(&in_memory(), "api"), by_key());
    let layer = layer.on_rejection(|parts, rejection| async move {
        match rejection.reason() {
            Reason::Denied(_) => {
                let response = Response::builder().header("x-from", parts.uri.path());
                response.body("the most popular results".to_owned()).unwrap()
            }
            _ => rejection.response(&parts),
        }
    });
    let mut world = World::start(serve, layer).await;
    assert_eq!(world.statuses(&["a", "a"]).await, [200, 200]);
    let cached = world.get("/search").await;
    assert_eq!((cached.status.as_u16(), &*cached.body), (200, "the most popular results"));
    assert_eq!(cached.header("x-from"), Some("/search"));
    assert_eq!(cached.header("cache-control"), Some("no-store"));
    assert_eq!(cached.number("x-ratelimit-remaining"), 0);
    assert_eq!(world.send(Method::GET, "/", &[]).await.status, 400);
    assert_eq!(world.app.calls(), 2);
}

pub(super) async fn charge_follows_the_status_of_the_response(serve: Serve) {
    let redis = tidegate_testkit::shared();
    let gate = two(&limiter(&redis), "login");
    let layer = RateLimitLayer::new(gate.clone(), by_key());
    let mut world = World::start(serve, layer.charge(Charge::when(|response| response.status == 401))).await;
    for (code, left) in [(200, 2), (401, 1), (503, 1), (401, 0)] {
        let reply = world.get(&format!("/status/{code}")).await;
        assert_eq!((reply.status.as_u16(), reply.number("x-ratelimit-remaining")), (code, left));
        assert_eq!(remaining(&gate).await, left);
    }
    assert_eq!(world.get("/status/200").await.status, 429);
}

pub(super) async fn charge_follows_the_usage_and_the_bytes_of_the_body(serve: Serve) {
    let redis = tidegate_testkit::shared();
    let limiter = limiter(&redis);
    for (name, charge, path, used) in
        [("usage", Charge::usage(), "/usage/40", 40), ("bytes", Charge::bytes(1), "/stream", 7)]
    {
        let gate = limiter.gate(name, Quota::fixed_window(100, HOUR));
        let layer = RateLimitLayer::new(gate.clone(), by_key()).cost(|_| 10).charge(charge);
        let mut world = World::start(serve, layer).await;
        world.app.step();
        let reply = world.get(path).await;
        assert_eq!(reply.number("x-ratelimit-remaining"), 90, "sent before the body");
        soon("the body is charged", async || remaining(&gate).await == 100 - used).await;
    }
}

pub(super) async fn stream_is_sent_piece_by_piece(serve: Serve) {
    let gate = in_memory().gate("bytes", Quota::fixed_window(100, HOUR));
    let slots = Limiter::in_memory().gate("slots", Quota::in_flight(9));
    for layer in
        [RateLimitLayer::new(gate, by_key()).charge(Charge::bytes(1)), RateLimitLayer::new(slots, by_key())]
    {
        let mut world = World::start(serve, layer).await;
        let response = world.client.begin(Method::GET, "/stream", &[KEY_A]).await.unwrap();
        assert_eq!(response.headers().get("content-length"), None);
        let mut body = response.into_body();
        assert_eq!(next_piece(&mut body).await.unwrap().unwrap(), "one,");
        assert_eq!(world.app.inside(), 1, "the second piece waits for the client's step");
        world.app.step();
        assert_eq!(next_piece(&mut body).await.unwrap().unwrap(), "two");
        assert!(next_piece(&mut body).await.is_none());
        soon("the body is dropped", async || world.app.inside() == 0).await;
    }
}

/// Starts a server whose key `a` has one slot.
async fn with_one_slot(serve: Serve, redis: &Redis) -> World {
    let gate = limiter(redis).gate("uploads", Quota::in_flight(1));
    World::start(serve, RateLimitLayer::new(gate, by_key())).await
}

pub(super) async fn permit_is_held_until_the_body_has_ended(serve: Serve) {
    let redis = tidegate_testkit::shared();
    let mut world = with_one_slot(serve, &redis).await;
    assert_eq!(world.get("/permits").await.body, "empty: false");
    for _ in 0..2 {
        let mut other = world.server.connect().await;
        let response = other.begin(Method::GET, "/stream", &[KEY_A]).await.unwrap();
        assert_eq!(response.headers()["ratelimit-policy"], r#""uploads";q=1;qu="concurrent-requests""#);
        let mut body = response.into_body();
        next_piece(&mut body).await.unwrap().unwrap();
        let denied = world.get("/").await;
        assert_eq!((denied.status.as_u16(), denied.number("retry-after") >= 1), (429, true));
        world.app.step();
        while next_piece(&mut body).await.is_some() {}
        world.admitted_soon().await;
    }
}

pub(super) async fn permit_is_released_when_the_client_leaves(serve: Serve) {
    let redis = tidegate_testkit::shared();
    let mut world = with_one_slot(serve, &redis).await;
    for path in ["/hold", "/endless"] {
        let mut leaving = world.server.connect().await;
        let request = tokio::spawn(async move {
            let response = leaving.begin(Method::GET, path, &[KEY_A]).await.unwrap();
            (next_piece(&mut response.into_body()).await, std::future::pending::<Client>().await, leaving)
        });
        soon("the request is inside", async || world.app.inside() == 1).await;
        assert_eq!(world.get("/").await.status, 429);
        request.abort();
        soon("the request is dropped", async || world.app.inside() == 0).await;
        world.admitted_soon().await;
    }
}

pub(super) async fn permit_is_released_when_a_handler_or_a_body_fails_or_panics(serve: Serve) {
    let redis = tidegate_testkit::shared();
    let mut world = with_one_slot(serve, &redis).await;
    let failed = world.get("/fail").await;
    assert_eq!((failed.status.as_u16(), failed.header("ratelimit")), (FAILED, Some(r#""uploads";r=0"#)));
    world.admitted_soon().await;
    let mut other = world.server.connect().await;
    let response = other.begin(Method::GET, "/broken", &[KEY_A]).await.unwrap();
    let mut body = response.into_body();
    assert_eq!(next_piece(&mut body).await.unwrap().unwrap(), "one,");
    world.app.step();
    assert!(next_piece(&mut body).await.unwrap().is_err());
    world.admitted_soon().await;
    let mut other = world.server.connect().await;
    assert!(other.begin(Method::GET, "/panic", &[KEY_A]).await.is_err());
    world.admitted_soon().await;
    assert_eq!(world.app.inside(), 0);
}

pub(super) async fn head_request_has_the_headers_without_a_body_and_releases_its_permit_at_the_end(
    serve: Serve,
) {
    let redis = tidegate_testkit::shared();
    let mut world = with_one_slot(serve, &redis).await;
    let mut other = world.server.connect().await;
    let head = other.send(Method::HEAD, "/stream", &[KEY_A]).await;
    assert_eq!((head.status.as_u16(), &*head.body), (200, ""));
    assert_eq!(head.header("ratelimit"), Some(r#""uploads";r=0"#));
    // hyper drops the body. actix-web polls it to its end, so its request is at work until then.
    world.app.step();
    world.admitted_soon().await;
    soon("the body is dropped", async || world.app.inside() == 0).await;
}

pub(super) async fn rules_from_files_limit_requests(serve: Serve) {
    let rules = "
domain: api
rate_limits:
  - actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }]
descriptors:
  - { key: api_key, rate_limit: { name: keys, unit: hour, requests_per_unit: 2 } }
";
    let redis = tidegate_testkit::shared();
    let rules = Rules::parse("api.yaml", rules).unwrap().bind(&limiter(&redis));
    let layer = RateLimitLayer::with_rules(rules, "api").unwrap();
    let mut world = World::start(serve, layer).await;
    for left in [1, 0] {
        let reply = world.get("/rules").await;
        assert_eq!((&*reply.body, reply.number("x-ratelimit-remaining")), ("keys", left));
    }
    let denied = world.get("/").await;
    assert_eq!((denied.status.as_u16(), &*denied.limits()[0].name), (429, "keys"));
    assert_eq!(world.statuses(&["b"]).await, [200]);
}

pub(super) async fn request_waits_for_its_turn_in_a_bounded_queue(serve: Serve) {
    let limiter = Limiter::in_memory();
    let gate = limiter.gate("turns", Quota::token_bucket(1, Rate::per_second(4)));
    let mut world = World::start(serve, RateLimitLayer::new(gate, by_key()).wait(HOUR, 1)).await;
    assert_eq!(world.statuses(&["a", "a", "a"]).await, [200, 200, 200]);

    let gate = limiter.gate("queue", Quota::fixed_window(1, HOUR));
    let mut world = World::start(serve, RateLimitLayer::new(gate, by_key()).wait(2 * HOUR, 1)).await;
    assert_eq!(world.statuses(&["a"]).await, [200]);
    let server = &world.server;
    let (first, other) = (Box::pin(status(server, "/")), Box::pin(status(server, "/")));
    let (rejected, waiting) = futures_util::future::select(first, other).await.factor_first();
    assert_eq!(rejected, 429, "the other one waits");
    drop(waiting);
    soon("the client that left has left the queue", async || {
        tokio::time::timeout(Duration::from_millis(20), status(server, "/")).await.is_err()
    })
    .await;
    assert_eq!(world.app.calls(), 1);
}

pub(super) async fn closed_gate_is_a_503(serve: Serve) {
    let limiter = in_memory();
    let layer = RateLimitLayer::new(two(&limiter, "api"), by_key());
    let mut world = World::start(serve, layer).await;
    limiter.control().switch("api", Switch::Closed, None).await.unwrap();
    let closed = world.get("/").await;
    assert_eq!(closed.status, 503);
    assert!((1..=10).contains(&closed.number("retry-after")), "{closed:?}");
    assert!(closed.body.contains("An operator has closed \\\"api\\\" for now."), "{}", closed.body);
    limiter.control().end_switch("api").await.unwrap();
    assert_eq!(world.get("/").await.body, "hello, 1 more");
}

pub(super) async fn failure_policy_decides_without_redis(serve: Serve) {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let deadline = Duration::from_secs(1);
    let failing = builder(&url).deadline(deadline).on_failure(OnFailure::Error).build().unwrap();
    let layer = || RateLimitLayer::new(two(&failing, "api"), by_key());
    let rejected = World::start(serve, layer()).await.get("/").await;
    assert_eq!((rejected.status.as_u16(), rejected.number("retry-after")), (503, 1));
    let admitted = World::start(serve, layer().on_error(OnError::Admit)).await.get("/").await;
    assert_eq!((admitted.status.as_u16(), &*admitted.body), (200, "hello"));
    let local = builder_as_is(&url).deadline(deadline).instances(1).build().unwrap();
    let mut local = World::start(serve, RateLimitLayer::new(two(&local, "api"), by_key())).await;
    assert_eq!(local.statuses(&["a", "a", "a"]).await, [200, 200, 429]);
}

pub(super) async fn client_address_is_read_behind_trusted_proxies_only(serve: Serve) {
    let behind = || ClientIp::behind(["127.0.0.0/8"]).unwrap();
    let list = |first, last| [("x-forwarded-for", first), ("x-forwarded-for", last)];
    for (ip, requests) in [
        // A client cannot choose what the proxies appended last.
        (behind(), [list("198.51.100.1", "203.0.113.9"), list("198.51.100.2, 203.0.113.9", "127.0.0.5")]),
        (ClientIp::hops(1), [list("198.51.100.1", "203.0.113.9"), list("198.51.100.2", "203.0.113.9")]),
        (
            behind().forwarded(),
            [
                [("forwarded", "for=198.51.100.1"), ("forwarded", "for=203.0.113.9")],
                [("forwarded", "for=198.51.100.2, for=203.0.113.9"), ("x-forwarded-for", "198.51.100.7")],
            ],
        ),
        (
            behind().header("x-real-ip"),
            [
                [("x-real-ip", "203.0.113.9"), ("x-forwarded-for", "198.51.100.1")],
                [("x-real-ip", "203.0.113.9"), ("forwarded", "for=198.51.100.2")],
            ],
        ),
        // Without a trusted proxy, no header is read.
        (ClientIp::peer(), [list("198.51.100.1", "203.0.113.1"), list("198.51.100.2", "203.0.113.2")]),
    ] {
        let gate = in_memory().gate("api", Quota::fixed_window(1, HOUR));
        let key = Key::client_ip(ip.clone());
        let mut world = World::start(serve, RateLimitLayer::new(gate.clone(), key)).await;
        assert_eq!(world.send(Method::GET, "/", &requests[0]).await.status, 200, "{ip:?}");
        assert_eq!(world.send(Method::GET, "/", &requests[1]).await.status, 429, "{ip:?}");
        let is_peer = format!("{ip:?}") == format!("{:?}", ClientIp::peer());
        let key = if is_peer { "127.0.0.1" } else { "203.0.113.9" };
        assert_eq!(gate.peek(key).await.unwrap().remaining(), 0, "{ip:?}");
    }
}
