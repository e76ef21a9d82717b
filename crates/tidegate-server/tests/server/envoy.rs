//! A real Envoy in front of a service, with its rate-limit filter pointed at the server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use reqwest::{Client, Response};
use tidegate::algorithm::NAMES;
use tidegate::{Limiter, OnFailure};
use tidegate_http::Headers;
use tidegate_server::Server as Service;
use tidegate_testkit::{Envoy, Server};
use tokio::net::TcpListener;

use super::fixture::{ANY, Running, in_memory, on};
use crate::support::fixture::{namespace, soon};

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 2, name: per_user }
    metadata: { plan: free }
  - key: user
    value: root
    rate_limit: { unlimited: true }
  - key: user
    value: tester
    rate_limit: { unit: day, requests_per_unit: 1 }
    shadow_mode: true
  - key: user
    value: odd
    rate_limit: { every: 15m, requests_per_unit: 4 }
  - key: tokens
    rate_limit: { unit: day, requests_per_unit: 10 }
  - key: partner
    rate_limit: { unit: day, requests_per_unit: 3, replaces: [{ name: per_user }] }
---
domain: models
charge: each
descriptors:
  - key: provider
    value: first
    quota_mode: true
    metadata: { provider: first }
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: provider
    value: second
    quota_mode: true
    metadata: { provider: second }
    rate_limit: { unit: day, requests_per_unit: 2 }
";

/// Returns the algorithms that the rules below have limits of, 20 units a day.
fn algorithms() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(|name| *name != "in_flight")
}

/// Rules for units that a response has used, one for each algorithm, with these further settings of each.
fn rules_for_used_units(settings: &str) -> String {
    let rule = |algorithm| {
        format!(
            "
  - key: used
    value: {algorithm}
    descriptors:
      - key: route
        rate_limit: {{ unit: day, requests_per_unit: 20, algorithm: {algorithm} }}
        {settings}"
        )
    };
    format!("domain: d\ndescriptors:{}", algorithms().map(rule).collect::<String>())
}

/// `limits`: the address of the rate-limit service; `upstream`: that of the service behind Envoy.
fn config(limits: SocketAddr, upstream: SocketAddr, failure_mode_deny: bool) -> String {
    let (limits, upstream) = (limits.port(), upstream.port());
    format!(
        r#"
static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {{port}} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: test
          http_filters:
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata:
              - metadata_namespace: plans
                value: {{ own: {{ requests_per_unit: 1, unit: HOUR }} }}
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: d
              failure_mode_deny: {failure_mode_deny}
              timeout: 2s
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              rate_limit_service:
                transport_api_version: V3
                grpc_service: {{ envoy_grpc: {{ cluster_name: limits }} }}
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              response_headers_to_add:
              - header: {{ key: x-plan, value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:plan)%" }}
              - header: {{ key: x-provider, value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:provider)%" }}
              routes:
              - match: {{ prefix: /own }}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions: [{{ request_headers: {{ header_name: x-user, descriptor_key: user }} }}]
                    limit: {{ dynamic_metadata: {{ metadata_key: {{ key: plans, path: [{{ key: own }}] }} }} }}
              - match: {{ prefix: /tokens }}
                route: {{ cluster: upstream }}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{{ request_headers: {{ header_name: x-user, descriptor_key: tokens }} }}]
                      hits_addend: {{ number: 5 }}
              - match: {{ prefix: /done }}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions: [{{ request_headers: {{ header_name: x-user, descriptor_key: tokens }} }}]
                    apply_on_stream_done: true
              - match: {{ prefix: /bytes }}
                route: {{ cluster: upstream }}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [{{ request_headers: {{ header_name: x-user, descriptor_key: tokens }} }}]
                      apply_on_stream_done: true
                      hits_addend: {{ format: "%BYTES_SENT%" }}
              - match: {{ prefix: /nine }}
                route: {{ cluster: upstream }}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: &nine
                      - request_headers: {{ header_name: x-used, descriptor_key: used }}
                      - generic_key: {{ descriptor_key: route, descriptor_value: nine }}
                      hits_addend: {{ number: 0 }}
                    - actions: *nine
                      apply_on_stream_done: true
                      hits_addend: {{ number: 9 }}
              - match: {{ prefix: /seven }}
                route: {{ cluster: upstream }}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: &seven
                      - request_headers: {{ header_name: x-used, descriptor_key: used }}
                      - generic_key: {{ descriptor_key: route, descriptor_value: seven }}
                      hits_addend: {{ number: 0 }}
                    - actions: *seven
                      apply_on_stream_done: true
                      hits_addend: {{ number: 7 }}
              - match: {{ prefix: /models }}
                route: {{ cluster: upstream }}
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    domain: models
                    rate_limits:
                    - actions: [{{ generic_key: {{ descriptor_key: provider, descriptor_value: first }} }}]
                    - actions: [{{ generic_key: {{ descriptor_key: provider, descriptor_value: second }} }}]
              - match: {{ prefix: / }}
                route:
                  cluster: upstream
                  rate_limits:
                  - actions: [{{ request_headers: {{ header_name: x-user, descriptor_key: user }} }}]
                  - actions: [{{ request_headers: {{ header_name: x-partner, descriptor_key: partner }} }}]
  clusters:
  - name: limits
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{ http2_protocol_options: {{}} }}
    load_assignment:
      cluster_name: limits
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {limits} }} }} }} }}] }}]
  - name: upstream
    connect_timeout: 1s
    load_assignment:
      cluster_name: upstream
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {upstream} }} }} }} }}] }}]
"#
    )
}

