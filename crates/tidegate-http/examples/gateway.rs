//! A gateway of a language model in one file. Each tenant has 2 answers at the same time, 40,000 tokens a minute, and 10 dollars
//! a month, in all processes together. Needs the features `axum` of tidegate-http, and `calendar` of it or of tidegate.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example gateway
//! ```
//!
//! Its responses. Errors have the format of OpenAI's:
//!
//! ```console
//! $ curl -si -H 'x-tenant: acme' -d '{"max_tokens":4}' http://127.0.0.1:3000/v1/chat/completions
//! HTTP/1.1 200 OK
//! content-type: text/event-stream
//! x-ratelimit-limit-tokens: 40000
//! x-ratelimit-remaining-tokens: 39980
//! x-ratelimit-reset-tokens: 1s
//! ratelimit-policy: "llm.answers";q=2;qu="concurrent-requests"
//! ratelimit: "llm.answers";r=1
//! transfer-encoding: chunked
//!
//! data: {"choices":[{"delta":{"content":"word "}}]}
//!
//! data: {"choices":[{"delta":{"content":"word "}}]}
//!
//! data: {"choices":[],"usage":{"completion_tokens":2,"prompt_tokens":3}}
//! $ curl -s -H 'x-tenant: acme' -d '{"max_tokens":50000}' http://127.0.0.1:3000/v1/chat/completions
//! {"error":{"code":"request_too_large","message":"This request costs 50020, which the limit \"llm.tokens\" of 40000 never permits. Send a smaller request.","type":"invalid_request_error"}}
//! $ curl -s -d '{}' http://127.0.0.1:3000/v1/chat/completions
//! {"error":{"code":"missing_tenant","message":"This request lacks the key that the limit \"llm.answers\" counts by.","type":"invalid_request_error"}}
//! ```
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, header};
use axum::{Router, routing::post};
use futures_util::stream::{self, BoxStream, StreamExt};
use serde_json::{Value, json};
use tidegate::{Gate, Limiter, Token};
use tidegate_http::{Headers, Key, ModelRequest, RateLimitLayer, Reason, Rejection};

/// If the process is killed, the reserved units return after this time.
const LONGEST_ANSWER: Duration = Duration::from_secs(600);

#[derive(Clone)]
struct Gateway {
    limiter: Limiter,
    tokens: Gate,
    money: Gate,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let redis = std::env::var("TIDEGATE_REDIS_URL")?;
    let limiter = Limiter::builder().url(&redis).namespace("example-gateway").build()?;
    limiter.ready().await?;
    let answers = limiter.gate("llm.answers", "2 in flight".parse()?);
    // Clients choose this header. A real gateway takes the tenant of the API key that an earlier layer has verified.
    let layer = RateLimitLayer::new(answers, Key::header("x-tenant"));
    let layer = layer.on_rejection(|head, rejection| async move {
        openai_error(&rejection, rejection.response(&head)) // the layer adds Retry-After
    });
    let gateway = Gateway {
        limiter: limiter.clone(),
        tokens: limiter.gate("llm.tokens", "40000/min burst 40000".parse()?).holds(),
        money: limiter.gate("llm.micro_usd", "10000000 per month in UTC".parse()?).holds(),
    };
    let app = Router::new().route("/v1/chat/completions", post(complete)).layer(layer).with_state(gateway);
    let listener = tokio::net::TcpListener::bind(std::env::var("LISTEN")?).await?;
    // In a container, also on SIGTERM.
    let stopped = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, app).with_graceful_shutdown(stopped).await?;
    limiter.shutdown().await; // settles what Redis has not confirmed, and releases permits
    Ok(())
}

