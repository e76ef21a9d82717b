//! The example of a gateway for language models, over sockets: hang-ups, failures, several processes.

use serde_json::{Value, json};
use tidegate_test_support::fixture::soon;
use tidegate_testkit::Server;

use super::process::Example;

const WORKER_KEY: &str = "a worker of the tests";
const SECRETS: [(&str, &str); 2] =
    [("WORKER_KEY", WORKER_KEY), ("RESERVATION_SECRET", "a reservation secret of the tests")];

pub(super) struct Gateway {
    /// Two processes; `None` for one that was killed.
    examples: [Option<Example>; 2],
    client: reqwest::Client,
    server: Server,
}

impl Gateway {
    fn start() -> Self {
        Self::start_with(&[])
    }

    pub(super) fn start_with(variables: &[(&str, &str)]) -> Self {
        let server = Server::process(&[]).unwrap();
        let variables = [&SECRETS, variables].concat();
        let examples = [0, 1].map(|_| Some(Example::start_with("llm", server.url(), &variables)));
        Self { examples, client: reqwest::Client::new(), server }
    }

    pub(super) fn kill(&mut self, process: usize) {
        self.examples[process] = None;
    }

    fn url(&self, process: usize, path: &str) -> String {
        let example = self.examples[process].as_ref().unwrap();
        format!("http://{}{path}", example.address)
    }

    pub(super) async fn post(&self, process: usize, path: &str, body: &Value) -> reqwest::Response {
        let url = self.url(process, path);
        self.client.post(url).header("x-tenant", "acme").body(body.to_string()).send().await.unwrap()
    }

    async fn finish(&self, done: &Value, worker_key: &str) -> reqwest::Response {
        let url = self.url(0, "/v1/batches/done");
        let request = self.client.post(url).header("x-worker-key", worker_key);
        request.body(done.to_string()).send().await.unwrap()
    }

    /// Returns requests, input tokens, output tokens and micro-dollars.
    pub(super) async fn used(&self) -> [u64; 4] {
        let url = self.url(0, "/usage");
        let reply = self.client.get(url).header("x-tenant", "acme").send().await.unwrap();
        let used: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        ["requests", "input_tokens", "output_tokens", "micro_usd"].map(|name| used[name].as_u64().unwrap())
    }

    async fn until_used(&self, is_expected: impl Fn([u64; 4]) -> bool) {
        soon("the usage is settled", async || is_expected(self.used().await)).await;
    }
}

pub(super) fn prompt(model: &str, words: usize, max_tokens: u64) -> Value {
    let text = vec!["word"; words].join(" ");
    json!({ "model": model, "max_tokens": max_tokens, "messages": [{ "content": text }] })
}

pub(super) const PATHS: [&str; 2] = ["/v1/chat/completions", "/v1/messages"];

#[tokio::test]
async fn answers_of_both_apis_are_charged_the_usage_of_their_last_events() {
    let gateway = Gateway::start();
    for (path, used) in PATHS.into_iter().zip([[1, 40, 40, 720], [2, 80, 80, 1_440]]) {
        let answer = gateway.post(0, path, &prompt("mini", 40, 900)).await;
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let reported = ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-requests"];
        let reported = reported.map(|name| answer.headers()[name].to_str().unwrap());
        assert_eq!(reported, ["2000", if used[0] == 1 { "59" } else { "58" }]);
        let text = answer.text().await.unwrap();
        assert_eq!(text.matches("word ").count(), 40, "{text}");
        gateway.until_used(|now| now == used).await;
    }
}

/// The client is charged the input and the words that were sent, and the rest of the estimate returns.
#[tokio::test]
async fn client_that_leaves_is_charged_what_was_streamed() {
    for path in PATHS {
        let gateway = Gateway::start();
        let mut answer = gateway.post(0, path, &prompt("slow", 200, 1_000)).await;
        assert!(answer.chunk().await.unwrap().is_some());
        assert_eq!(gateway.used().await[2], 1_000, "the estimate is reserved while it streams");
        drop(answer);
        // 200 words take 10 s.
        gateway.until_used(|[requests, _, output, _]| requests == 1 && output < 200).await;
    }
}

#[tokio::test]
async fn answer_that_the_upstream_refuses_costs_nothing() {
    let gateway = Gateway::start();
    let answer = gateway.post(0, PATHS[0], &prompt("broken", 10, 500)).await;
    assert_eq!(answer.status(), 502);
    gateway.until_used(|used| used == [0; 4]).await;
}

#[tokio::test]
async fn concurrent_requests_are_admitted_no_token_beyond_the_limit() {
    let gateway = Gateway::start();
    let requests = (0..40).map(async |number| {
        let answer = gateway.post(number % 2, PATHS[number / 2 % 2], &prompt("slow", 4, 300)).await;
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();
        assert_eq!(status == 429, headers.contains_key("retry-after"), "{status}");
        let _ = answer.text().await.unwrap();
        status
    });
    let statuses = futures_util::future::join_all(requests).await;
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    // 6 estimates of 300 tokens fit into 2,000. More are admitted only after others have been settled.
    assert!((6..40).contains(&admitted), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    let (count, tokens) = (admitted as u64, 4 * admitted as u64);
    gateway.until_used(|used| used == [count, tokens, tokens, 18 * tokens]).await;
}

#[tokio::test]
async fn job_is_settled_by_another_process_after_the_first_has_ended_and_once() {
    let mut gateway = Gateway::start();
    let job = prompt("mini", 30, 1_500);
    let input = job.to_string().len() as u64;
    let reserved = [1, input, 1_500, 3 * input + 15 * 1_500];
    let submitted = gateway.post(1, "/v1/batches", &job).await;
    let submitted: Value = serde_json::from_slice(&submitted.bytes().await.unwrap()).unwrap();
    assert_eq!(gateway.used().await, reserved);
    // The process that reserved ends.
    gateway.examples[1] = Some(Example::start_with("llm", gateway.server.url(), &SECRETS));
    let mut done =
        json!({ "reservation": submitted["reservation"], "input_tokens": 30, "output_tokens": 700 });
    assert_eq!(gateway.finish(&done, "wrong").await.status(), 401);
    let incomplete = json!({ "reservation": submitted["reservation"], "input_tokens": 30 });
    assert_eq!(gateway.finish(&incomplete, WORKER_KEY).await.status(), 400);
    assert_eq!(gateway.used().await, reserved);
    for result in ["settled", "nothing"] {
        let reply = gateway.finish(&done, WORKER_KEY).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.text().await.unwrap(), json!({ "settled": vec![result; 4] }).to_string());
        assert_eq!(gateway.used().await, [1, 30, 700, 10_590]);
    }
    // A client that changes its token is rejected.
    let token = done["reservation"].as_str().unwrap();
    let last = if token.ends_with('A') { "Q" } else { "A" };
    done["reservation"] = format!("{}{last}", &token[..token.len() - 1]).into();
    assert_eq!(gateway.finish(&done, WORKER_KEY).await.status(), 400);
}

#[tokio::test]
async fn requests_without_tenant_or_json_are_rejected() {
    let gateway = Gateway::start();
    let url = gateway.url(0, PATHS[0]);
    assert_eq!(gateway.client.post(&url).body("{}").send().await.unwrap().status(), 401);
    assert_eq!(gateway.client.post(&url).body("[").send().await.unwrap().status(), 400);
    assert_eq!(gateway.used().await, [0; 4]);
}
