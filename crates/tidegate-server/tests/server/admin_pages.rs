//! `/metrics` and `/config`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::{Event, Limiter, Observer};
use tidegate_rules::{Loader, Rules};
use tidegate_server::{Admin, RateLimitService, Server, ServiceMetrics};
use tonic::Code;

use super::admin_fixture::{OPERATOR, RULES, VIEWER, client, tokens};
use super::fixture::{ANY, Running, descriptor, in_memory, request};
use super::raw::RawClient;
use crate::support::fixture::soon;

async fn get(server: &Running, path: &str) -> (u16, String) {
    let response = client().get(server.admin_url(path)).bearer_auth(VIEWER).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// A server that counts, with requests: one is admitted over each protocol, the others have mistakes.
async fn counted(admin: Admin) -> Running {
    let metrics = ServiceMetrics::new();
    let limiter = Limiter::builder().in_memory().observer(metrics.observer()).build().unwrap();
    let service = RateLimitService::new(Rules::parse("test.yaml", RULES).unwrap().bind(&limiter));
    let server = Server::new(service).metrics(metrics).admin(admin).max_message_bytes(100);
    let server = Running::of(server.drain_notice(Duration::ZERO)).await;
    let mut client = server.client().await;
    client.should_rate_limit(request([descriptor(&[("user", "quagga")])])).await.unwrap();
    client.should_rate_limit(request([])).await.unwrap_err();
    client.should_rate_limit(request([descriptor(&[("user", &"x".repeat(100))])])).await.unwrap_err();
    let malformed = RawClient::connect(server.grpc_addr).await.send(vec![0xff]).await.unwrap_err();
    assert_eq!(malformed.code(), Code::Internal);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"quagga"}]}]}"#;
    let http = reqwest::Client::new();
    assert_eq!(http.post(server.url("/json")).body(body).send().await.unwrap().status(), 200);
    assert_eq!(http.get(server.url("/any/path")).send().await.unwrap().status(), 404);
    server
}