/// Called with a slot of `llm.answers`, which the layer holds until the answer has ended or the client has left.
async fn complete(
    State(gateway): State<Gateway>,
    request: Request,
) -> Result<Response<Body>, Response<Body>> {
    let (head, body) = request.into_parts();
    let tenant = head.headers.get("x-tenant").map_or(&b""[..], HeaderValue::as_bytes);
    let asked = ModelRequest::read(body, 1 << 20, 4_096).await; // at most 1 MiB; 4,096 tokens without `max_tokens`
    let asked = asked.map_err(|error| {
        let mut response = Response::new(String::new());
        *response.status_mut() = error.status();
        with_error(response, "invalid_request_error", "invalid_body", &error.to_string())
    })?;

    // The most that the request can cost. Both limits admit it, or neither is charged.
    let (prompt, answer) = (asked.max_prompt_tokens(), asked.max_answer_tokens());
    let checks = [
        gateway.tokens.key(tenant).cost(prompt + answer),
        gateway.money.key(tenant).cost(price(prompt, answer)),
    ];
    let reserved = gateway.limiter.reserve(checks).ttl(LONGEST_ANSWER).back().await;
    let reject = |rejection: Rejection| openai_error(&rejection, rejection.response_with_headers(&head));
    let (decision, token) = reserved.map_err(|error| reject(Rejection::from(error)))?.into_parts();
    let token = token.ok_or_else(|| {
        let gate = [&gateway.tokens, &gateway.money][decision.binding_index()];
        reject(Rejection::of(gate, decision.binding().clone()))
    })?;
    let mut charge = Charge { limiter: gateway.limiter, token: Some(token), prompt: 0, answer: 0 };

    let model = ask_model(&asked); // if this fails, return: dropping `charge` gives all units back
    charge.prompt = prompt; // the model has read it, even if its answer is lost
    let events = stream::unfold((model, charge), async |(mut model, mut charge)| {
        let Some(event) = model.next().await else {
            charge.settle().await; // before the body ends: the client's next request finds the units returned
            return None;
        };
        let usage = |name: &str| event["usage"][name].as_u64();
        charge.prompt = usage("prompt_tokens").unwrap_or(charge.prompt);
        charge.answer = usage("completion_tokens").unwrap_or(charge.answer + 1); // text: about a token each event
        Some((Ok::<_, Infallible>(format!("data: {event}\n\n")), (model, charge)))
    });
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    let tokens = Headers::none().openai(true).of_unit(&gateway.tokens, "tokens", &decision.each_alone()[0]);
    response.headers_mut().extend(tokens); // x-ratelimit-remaining-tokens and others
    Ok(response)
}

/// Micro-dollars, at $3 per million tokens of the prompt and $15 of the answer.
const fn price(prompt: u64, answer: u64) -> u64 {
    3 * prompt + 15 * answer
}

/// Settles a reservation when it is dropped: at the end, if the client leaves, if the model fails, or in a panic.
struct Charge {
    limiter: Limiter,
    /// `None` once it is being settled.
    token: Option<Token>,
    /// The tokens used so far.
    prompt: u64,
    answer: u64,
}

impl Charge {
    async fn settle(&mut self) {
        let Some(token) = self.token.take() else { return };
        let used = [self.prompt + self.answer, price(self.prompt, self.answer)];
        // If Redis does not answer, the limiter repeats it in the background.
        if let Err(error) = self.limiter.commit(&token, used).await {
            eprintln!("not settled: {error}");
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Some(token) = self.token.take() else { return };
        let mut rest = Self { limiter: self.limiter.clone(), token: Some(token), ..*self };
        tokio::spawn(async move { rest.settle().await });
    }
}

/// Responds in the format of OpenAI's errors, by which its clients tell what to repeat.
fn openai_error(rejection: &Rejection, response: Response<String>) -> Response<Body> {
    let (kind, code) = match rejection.reason() {
        Reason::Denied(decision) if decision.binding().gate() == "llm.micro_usd" => {
            ("insufficient_quota", "insufficient_quota") // 429 until the month ends
        }
        Reason::Denied(_) => ("rate_limit_error", "rate_limit_exceeded"), // 429
        Reason::TooCostly(_) => ("invalid_request_error", "request_too_large"), // 400: no wait helps
        Reason::MissingKey => ("invalid_request_error", "missing_tenant"), // 400
        _ => ("server_error", "rate_limiter_unavailable"),                // 503, or 500 for a wrong setup
    };
    with_error(response, kind, code, rejection.message())
}

fn with_error(response: Response<String>, kind: &str, code: &str, message: &str) -> Response<Body> {
    let error = json!({ "error": { "message": message, "type": kind, "code": code } });
    let mut response = response.map(|_| Body::from(error.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A mock in place of your client: the events of a model that writes half of `max_tokens` words, one every 20 ms.
fn ask_model(asked: &ModelRequest) -> BoxStream<'static, Value> {
    let words = asked.max_answer_tokens() / 2;
    let texts = stream::iter(0..words).map(|_| json!({ "choices": [{ "delta": { "content": "word " } }] }));
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 3, "completion_tokens": words } });
    let events = texts.chain(stream::iter([usage]));
    let events = events.then(async |event| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        event
    });
    events.boxed()
}
