//! The README's first example: ten lines give an axum service a limit that the whole fleet shares.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example ten_lines
//! ```
//!
//! Its responses (without `date` and `content-length`):
//!
//! ```console
//! $ curl -si -H 'x-api-key: ann' http://127.0.0.1:3000/
//! HTTP/1.1 200 OK
//! content-type: text/plain; charset=utf-8
//! x-ratelimit-limit: 2
//! x-ratelimit-remaining: 1
//! x-ratelimit-reset: 30
//! ratelimit-policy: "api";q=2;w=60
//! ratelimit: "api";r=1;t=30
//!
//! hi
//! $ curl -s -H 'x-api-key: ann' http://127.0.0.1:3000/
//! hi
//! $ curl -si -H 'x-api-key: ann' http://127.0.0.1:3000/
//! HTTP/1.1 429 Too Many Requests
//! content-type: application/problem+json
//! cache-control: no-store
//! x-ratelimit-limit: 2
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 30
//! ratelimit-policy: "api";q=2;w=60
//! ratelimit: "api";r=0;t=30
//! retry-after: 30
//!
//! {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"The limit \"api\" of 2 in 60 seconds is exceeded. Try again in 30 seconds.","violated-policies":["api"]}
//! ```
use axum::{Router, routing::get};
use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{Key, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::open(&std::env::var("TIDEGATE_REDIS_URL")?)?;
    let api = limiter.gate("api", Quota::token_bucket(2, Rate::per_minute(2)));
    let app = Router::new().route("/", get("hi\n")).layer(RateLimitLayer::new(api, Key::header("x-api-key")));
    Ok(axum::serve(tokio::net::TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?)
}
