//! A real Prometheus scrapes the admin ports of two servers: the dashboard shows their metrics, and the alerts of the
//! group `tidegate-server` fire because of their causes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::{Admin, Server, ServiceMetrics, Tls};
use tidegate_testkit::{Fault, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::admin_fixture::{client, tokens};
use super::fixture::{self, ANY, Running, descriptor, on, request};
use super::raw::RawClient;
use crate::support::fixture::builder;
use crate::support::prometheus::{OF_SERVICE, QuickAlerts, Scraping, dashboard_queries, now, soon};

/// Over Envoy's protocol, the service decides by the first rule, and fails by the second.
const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
  - key: job
    rate_limit: { in_flight: 10 }
";

/// Two servers on a Redis behind a proxy, one of them with TLS, and a Prometheus that scrapes them.
struct Fleet {
    _redis: Arc<tidegate_testkit::Server>,
    proxy: Proxy,
    plain: Running,
    encrypted: Running,
    scraping: Scraping,
    _alerts: QuickAlerts,
}

impl Fleet {
    async fn start() -> Self {
        let redis = tidegate_testkit::shared();
        let proxy = Proxy::start(redis.url()).unwrap();
        let pair = rcgen::generate_simple_self_signed(["limits".to_owned()]).unwrap();
        let tls = Tls::new(pair.cert.pem().as_bytes(), pair.signing_key.serialize_pem().as_bytes()).unwrap();
        let plain = Running::of(server(&proxy)).await;
        let encrypted = Running::of(server(&proxy).tls(tls)).await;
        let alerts = QuickAlerts::write();
        let targets = [&plain, &encrypted].map(|server| server.admin_addr.unwrap().to_string());
        let scraping = Scraping::of(&targets, Some(alerts.path()));
        Self { _redis: redis, proxy, plain, encrypted, scraping, _alerts: alerts }
    }

    /// Waits until the alert fires for as many groups of series.
    async fn fires(&self, alert: &str, groups: usize) {
        let query = format!("ALERTS{{alertname='{alert}',alertstate='firing'}}");
        soon(alert, async || self.scraping.query(&query).await.len() == groups).await;
    }
}

fn server(proxy: &Proxy) -> Server {
    let metrics = ServiceMetrics::new();
    let limiter = builder(&proxy.url()).observer(metrics.observer()).build().unwrap();
    let admin = Admin::new(ANY).tokens(tokens()).public_metrics(true);
    Server::new(on(RULES, &limiter)).metrics(metrics).admin(admin).drain_notice(Duration::ZERO)
}

/// Sends a request with this descriptor over gRPC and over HTTP, again and again.
async fn send_requests(port: u16, json: String, key: &'static str) {
    let (mut grpc, http) = (fixture::client(port).await, client());
    let body = format!(r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"{key}","value":"ada"}}]}}]}}"#);
    loop {
        let _ = grpc.should_rate_limit(request([descriptor(&[(key, "ada")])])).await;
        let _ = http.post(&json).body(body.clone()).send().await;
        sleep(Duration::from_millis(2)).await;
    }
}

/// Sends a request without a domain and a malformed message, again and again.
async fn send_mistakes(address: SocketAddr) {
    let (mut client, mut raw) = (fixture::client(address.port()).await, RawClient::connect(address).await);
    loop {
        client.should_rate_limit(RateLimitRequest::default()).await.unwrap_err();
        raw.send(vec![0xff]).await.unwrap_err();
        sleep(Duration::from_millis(2)).await;
    }
}

/// Speaks no TLS to a port with TLS, again and again.
async fn fail_handshakes(address: SocketAddr) {
    loop {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
        sleep(Duration::from_millis(20)).await;
    }
}

/// Sends a wrong token, again and again.
async fn guess_tokens(page: String) {
    let http = client();
    loop {
        http.get(&page).bearer_auth("a-guess").send().await.unwrap();
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_fire_when_their_causes_occur() {
    let fleet = Fleet::start().await;
    let Fleet { plain, encrypted, scraping, .. } = &fleet;
    let mut fired = BTreeSet::new();
    let mut fires = async |alert: &str, groups| {
        fleet.fires(alert, groups).await;
        assert!(fired.insert(alert.to_owned()));
    };
    let load = |key| {
        let mut load = JoinSet::new();
        load.spawn(send_requests(plain.grpc_addr.port(), plain.url("/json"), key));
        load
    };

    // Both protocols.
    let failing = load("job");
    fires("TidegateServiceErrors", 2).await;
    drop(failing);

    let decided = load("user");
    fleet.proxy.set(Fault::Slow(Duration::from_millis(150)));
    fires("TidegateServiceSlow", 2).await;
    drop(decided);
    fleet.proxy.set(Fault::None);

    let mut clients = JoinSet::new();
    clients.spawn(fail_handshakes(encrypted.grpc_addr));
    fires("TidegateHandshakesFail", 1).await;
    clients.spawn(guess_tokens(encrypted.admin_url("/config")));
    fires("TidegateTokensRejected", 1).await;

    let written: BTreeSet<_> = scraping.alerts("tidegate-server").await.into_iter().collect();
    assert_eq!(fired, written);
}

/// Shows that the alerts above fire because of their causes, not for every service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_are_quiet_for_a_healthy_service_that_the_dashboard_shows() {
    let since = now();
    let fleet = Fleet::start().await;
    let Fleet { plain, encrypted, scraping, .. } = &fleet;
    let mut load = JoinSet::new();
    load.spawn(send_requests(plain.grpc_addr.port(), plain.url("/json"), "user"));
    load.spawn(send_mistakes(plain.grpc_addr));
    // One mistake of an operator.
    client().get(encrypted.admin_url("/config")).bearer_auth("a-typo").send().await.unwrap();
    for (panel, query) in dashboard_queries().iter().filter(|(_, query)| query.contains(OF_SERVICE)) {
        soon(&format!("{panel}: {query}"), async || scraping.has_data(query, since).await).await;
    }
    soon("the scrapes cover the range of the alerts", async || {
        let scraped = scraping.query("count_over_time(tidegate_server_connections{port='grpc'}[1m])").await;
        scraped.len() == 2 && scraped.iter().all(|(_, scrapes)| *scrapes > 25.0)
    })
    .await;
    // The latency depends on the machine, so these alerts may fire.
    let firing = scraping.query("ALERTS{alertname!~'TidegateNearDeadline|TidegateServiceSlow'}").await;
    assert!(firing.is_empty(), "{firing:?}");
}
