//! A service with rules from a folder: `examples/rules/api.yaml`. Edit the file while the service runs.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum,rules --example rules
//! ```
//!
//! Its responses (without `date` and `content-length`):
//!
//! ```console
//! $ curl -si -H 'x-api-key: ann' http://127.0.0.1:3000/
//! HTTP/1.1 200 OK
//! content-type: text/plain; charset=utf-8
//! x-ratelimit-limit: 1000
//! x-ratelimit-remaining: 999
//! x-ratelimit-reset: 2982
//! ratelimit-policy: "api key";q=1000;w=3600
//! ratelimit: "api key";r=999;t=2982
//!
//! hello
//! $ curl -s http://127.0.0.1:3000/reports/7
//! api.path_template_/reports/{id}.remote_address: allowed, 1 of 2 left
//! $ curl -s http://127.0.0.1:3000/reports/8
//! api.path_template_/reports/{id}.remote_address: allowed, 0 of 2 left
//! $ curl -si -H 'accept: text/plain' http://127.0.0.1:3000/reports/7
//! HTTP/1.1 429 Too Many Requests
//! content-type: text/plain; charset=utf-8
//! cache-control: no-store
//! x-ratelimit-limit: 2
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 30
//! ratelimit-policy: "reports";q=2;w=60
//! ratelimit: "reports";r=0;t=30
//! retry-after: 30
//!
//! The limit "reports" of 2 in 60 seconds is exceeded. Try again in 30 seconds.
//! $ curl -si -H 'x-api-key: blocked-carl' -H 'accept: text/plain' http://127.0.0.1:3000/
//! HTTP/1.1 429 Too Many Requests
//! content-type: text/plain; charset=utf-8
//! cache-control: no-store
//! x-ratelimit-limit: 0
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 3600
//! ratelimit-policy: "denied";q=0;w=3600
//! ratelimit: "denied";r=0;t=3600
//! retry-after: 3600
//!
//! The limit "denied" of 0 in 3600 seconds is exceeded. Try again in 3600 seconds.
//! ```
use std::net::SocketAddr;
use std::time::Duration;

use axum::routing::get;
use axum::{Extension, Router};
use tidegate::Limiter;
use tidegate_http::RateLimitLayer;
use tidegate_rules::{Loader, RulesDecision};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-rules")
        .deadline(Duration::from_secs(2))
        .build()?;
    let folder = std::env::var("TIDEGATE_RULES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rules").to_owned());
    let rules = Loader::new().watch(folder, &limiter)?;
    let app = Router::new()
        .route("/", get("hello\n"))
        .route("/reports/{id}", get(report))
        .layer(RateLimitLayer::with_rules(&rules, "api")?);
    // `remote_address` is the connection's peer address, unless proxies are trusted: see `Descriptors`.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?)
}

async fn report(Extension(decision): Extension<RulesDecision>) -> String {
    let binding = decision.binding().and_then(|outcome| Some((outcome.rule()?.path(), outcome.decision()?)));
    binding.map_or_else(|| "no limit\n".to_owned(), |(rule, decision)| format!("{rule}: {decision}\n"))
}