async fn upstream() -> SocketAddr {
    let app = Router::new().fallback(async || "hello");
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn envoy(limits: SocketAddr, failure_mode_deny: bool) -> Envoy {
    let config = config(limits, upstream().await, failure_mode_deny);
    tokio::task::spawn_blocking(move || Envoy::start(&config)).await.unwrap().unwrap()
}

async fn get(envoy: &Envoy, path: &str, headers: &[(&str, &str)]) -> Response {
    let request = Client::new().get(format!("{}{path}", envoy.url()));
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).send().await.unwrap()
}

async fn status(envoy: &Envoy, path: &str, user: &str) -> u16 {
    get(envoy, path, &[("x-user", user)]).await.status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_admits_and_denies_by_the_rules() {
    let service = in_memory(RULES).headers(Headers::new().x_ratelimit(false)).denied_body("slow down\n");
    let server = Running::start(service).await;
    let envoy = envoy(server.grpc_addr, true).await;
    let header = |response: &Response, name: &str| {
        response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
    };

    let admitted = get(&envoy, "/", &[("x-user", "ada")]).await;
    assert_eq!(admitted.status(), 200);
    assert_eq!(header(&admitted, "x-ratelimit-limit").as_deref(), Some("2, 2;w=86400;name=\"per_user\""));
    assert_eq!(header(&admitted, "x-ratelimit-remaining").as_deref(), Some("1"));
    assert_eq!(header(&admitted, "ratelimit-policy").as_deref(), Some("\"per_user\";q=2;w=86400"));
    assert_eq!(header(&admitted, "x-plan").as_deref(), Some("free"));
    assert_eq!(admitted.text().await.unwrap(), "hello");
    assert_eq!(status(&envoy, "/", "ada").await, 200);
    let denied = get(&envoy, "/", &[("x-user", "ada")]).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(header(&denied, "x-ratelimit-remaining").as_deref(), Some("0"));
    let reset: u64 = header(&denied, "x-ratelimit-reset").unwrap().parse().unwrap();
    assert_eq!(header(&denied, "retry-after").unwrap().parse::<u64>().unwrap(), reset);
    assert_eq!(header(&denied, "x-envoy-ratelimited").as_deref(), Some("true"));
    assert_eq!(denied.text().await.unwrap(), "slow down\n");

    for _ in 0..3 {
        assert_eq!(status(&envoy, "/", "root").await, 200, "unlimited");
        assert_eq!(status(&envoy, "/", "tester").await, 200, "in shadow mode");
    }
    let shadow = get(&envoy, "/", &[("x-user", "tester")]).await;
    assert_eq!(header(&shadow, "x-ratelimit-remaining").as_deref(), Some("0"), "as if denied");

    // Envoy has no unit for 15 minutes.
    let odd = get(&envoy, "/", &[("x-user", "odd")]).await;
    assert_eq!(header(&odd, "x-ratelimit-limit").as_deref(), Some("4"));
    assert_eq!(header(&odd, "ratelimit-policy").as_deref(), Some("\"4/15min\";q=4;w=900"));

    // The limit in the descriptor, of another count than the rule's.
    assert_eq!(status(&envoy, "/own", "bob").await, 200);
    assert_eq!(status(&envoy, "/own", "bob").await, 429);
    assert_eq!(status(&envoy, "/", "bob").await, 200);

    // The partner's rule replaces the user's.
    for expected in [200, 200, 200, 429] {
        let response = get(&envoy, "/", &[("x-user", "eve"), ("x-partner", "acme")]).await;
        assert_eq!(response.status(), expected);
    }
    assert_eq!(status(&envoy, "/", "eve").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_of_a_descriptor_and_of_an_ended_response_are_charged() {
    let server = Running::start(in_memory(RULES)).await;
    let envoy = envoy(server.grpc_addr, true).await;
    assert_eq!(status(&envoy, "/tokens", "ada").await, 200);
    assert_eq!(tokens(&server).await, 5);
    // Envoy charges after the response, and does not wait for the decision.
    assert_eq!(status(&envoy, "/done", "ada").await, 200);
    soon("charged", async || tokens(&server).await == 4).await;
    assert_eq!(status(&envoy, "/tokens", "ada").await, 429);
    assert_eq!(tokens(&server).await, 4);
    // As many units as the response has bytes, which only its end tells: "hello" has 5. A denial charges nothing.
    assert_eq!(status(&envoy, "/bytes", "bob").await, 200);
    soon("charged", async || tokens_of(&server, "bob").await == 5).await;
    assert_eq!(status(&envoy, "/bytes", "bob").await, 200);
    soon("charged", async || tokens_of(&server, "bob").await == 0).await;
    assert_eq!(status(&envoy, "/tokens", "bob").await, 429);
}

/// Envoy peeks before the response, and charges when it has ended. The costs do not divide the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_used_by_a_response_deny_once_they_are_above_the_limit() {
    let server = Running::start(in_memory(&rules_for_used_units("charge_used: true"))).await;
    let envoy = envoy(server.grpc_addr, true).await;
    let client = server.client().await;
    let left = async |algorithm: &str, route: &str| {
        use super::fixture::{descriptor, request, with_hits};
        let peek = request([with_hits(descriptor(&[("used", algorithm), ("route", route)]), 0)]);
        client.clone().should_rate_limit(peek).await.unwrap().into_inner().statuses[0].limit_remaining
    };
    for (route, cost) in [("nine", 9), ("seven", 7)] {
        for algorithm in algorithms() {
            let mut passed = 0;
            for _ in 0..10 {
                let response = get(&envoy, &format!("/{route}"), &[("x-used", algorithm)]).await;
                if response.status() == 200 {
                    passed += 1;
                    let expected = 20_u32.saturating_sub(passed * cost);
                    soon("charged", async || left(algorithm, route).await == expected).await;
                }
            }
            assert_eq!(passed, 3, "{algorithm}, {cost} units of 20");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_passes_until_all_quotas_are_used_up() {
    let server = Running::start(in_memory(RULES)).await;
    let envoy = envoy(server.grpc_addr, true).await;
    for (expected, provider) in [(200, Some("first")), (200, Some("second")), (429, None)] {
        let response = get(&envoy, "/models", &[]).await;
        assert_eq!(response.status(), expected);
        if let Some(provider) = provider {
            assert_eq!(response.headers()["x-provider"], provider);
        }
    }
}

async fn tokens(server: &Running) -> u64 {
    tokens_of(server, "ada").await
}

async fn tokens_of(server: &Running, user: &str) -> u64 {
    use super::fixture::{descriptor, request, with_hits};
    let peek = request([with_hits(descriptor(&[("tokens", user)]), 0)]);
    let response = server.client().await.should_rate_limit(peek).await.unwrap().into_inner();
    response.statuses[0].limit_remaining.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_decides_alone_while_the_service_is_stopped() {
    let start = async |at| Running::at(Service::new(in_memory(RULES)).drain_notice(Duration::ZERO), at).await;
    let server = start(ANY).await;
    let address = server.grpc_addr;
    let (lenient, strict) = (envoy(address, false).await, envoy(address, true).await);
    assert_eq!(status(&lenient, "/", "ada").await, 200);
    assert_eq!(status(&strict, "/", "ada").await, 200);
    assert_eq!(status(&strict, "/", "ada").await, 429);
    assert!(server.stop().await);
    assert_eq!(status(&lenient, "/", "ada").await, 200, "an error admits");
    assert_eq!(status(&strict, "/", "ada").await, 500, "failure_mode_deny");
    let _again = start(address).await;
    soon("the service decides again", async || status(&strict, "/", "eve").await == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_policy_answers_envoy_while_redis_is_paused() {
    let redis = Server::process(&[]).unwrap();
    for (policy, expected) in [(OnFailure::Open, 200), (OnFailure::Closed, 429), (OnFailure::Error, 500)] {
        let limiter = Limiter::builder().url(redis.url()).namespace(&namespace()).on_failure(policy);
        let limiter = limiter.deadline(Duration::from_secs(1)).stderr_warnings(false).build().unwrap();
        let server = Running::start(on(RULES, &limiter)).await;
        let envoy = envoy(server.grpc_addr, true).await;
        assert_eq!(status(&envoy, "/", "ada").await, 200);
        let paused = redis.pause().unwrap();
        let asked = Instant::now();
        assert_eq!(status(&envoy, "/", "ada").await, expected, "{policy:?}");
        assert!(asked.elapsed() < Duration::from_secs(2), "within the timeout of the filter");
        drop(paused);
    }
}
