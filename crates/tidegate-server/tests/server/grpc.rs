//! The gRPC port: errors, health, reflection, and the ages of connections.

use std::time::Duration;

use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Decided;
use tidegate_server::{RateLimitService, Server};
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::fixture::{Running, client, descriptor, given_back, in_memory, on, request, with_hits};
use super::raw::RawClient;
use crate::support::door::Door;
use crate::support::fixture::{namespace, soon};

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: held
    rate_limit: { in_flight: 2 }
";
const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

#[tokio::test]
async fn denial_is_a_response_and_not_an_error() {
    let server = Running::start(in_memory(RULES)).await;
    let mut client = server.client().await;
    for expected in [Decided::Ok, Decided::Ok, Decided::OverLimit] {
        let response = client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await.unwrap();
        assert_eq!(response.into_inner().overall_code(), expected);
    }
    drop(client);
    assert!(server.stop().await);
}

#[tokio::test]
async fn each_error_has_its_code() {
    let nothing = tidegate::Limiter::builder().url("redis://127.0.0.1:1").stderr_warnings(false);
    let away = on(RULES, &nothing.on_failure(tidegate::OnFailure::Error).build().unwrap());
    let user = || descriptor(&[("user", "ada")]);
    let cases: [(RateLimitService, RateLimitRequest, Code); 5] = [
        (in_memory(RULES), request([]), Code::InvalidArgument),
        (
            in_memory(RULES),
            RateLimitRequest { domain: String::new(), ..request([user()]) },
            Code::InvalidArgument,
        ),
        (in_memory(RULES), request([descriptor(&[("held", "x")])]), Code::FailedPrecondition),
        (away.clone(), request([user()]), Code::Unavailable),
        (away, request([given_back(user())]), Code::Unavailable),
    ];
    for (service, request, expected) in cases {
        let server = Running::start(service).await;
        let error = server.client().await.should_rate_limit(request).await.unwrap_err();
        assert_eq!(error.code(), expected, "{error}");
        assert!(!error.message().is_empty() && !error.message().contains("::"), "names of Rust: {error}");
    }
}

