//! A gateway in front of language models, for the APIs of OpenAI and Anthropic. Each tenant has limits on requests,
//! input tokens and output tokens per minute, and on money per month. A request reserves its estimate in one step. When
//! the answer has been streamed, the gateway charges the usage that its last events report.
//!
//! A mock upstream, which repeats the words of the prompt, runs in the same process. `UPSTREAM` names another one.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example llm
//! ```
//!
//! Its responses. `max_tokens` was reserved, and the tokens of the answer are charged:
//!
//! ```console
//! $ curl -s -H 'x-tenant: acme' -d '{"model":"mini","max_tokens":100,"messages":[{"content":"repeat my words"}]}' http://127.0.0.1:3000/v1/chat/completions
//! data: {"choices":[{"delta":{"content":"repeat "}}]}
//!
//! data: {"choices":[{"delta":{"content":"my "}}]}
//!
//! data: {"choices":[{"delta":{"content":"words "}}]}
//!
//! data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":3}}
//!
//! data: [DONE]
//! $ curl -s -H 'x-tenant: acme' http://127.0.0.1:3000/usage
//! {"input_tokens":3,"micro_usd":54,"output_tokens":3,"requests":1}
//! $ curl -s -H 'x-tenant: acme' -d '{"model":"mini","max_tokens":5000,"messages":[{"content":"a novel"}]}' http://127.0.0.1:3000/v1/chat/completions
//! {"error":{"message":"output_tokens: the limit is lower than this request; lower max_tokens","type":"rate_limit_exceeded"}}
//! $ curl -s -H 'x-tenant: acme' -d '{"model":"mini","max_tokens":50,"messages":[{"content":"later"}]}' http://127.0.0.1:3000/v1/messages
//! event: message_start
//! data: {"type":"message_start","message":{"usage":{"input_tokens":1,"output_tokens":1}}}
//!
//! event: content_block_delta
//! data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"later "}}
//!
//! event: message_delta
//! data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}
//!
//! event: message_stop
//! data: {"type":"message_stop"}
//! $ curl -s -H 'x-tenant: acme' http://127.0.0.1:3000/usage
//! {"input_tokens":4,"micro_usd":72,"output_tokens":4,"requests":2}
//! ```
#![allow(clippy::print_stdout, reason = "a program for the command line")]
#![allow(clippy::result_large_err, reason = "a handler of axum returns a response as its error")]

#[path = "llm/answer.rs"]
mod answer;
#[path = "llm/limits.rs"]
mod limits;
#[path = "llm/upstream.rs"]
mod upstream;
#[path = "llm/usage.rs"]
mod usage;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tidegate::{Limiter, Token};
use tidegate_http::ModelRequest;
use tokio::net::TcpListener;

use self::answer::Answer;
use self::limits::{Limits, Units};

/// The most tokens of an answer whose request names no bound.
const DEFAULT_MAX_TOKENS: u64 = 1_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Gateway {
    limits: Limits,
    upstream: String,
    client: reqwest::Client,
    /// The ttl of the hold of an answer.
    longest_answer: Duration,
    /// The credential of the workers that settle jobs.
    worker_key: String,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-llm")
        .deadline(Duration::from_secs(2))
        // Batch jobs hand their token to clients. All processes of the gateway need the same secret.
        .reservation_secret(secret_of("RESERVATION_SECRET"))
        .build()?;
    let upstream = match std::env::var("UPSTREAM") {
        Ok(url) => url,
        Err(_) => upstream::start().await?,
    };
    let gateway = Gateway {
        limits: Limits::new(limiter),
        upstream,
        client: reqwest::Client::new(),
        longest_answer: Duration::from_secs(match std::env::var("LONGEST_ANSWER_S") {
            Ok(seconds) => seconds.parse()?,
            Err(_) => 600,
        }),
        worker_key: secret_of("WORKER_KEY"),
    };
    let app = Router::new()
        .route("/v1/chat/completions", post(complete))
        .route("/v1/messages", post(complete))
        .route("/v1/batches", post(submit_batch))
        .route("/v1/batches/done", post(finish_batch))
        .route("/usage", get(show_usage))
        .with_state(Arc::new(gateway));
    let listener = TcpListener::bind(std::env::var("LISTEN")?).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

/// Returns the value of the environment variable, or else a random one, which no other process knows.
fn secret_of(variable: &str) -> String {
    let random = || {
        let state = RandomState::new();
        (0..4_u64).map(|number| format!("{:016x}", state.hash_one(number))).collect()
    };
    std::env::var(variable).ok().filter(|value| !value.is_empty()).unwrap_or_else(random)
}

/// Reserves the estimate, and streams the answer of the upstream.
async fn complete(
    State(gateway): State<Arc<Gateway>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Response> {
    let (mut request, estimate) = parse(body)?;
    // OpenAI reports the usage of a stream only on request.
    if uri.path() == "/v1/chat/completions" {
        request["stream_options"] = json!({ "include_usage": true });
    }
    request["stream"] = true.into();
    let (token, limits) = gateway.limits.reserve(tenant(&headers)?, estimate, gateway.longest_answer).await?;
    // From here on, dropping the charge settles it: also if the client leaves, or the upstream fails.
    let charge = gateway.limits.charge(token, estimate);
    let sent = gateway.client.post(format!("{}{}", gateway.upstream, uri.path())).body(request.to_string());
    let answer = sent.send().await.and_then(reqwest::Response::error_for_status);
    let answer =
        answer.map_err(|error| failure(StatusCode::BAD_GATEWAY, "upstream_error", &error.to_string()))?;
    let body = Body::from_stream(Answer::new(answer, charge).into_stream());
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], limits, body).into_response())
}