/// Parses Prometheus's text format: each line is a comment, or a series and its number.
fn parse(text: &str) -> Vec<(&str, f64)> {
    let samples = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    samples
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let name = series.split('{').next().unwrap();
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{line}");
            assert!(!series.contains('{') || series.ends_with('}'), "{line}");
            (series, value.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .collect()
}

#[tokio::test]
async fn metrics_contain_the_limiter_and_the_ports() {
    let server = counted(Admin::new(ANY).tokens(tokens())).await;
    let (status, text) = get(&server, "/metrics").await;
    assert_eq!(status, 200);
    let samples = parse(&text);
    let value = |series: &str| {
        let found = samples.iter().find(|(name, _)| *name == series);
        found.unwrap_or_else(|| panic!("{series} is not in\n{text}")).1
    };
    for (series, expected) in [
        (r#"tidegate_decisions_total{gate="d / user",outcome="allowed",source="memory"}"#, 2.0),
        (r#"tidegate_server_requests_total{protocol="grpc",method="ShouldRateLimit",code="OK"}"#, 1.0),
        (
            r#"tidegate_server_requests_total{protocol="grpc",method="ShouldRateLimit",code="INVALID_ARGUMENT"}"#,
            1.0,
        ),
        (
            r#"tidegate_server_requests_total{protocol="grpc",method="ShouldRateLimit",code="OUT_OF_RANGE"}"#,
            1.0,
        ),
        (r#"tidegate_server_requests_total{protocol="grpc",method="ShouldRateLimit",code="MALFORMED"}"#, 1.0),
        (r#"tidegate_server_requests_total{protocol="grpc",method="ShouldRateLimit",code="INTERNAL"}"#, 0.0),
        (r#"tidegate_server_requests_total{protocol="http",method="/json",code="200"}"#, 1.0),
        (r#"tidegate_server_requests_total{protocol="http",method="other",code="404"}"#, 1.0),
        (r#"tidegate_server_request_seconds_count{protocol="grpc",method="ShouldRateLimit"}"#, 4.0),
        (r#"tidegate_server_connections{port="admin"}"#, 1.0),
        (r#"tidegate_server_rejected_logins_total{reason="wrong_token"}"#, 0.0),
        (r#"tidegate_server_rejected_connections_total{port="grpc",reason="tls_handshake"}"#, 0.0),
        (r#"tidegate_server_rejected_connections_total{port="http",reason="displaced"}"#, 0.0),
        (r#"tidegate_server_rejected_connections_total{port="admin",reason="displaced"}"#, 0.0),
    ] {
        assert_eq!(value(series), expected, "{series}\n{text}");
    }
    assert!(value(r#"tidegate_server_connections{port="grpc"}"#) <= 1.0);
    let bucket =
        r#"tidegate_server_request_seconds_bucket{protocol="grpc",method="ShouldRateLimit",le="+Inf"}"#;
    assert_eq!(value(bucket), 4.0);
    assert!(!text.contains("quagga") && !text.contains("/any/path"), "no text of a client is a label");
}

#[tokio::test]
async fn metrics_need_a_token_unless_they_are_public() {
    for (is_public, expected) in [(false, 401), (true, 200)] {
        let server = counted(Admin::new(ANY).tokens(tokens()).public_metrics(is_public)).await;
        let without = client().get(server.admin_url("/metrics")).send().await.unwrap();
        assert_eq!(without.status(), expected);
        let config = client().get(server.admin_url("/config")).send().await.unwrap();
        assert_eq!(config.status(), 401, "nothing else is public");
    }
}

/// A rule file that is removed at the end.
struct RuleFile(PathBuf);

impl RuleFile {
    fn new(text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-admin-{}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for RuleFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn config_shows_rules_with_their_lines_and_the_last_reload() {
    let file = RuleFile::new(RULES);
    let path = file.0.display().to_string();
    let rules = Loader::new().watch(&file.0, &Limiter::in_memory()).unwrap();
    let admin = Admin::new(ANY).tokens(tokens()).shown_settings(json!({ "deadline": "100ms" }));
    let server = Server::new(RateLimitService::new(rules)).admin(admin).drain_notice(Duration::ZERO);
    let server = Running::of(server).await;
    let config = async || -> Value {
        let (status, text) = get(&server, "/config").await;
        assert_eq!(status, 200);
        serde_json::from_str(&text).unwrap()
    };
    let shown = config().await;
    assert_eq!(
        shown["rules"],
        json!([{
            "domain": "d",
            "rule": "d.user",
            "name": "per_user",
            "gate": "d.user",
            "quota": shown["rules"][0]["quota"],
            "mode": "enforced",
            "cost": 1,
            "file": path,
            "line": 4,
        }])
    );
    assert!(shown["rules"][0]["quota"].as_str().unwrap().contains("2/"), "{shown}");
    assert_eq!((&shown["last_reload"], &shown["store"]), (&Value::Null, &json!("memory")));
    assert_eq!(shown["settings"]["deadline"], "100ms");
    let sha256 = shown["files"][0]["sha256"].as_str().unwrap().to_owned();
    assert_eq!((sha256.len(), &shown["files"][0]["file"]), (64, &json!(path)));

    std::fs::write(
        &file.0,
        "domain: d\ndescriptors:\n  - key: user\n    rate_limit: { unit: <b>, requests_per_unit: 1 }\n",
    )
    .unwrap();
    soon("the mistake is shown", async || config().await["last_reload"]["result"] == "failed").await;
    let bad = config().await;
    let error = bad["last_reload"]["error"].as_str().unwrap();
    assert!(error.contains(&format!("{path}:4")), "{error}");
    assert_eq!((&bad["rules"], &bad["files"]), (&shown["rules"], &shown["files"]), "the previous rules stay");

    let (_, text) = get(&server, "/config?format=text").await;
    assert!(text.contains("\nlast reload: failed "), "{text}");
    assert!(text.contains(&format!("\nlistening grpc_addr: {}\n", server.grpc_addr)), "{text}");
    let written = async || config().await["last_reload"]["result"] == "succeeded";
    let corrected = RULES.replace("requests_per_unit: 2", "requests_per_unit: 3");
    std::fs::write(&file.0, corrected).unwrap();
    soon("the correction is shown", written).await;
    let good = config().await;
    assert!(good["rules"][0]["quota"].as_str().unwrap().contains("3/"), "{good}");
    assert_ne!(good["files"][0]["sha256"], sha256);

    let (_, text) = get(&server, "/config?format=text").await;
    assert!(text.contains("\nlast reload: succeeded ") && text.contains(" s ago\n"), "{text}");
    assert!(text.contains(&format!("(enforced, gate d.user) at {path}:4")), "{text}");
    let accepted =
        client().get(server.admin_url("/config")).bearer_auth(VIEWER).header("accept", "text/plain");
    assert_eq!(accepted.send().await.unwrap().headers()["content-type"], "text/plain; charset=utf-8");
}

#[tokio::test]
async fn rejected_tokens_are_counted_and_reported_without_the_token() {
    let warnings = Warnings::default();
    let metrics = ServiceMetrics::new();
    let limiter =
        Limiter::builder().in_memory().observer((warnings.clone(), metrics.observer())).build().unwrap();
    let service = RateLimitService::new(Rules::parse("test.yaml", RULES).unwrap().bind(&limiter));
    let admin = Admin::new(ANY).tokens(tokens()).public_metrics(true);
    let server = Server::new(service).metrics(metrics).admin(admin);
    let server = Running::of(server.drain_notice(Duration::ZERO)).await;
    let counted = async |reason: &str| {
        let text = client().get(server.admin_url("/metrics")).send().await.unwrap().text().await.unwrap();
        let series = format!("tidegate_server_rejected_logins_total{{reason=\"{reason}\"}}");
        parse(&text).into_iter().find(|(name, _)| *name == series).unwrap_or_else(|| panic!("{text}")).1
    };
    assert_eq!((counted("wrong_token").await, counted("too_many_attempts").await), (0.0, 0.0));
    for status in [401; 10].into_iter().chain([429; 2]) {
        let rejected = client().get(server.admin_url("/config")).bearer_auth("quagga").send().await.unwrap();
        assert_eq!(rejected.status(), status);
    }
    assert_eq!((counted("wrong_token").await, counted("too_many_attempts").await), (10.0, 2.0));
    let warnings = warnings.0.lock().unwrap();
    assert!(
        warnings[0].contains("127.0.0.1 has sent a wrong token")
            && warnings[0].contains("[admin-token-rejected]"),
        "{warnings:?}"
    );
    assert!(!format!("{warnings:?}").contains("quagga"), "{warnings:?}");
}

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Observer for Warnings {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn port_without_pages_has_neither_a_login_nor_changes() {
    let admin = Admin::new(ANY).tokens(tokens());
    let server = Running::of(Server::new(in_memory(RULES)).admin(admin).drain_notice(Duration::ZERO)).await;
    let get = |path: &str| client().get(server.admin_url(path)).header("accept", "text/html");
    let post = |path: &str| client().post(server.admin_url(path)).body("{}");
    for (status, request) in [
        (200, get("/config").bearer_auth(VIEWER)),
        (401, get("/config")),
        (401, get("/config").bearer_auth("wrong")),
        (404, get("/").bearer_auth(VIEWER)),
        (404, get("/login")),
        (404, get("/assets/console.css")),
        (404, get("/api/audit").bearer_auth(OPERATOR)),
        (404, post("/api/block").bearer_auth(OPERATOR)),
        (404, post("/login")),
        (404, post("/logout")),
    ] {
        let response = request.send().await.unwrap();
        let (found, url) = (response.status().as_u16(), response.url().path().to_owned());
        let is_problem = response.headers()["content-type"] == "application/problem+json";
        let text = response.text().await.unwrap();
        assert_eq!((found, is_problem), (status, status != 200), "{url}: {text}");
        assert!(!text.contains("/login"), "{url}: {text}");
    }
    assert!(server.stop().await);
}
