//! Beyond the limit a search answers from yesterday's list instead of refusing; a client that sends
//! `prefer: fresh` is refused, and told when to come back.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --features axum --example degraded
//! ```
//!
//! What it answers (`date` and `content-length` left out):
//!
//! ```console
//! $ curl -si http://127.0.0.1:3000/search
//! HTTP/1.1 200 OK
//! content-type: text/plain; charset=utf-8
//! x-ratelimit-limit: 1
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 60
//! ratelimit-policy: "search";q=1;w=60
//! ratelimit: "search";r=0;t=60
//!
//! three results, of this moment
//! $ curl -si http://127.0.0.1:3000/search
//! HTTP/1.1 200 OK
//! content-type: text/plain; charset=utf-8
//! age: 86400
//! x-ratelimit-limit: 1
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 60
//! ratelimit-policy: "search";q=1;w=60
//! ratelimit: "search";r=0;t=60
//!
//! two results, of yesterday
//! $ curl -si -H 'prefer: fresh' http://127.0.0.1:3000/search
//! HTTP/1.1 429 Too Many Requests
//! content-type: application/problem+json
//! cache-control: no-store
//! x-ratelimit-limit: 1
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 60
//! ratelimit-policy: "search";q=1;w=60
//! ratelimit: "search";r=0;t=60
//! retry-after: 60
//!
//! {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"The limit \"search\" of 1 in 60 seconds is exceeded. Try again in 60 seconds.","violated-policies":["search"]}
//! ```
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tidegate::http::{Key, RateLimitLayer, Reason};
use tidegate::{Limiter, Quota, Rate};
use tokio::net::TcpListener;

const SEARCH: Quota = Quota::token_bucket(1, Rate::per_minute(1));

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-degraded")
        .deadline(Duration::from_secs(2))
        .build()?;
    let search = RateLimitLayer::new(limiter.gate("search", SEARCH), Key::constant("all"));
    let search = search.answer(|parts, refusal| async move {
        let wants_fresh = parts.headers.get("prefer").is_some_and(|prefer| prefer == "fresh");
        match refusal.reason() {
            Reason::Denied(_) if !wants_fresh => cached().await,
            _ => refusal.response(&parts).map(Body::from),
        }
    });
    let app = Router::new().route("/search", get("three results, of this moment\n")).layer(search);
    axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?;
    Ok(())
}

/// What costs nothing to answer.
async fn cached() -> Response {
    ([("age", "86400")], "two results, of yesterday\n").into_response()
}