/// Reserves for a job that another process runs later, and returns the token that settles it.
async fn submit_batch(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Response> {
    let (_, estimate) = parse(body)?;
    let (token, limits) = gateway.limits.reserve(tenant(&headers)?, estimate, limits::LONGEST_JOB).await?;
    Ok((limits, json!({ "reservation": token.to_string() }).to_string()).into_response())
}

/// Settles a job. Called by its worker, which may talk to another process of the gateway; twice is harmless. A client
/// also holds the token, but only a worker may report the units.
async fn finish_batch(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Response> {
    if headers.get("x-worker-key").is_none_or(|key| !is_equal(key.as_bytes(), gateway.worker_key.as_bytes()))
    {
        return Err(failure(
            StatusCode::UNAUTHORIZED,
            "authentication_error",
            "x-worker-key is missing or wrong",
        ));
    }
    let done: Value = serde_json::from_slice(&body).map_err(|error| invalid(&error.to_string()))?;
    let token: Result<Token, _> = done["reservation"].as_str().unwrap_or_default().parse();
    let token =
        token.map_err(|error| failure(StatusCode::BAD_REQUEST, "invalid_reservation", &error.to_string()))?;
    let units = Units::used(number(&done, "input_tokens")?, number(&done, "output_tokens")?);
    let settled = gateway.limits.settle(&token, units).await;
    let settled =
        settled.map_err(|error| failure(StatusCode::BAD_REQUEST, error.kind(), &error.to_string()))?;
    let settled: Vec<_> = settled.into_iter().map(|settlement| settlement.as_str()).collect();
    Ok(json!({ "settled": settled }).to_string().into_response())
}

/// Returns a number of the body. A missing one is an error: zero would cancel the charge.
fn number(body: &Value, field: &str) -> Result<u64, Response> {
    let message = format!("{field} is missing or not a whole number");
    body[field].as_u64().ok_or_else(|| failure(StatusCode::BAD_REQUEST, "invalid_request", &message))
}

/// Compares in a time that does not depend on the position of the first difference.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

async fn show_usage(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Result<Response, Response> {
    let used = gateway.limits.used(tenant(&headers)?).await;
    let used =
        used.map_err(|error| failure(StatusCode::SERVICE_UNAVAILABLE, error.kind(), &error.to_string()))?;
    Ok(used.to_string().into_response())
}

/// Returns the request and its estimate: the most tokens that its prompt and its answer can have.
fn parse(body: Bytes) -> Result<(Value, Units), Response> {
    let asked = ModelRequest::parse(body, DEFAULT_MAX_TOKENS).map_err(|error| invalid(&error.to_string()))?;
    let request: Value =
        serde_json::from_slice(&asked.body()).map_err(|error| invalid(&error.to_string()))?;
    match request.is_object() {
        true => Ok((request, Units::used(asked.max_prompt_tokens(), asked.max_answer_tokens()))),
        false => Err(invalid("the body is not a JSON object")),
    }
}

fn invalid(message: &str) -> Response {
    failure(StatusCode::BAD_REQUEST, "invalid_request", message)
}

/// A real gateway takes the tenant from the API key.
fn tenant(headers: &HeaderMap) -> Result<&str, Response> {
    let tenant = headers.get("x-tenant").and_then(|value| value.to_str().ok());
    tenant.ok_or_else(|| failure(StatusCode::UNAUTHORIZED, "authentication_error", "x-tenant is missing"))
}

fn failure(status: StatusCode, kind: &str, message: &str) -> Response {
    (status, json!({ "error": { "type": kind, "message": message } }).to_string()).into_response()
}
