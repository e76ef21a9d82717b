//! The example of a gateway with a month's budget, tokens per minute and answers in flight, over sockets.

use http::StatusCode;
use serde_json::{Value, json};
use tidegate::{Limiter, Quota};
use tidegate_test_support::fixture::soon;
use tidegate_testkit::Server;

use super::process::Example;

struct Gateway {
    example: Example,
    client: reqwest::Client,
    /// Reads the state of the example.
    limiter: Limiter,
    _server: Server,
}

impl Gateway {
    async fn start() -> Self {
        let server = Server::process(&[]).unwrap();
        let limiter = Limiter::builder().url(server.url()).namespace("example-gateway").build().unwrap();
        limiter.ready().await.unwrap();
        let example = Example::start("gateway", server.url());
        Self { example, client: reqwest::Client::new(), limiter, _server: server }
    }

    async fn ask(&self, max_tokens: u64) -> reqwest::Response {
        let url = format!("http://{}/v1/chat/completions", self.example.address);
        let body = json!({ "max_tokens": max_tokens }).to_string();
        self.client.post(url).header("x-tenant", "acme").body(body).send().await.unwrap()
    }

    async fn used(&self, gate: &str, quota: &str) -> u64 {
        let gate = self.limiter.gate(gate, quota.parse::<Quota>().unwrap()).holds();
        let decision = gate.peek("acme").await.unwrap();
        decision.limit() - decision.remaining()
    }

    async fn micro_usd(&self) -> u64 {
        self.used("llm.micro_usd", "10000000 per month in UTC").await
    }

    async fn answers(&self) -> u64 {
        self.used("llm.answers", "2 in flight").await
    }
}

/// Asserts the status, and returns the error's code and message.
async fn error(response: reqwest::Response, status: StatusCode) -> (String, String) {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.headers().contains_key("retry-after"), status == StatusCode::TOO_MANY_REQUESTS);
    let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    let text = |name: &str| body["error"][name].as_str().unwrap().to_owned();
    assert!(!text("type").is_empty());
    (text("code"), text("message"))
}

#[tokio::test]
async fn client_that_leaves_pays_what_was_streamed_and_frees_its_slot() {
    let gateway = Gateway::start().await;
    let mut answer = gateway.ask(10_000).await;
    assert!(answer.chunk().await.unwrap().is_some());
    let reserved = gateway.micro_usd().await;
    assert!(reserved > 15 * 10_000, "{reserved}");
    assert_eq!(gateway.answers().await, 1);
    drop(answer);
    // The whole answer of 5,000 words takes 100 s.
    soon("the slot is free", async || gateway.answers().await == 0).await;
    soon("the rest returns", async || (15..15 * 5_000).contains(&gateway.micro_usd().await)).await;
}

#[tokio::test]
async fn each_limit_of_the_gateway_rejects_in_the_format_of_openai() {
    let gateway = Gateway::start().await;
    let first = [gateway.ask(10_000).await, gateway.ask(10_000).await];
    let (code, message) = error(gateway.ask(4).await, StatusCode::TOO_MANY_REQUESTS).await;
    assert!(code == "rate_limit_exceeded" && message.contains("llm.answers"), "{code}: {message}");
    drop(first);
    soon("the slots are free", async || gateway.answers().await == 0).await;

    let (code, message) = error(gateway.ask(50_000).await, StatusCode::BAD_REQUEST).await;
    assert!(code == "request_too_large" && message.contains("of 40000 never permits"), "{code}: {message}");

    let running = gateway.ask(20_000).await;
    let (code, message) = error(gateway.ask(39_000).await, StatusCode::TOO_MANY_REQUESTS).await;
    assert!(code == "rate_limit_exceeded" && message.contains("llm.tokens"), "{code}: {message}");
    drop(running);

    let money = gateway.limiter.gate("llm.micro_usd", "10000000 per month in UTC".parse().unwrap());
    money.penalize("acme", 10_000_000).await.unwrap();
    let (code, message) = error(gateway.ask(4).await, StatusCode::TOO_MANY_REQUESTS).await;
    assert!(code == "insufficient_quota" && message.contains("llm.micro_usd"), "{code}: {message}");
    soon("a rejected request holds no slot", async || gateway.answers().await == 0).await;
}
