//! The README's first example: ten lines give an axum service a limit that the whole fleet shares. README.md shows
//! the lines up to the first comment.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example ten_lines
//! ```
//!
//! Its responses (without `date` and `content-length`):
//!
//! ```console
//! $ curl -si -H 'authorization: Bearer anns-token' http://127.0.0.1:3000/
//! HTTP/1.1 200 OK
//! content-type: text/plain; charset=utf-8
//! x-ratelimit-limit: 2
//! x-ratelimit-remaining: 1
//! x-ratelimit-reset: 30
//! ratelimit-policy: "api";q=2;w=60
//! ratelimit: "api";r=1;t=30
//!
//! hi
//! $ curl -s -H 'authorization: Bearer anns-token' http://127.0.0.1:3000/
//! hi
//! $ curl -si -H 'authorization: Bearer anns-token' http://127.0.0.1:3000/
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
use axum::{Router, middleware::from_fn, routing::get};
use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{Key, RateLimitLayer};

async fn app(redis_url: &str) -> Result<Router, tidegate::Error> {
    let limiter = Limiter::open(redis_url)?;
    limiter.ready().await?;
    let api = limiter.gate("api", Quota::token_bucket(2, Rate::per_minute(2)));
    let limit = RateLimitLayer::new(api, Key::extension(|user: &User| user.id));
    Ok(Router::new().route("/", get("hi\n")).layer(limit).layer(from_fn(authenticate)))
}

// The rest is the service's own: its users, their authentication, and its address.

use axum::extract::Request;
use axum::http::{StatusCode, header::AUTHORIZATION};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// An authenticated user: a client can invent any header, but not this.
#[derive(Clone)]
struct User {
    id: u64,
}

/// Adds the user to the request's extensions. A service would look the token up, or verify its signature.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let token = request.headers().get(AUTHORIZATION).map(|value| value.as_bytes());
    let id = match token {
        Some(b"Bearer anns-token") => 42,
        Some(b"Bearer bobs-token") => 43,
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    request.extensions_mut().insert(User { id });
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = app(&std::env::var("TIDEGATE_REDIS_URL")?).await?;
    Ok(axum::serve(tokio::net::TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?)
}
