//! A search that responds with an old list beyond the limit instead of rejecting the request. A client that
//! sends `prefer: fresh` is rejected with `retry-after`.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example degraded
//! ```
//!
//! Its responses (without `date` and `content-length`):
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
//! cache-control: no-store
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
use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{Key, RateLimitLayer, Reason};
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
    let search = search.on_rejection(|parts, rejection| async move {
        let wants_fresh = parts.headers.get("prefer").is_some_and(|prefer| prefer == "fresh");
        match rejection.reason() {
            Reason::Denied(_) if !wants_fresh => cached().await,
            _ => rejection.response(&parts).map(Body::from),
        }
    });
    let app = Router::new().route("/search", get("three results, of this moment\n")).layer(search);
    axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?;
    Ok(())
}

/// Returns the cached response, which costs nothing to compute.
async fn cached() -> Response {
    ([("age", "86400")], "two results, of yesterday\n").into_response()
}