#[tokio::test]
async fn message_above_the_maximum_size_is_an_error() {
    let server = Running::of(Server::new(in_memory(RULES)).max_message_bytes(100)).await;
    let long = "x".repeat(200);
    let error = server.client().await.should_rate_limit(request([descriptor(&[("user", &long)])])).await;
    assert_eq!(error.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn malformed_messages_are_errors_and_the_connection_goes_on() {
    let server = Running::start(in_memory(RULES)).await;
    let mut raw = RawClient::connect(server.grpc_addr).await;
    let valid = prost::Message::encode_to_vec(&request([descriptor(&[("user", "ada")])]));
    let prefixes = (0..valid.len()).map(|end| valid[..end].to_vec());
    let flipped = (0..valid.len()).flat_map(|at| {
        let flip = |bit: u32| {
            let mut bytes = valid.clone();
            bytes[at] ^= 1 << bit;
            bytes
        };
        (0..8).map(flip).collect::<Vec<_>>()
    });
    let mut outcomes = std::collections::BTreeSet::new();
    for bytes in prefixes.chain(flipped) {
        let code = raw.send(bytes.clone()).await.map_or_else(|error| error.code(), |()| Code::Ok);
        assert!(
            matches!(code, Code::Ok | Code::Internal | Code::InvalidArgument | Code::OutOfRange),
            "{code} {bytes:?}"
        );
        outcomes.insert(format!("{code:?}"));
    }
    assert!(outcomes.len() > 2, "{outcomes:?}");
    let decided = server.client().await.should_rate_limit(request([descriptor(&[("user", "zoe")])])).await;
    assert_eq!(decided.unwrap().into_inner().overall_code(), Decided::Ok);
}

#[tokio::test]
async fn health_is_served_under_all_names_and_ends_first() {
    let notice = Duration::from_secs(60);
    let server = Running::of(Server::new(in_memory(RULES)).drain_notice(notice)).await;
    let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for name in ["", SERVICE, "ratelimit"] {
        let status = health.check(ask(name)).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{name}");
    }
    assert_eq!(health.check(ask("other")).await.unwrap_err().code(), Code::NotFound);

    let mut watch = health.watch(ask(SERVICE)).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let mut client = server.client().await;
    let stopping = tokio::spawn(server.stop());
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    for name in ["", "ratelimit"] {
        let status = health.check(ask(name)).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::NotServing, "{name}");
    }
    let decided = client.should_rate_limit(request([descriptor(&[("user", "ada")])])).await;
    assert_eq!(decided.unwrap().into_inner().overall_code(), Decided::Ok, "requests are still accepted");
    stopping.abort();
}

#[tokio::test]
async fn health_follows_redis_only_if_it_is_set_to() {
    let mut redis = tidegate_testkit::Server::process(&[]).unwrap();
    for needs_redis in [false, true] {
        let limiter = tidegate::Limiter::builder().url(redis.url()).namespace(&namespace());
        let limiter = limiter.stderr_warnings(false).build().unwrap();
        let server = Server::new(on(RULES, &limiter)).health_needs_redis(needs_redis);
        let server = Running::of(server.drain_notice(Duration::ZERO)).await;
        let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
        let mut health = HealthClient::new(endpoint.connect().await.unwrap());
        let ask = || HealthCheckRequest { service: "ratelimit".to_owned() };
        let mut is = async |grpc: ServingStatus, http: u16| {
            let status = health.check(ask()).await.unwrap().into_inner().status();
            let healthcheck = reqwest::get(server.url("/healthcheck")).await.unwrap().status();
            let readyz = reqwest::get(server.url("/readyz")).await.unwrap().status();
            status == grpc && healthcheck == http && readyz == 200
        };
        soon("healthy", async || is(ServingStatus::Serving, 200).await).await;
        redis.kill();
        if needs_redis {
            soon("unhealthy", async || is(ServingStatus::NotServing, 500).await).await;
        } else {
            assert!(is(ServingStatus::Serving, 200).await);
        }
        redis.restart().unwrap();
        soon("healthy again", async || is(ServingStatus::Serving, 200).await).await;
    }
}

#[tokio::test]
async fn clients_that_watch_the_health_do_not_hold_the_end_of_the_server() {
    let server = Running::start(in_memory(RULES)).await;
    let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watch.next().await.unwrap().unwrap();
    let watcher = tokio::spawn(async move { while watch.next().await.is_some_and(|next| next.is_ok()) {} });
    assert!(server.stop().await);
    watcher.await.unwrap();
}

#[tokio::test]
async fn reflection_lists_the_services_and_their_files() {
    let server = Running::start(in_memory(RULES)).await;
    let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
    let mut reflection = ServerReflectionClient::new(endpoint.connect().await.unwrap());
    let ask = |request| {
        tokio_stream::iter([ServerReflectionRequest { host: String::new(), message_request: Some(request) }])
    };
    let listed = reflection.server_reflection_info(ask(MessageRequest::ListServices(String::new()))).await;
    let listed = listed.unwrap().into_inner().next().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let names: Vec<&str> = listed.service.iter().map(|service| &*service.name).collect();
    for expected in [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
        assert!(names.contains(&expected), "{names:?}");
    }
    let file = MessageRequest::FileContainingSymbol(SERVICE.to_owned());
    let file = reflection.server_reflection_info(ask(file)).await.unwrap().into_inner().next().await;
    let file = file.unwrap().unwrap().message_response.unwrap();
    assert!(matches!(file, MessageResponse::FileDescriptorResponse(_)), "{file:?}");
}

/// The memory of unfinished requests does not count those of reflection.
#[tokio::test]
async fn reflection_takes_no_long_message() {
    let server = Running::start(in_memory(RULES)).await;
    let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
    let mut reflection = ServerReflectionClient::new(endpoint.connect().await.unwrap());
    let symbol = MessageRequest::FileContainingSymbol("x".repeat(1 << 10));
    let ask = ServerReflectionRequest { host: String::new(), message_request: Some(symbol) };
    let mut answers =
        reflection.server_reflection_info(tokio_stream::iter([ask])).await.unwrap().into_inner();
    let answer = answers.next().await;
    assert!(!matches!(answer, Some(Ok(_))), "{answer:?}");
}

#[tokio::test]
async fn old_connection_is_closed_without_losing_a_request() {
    let age = Duration::from_millis(50);
    let server = Running::of(Server::new(in_memory(RULES)).max_connection_age(age)).await;
    let door = Door::to(server.grpc_addr.port()).await;
    let mut client = client(door.port).await;
    soon("several connections", async || {
        let peek = request([with_hits(descriptor(&[("user", "ada")]), 0)]);
        client.should_rate_limit(peek).await.unwrap();
        door.taken() >= 4
    })
    .await;
}

#[tokio::test]
async fn number_of_health_streams_is_bounded_and_checks_go_on() {
    let server =
        Running::of(Server::new(in_memory(RULES)).max_connections(2).drain_notice(Duration::ZERO)).await;
    let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    let asked = || HealthCheckRequest { service: SERVICE.to_owned() };
    let first = health.watch(asked()).await.unwrap();
    let _second = health.watch(asked()).await.unwrap();
    assert_eq!(health.watch(asked()).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(health.check(asked()).await.unwrap().into_inner().status(), ServingStatus::Serving);
    drop(first);
    soon("the ended stream leaves room", async || health.watch(asked()).await.is_ok()).await;
    drop(health);
    assert!(server.stop().await);
}

#[tokio::test]
async fn connection_has_at_most_32_health_streams() {
    let server = Running::start(in_memory(RULES)).await;
    let connect = async || {
        let endpoint = Endpoint::try_from(format!("http://{}", server.grpc_addr)).unwrap();
        HealthClient::new(endpoint.connect().await.unwrap())
    };
    let (mut health, mut other) = (connect().await, connect().await);
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(health.watch(HealthCheckRequest::default()).await.unwrap());
    }
    let refused = health.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("this connection has 32"), "{refused}");
    other.watch(HealthCheckRequest::default()).await.unwrap();
    streams.pop();
    soon("the ended stream leaves room", async || health.watch(HealthCheckRequest::default()).await.is_ok())
        .await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn service_is_not_ready_while_redis_rejects_charges() {
    let redis = tidegate_testkit::Server::process(&["--maxmemory-policy", "noeviction"]).unwrap();
    let limiter = tidegate::Limiter::builder().url(redis.url()).namespace(&namespace());
    let limiter = limiter.stderr_warnings(false).on_failure(tidegate::OnFailure::Error).build().unwrap();
    let server = Server::new(on(RULES, &limiter)).ready_needs_redis(true).health_needs_redis(true);
    let server = Running::of(server.drain_notice(Duration::ZERO)).await;
    let status = async |path: &str| reqwest::get(server.url(path)).await.unwrap().status().as_u16();
    let rejects = [
        (&["CONFIG", "SET", "maxmemory", "1"][..], &["CONFIG", "SET", "maxmemory", "0"][..]),
        (&["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
        (&["ACL", "SETUSER", "default", "-incrby"], &["ACL", "SETUSER", "default", "+@all"]),
        (&["ACL", "SETUSER", "default", "-hset", "-set"], &["ACL", "SETUSER", "default", "+@all"]),
    ];
    for (reject, accept) in rejects {
        soon("ready", async || status("/readyz").await == 200 && status("/healthcheck").await == 200).await;
        redis.cli(reject).unwrap();
        soon("unready", async || status("/readyz").await == 503 && status("/healthcheck").await == 500).await;
        redis.cli(accept).unwrap();
    }
    soon("ready again", async || status("/readyz").await == 200).await;
}
