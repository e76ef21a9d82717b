//! Two tiers: 60 requests an hour for free keys, 600 a minute for paid keys. Start several instances on
//! different ports: they share the limits through one Redis.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example axum
//! ```
//!
//! Its responses (without `date` and `content-length`):
//!
//! ```console
//! $ curl -si -H 'x-api-key: free-ann' http://127.0.0.1:3000/
//! HTTP/1.1 200 OK
//! content-type: text/plain; charset=utf-8
//! x-ratelimit-limit: 60
//! x-ratelimit-remaining: 59
//! x-ratelimit-reset: 3600
//! ratelimit-policy: "free";q=60;w=3600
//! ratelimit: "free";r=59;t=3600
//!
//! hello, 59 more
//! $ curl -si -H 'x-api-key: pro-bob' http://127.0.0.1:3000/
//! HTTP/1.1 200 OK
//! content-type: text/plain; charset=utf-8
//! x-ratelimit-limit: 600
//! x-ratelimit-remaining: 599
//! x-ratelimit-reset: 1
//! ratelimit-policy: "pro";q=600;w=60
//! ratelimit: "pro";r=599;t=1
//!
//! hello, 599 more
//! $ curl -si http://127.0.0.1:3000/
//! HTTP/1.1 400 Bad Request
//! content-type: application/problem+json
//! cache-control: no-store
//!
//! {"type":"about:blank","title":"Bad Request","status":400,"detail":"This request lacks the key that the limit \"free\" counts by."}
//! $ for i in $(seq 60); do curl -s -o /dev/null -w '%{http_code} ' -H 'x-api-key: free-ann' http://127.0.0.1:3000/; done
//! 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 429
//! $ curl -si -H 'x-api-key: free-ann' -H 'accept: text/plain' http://127.0.0.1:3000/
//! HTTP/1.1 429 Too Many Requests
//! content-type: text/plain; charset=utf-8
//! cache-control: no-store
//! x-ratelimit-limit: 60
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 3600
//! ratelimit-policy: "free";q=60;w=3600
//! ratelimit: "free";r=0;t=3600
//! retry-after: 3600
//!
//! The limit "free" of 60 in 3600 seconds is exceeded. Try again in 3600 seconds.
//! $ curl -s http://127.0.0.1:3000/health
//! healthy
//! ```
#[path = "shared/tiers.rs"]
mod tiers;

use axum::routing::get;
use axum::{Extension, Router};
use tidegate::Decision;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = Router::new()
        .route("/", get(hello))
        .route("/health", get("healthy\n"))
        .layer(tiers::layer(&std::env::var("TIDEGATE_REDIS_URL")?)?);
    axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?;
    Ok(())
}

async fn hello(Extension(decision): Extension<Decision>) -> String {
    format!("hello, {} more\n", decision.remaining())
}
