//! A login that counts only failures: three in ten minutes per client. Successful logins are not charged.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example login
//! ```
//!
//! Its responses (without `date` and `content-length`):
//!
//! ```console
//! $ for i in 1 2 3 4 5; do curl -s -X POST -H 'password: sesame' http://127.0.0.1:3000/login; done
//! welcome
//! welcome
//! welcome
//! welcome
//! welcome
//! $ for i in 1 2 3; do curl -s -X POST -H 'password: guess' http://127.0.0.1:3000/login; done
//! wrong password
//! wrong password
//! wrong password
//! $ curl -si -X POST -H 'password: sesame' http://127.0.0.1:3000/login
//! HTTP/1.1 429 Too Many Requests
//! content-type: application/problem+json
//! cache-control: no-store
//! x-ratelimit-limit: 3
//! x-ratelimit-remaining: 0
//! x-ratelimit-reset: 600
//! ratelimit-policy: "login";q=3;w=600
//! ratelimit: "login";r=0;t=600
//! retry-after: 600
//!
//! {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"The limit \"login\" of 3 in 600 seconds is exceeded. Try again in 600 seconds.","violated-policies":["login"]}
//! ```
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tidegate::{Limiter, Quota};
use tidegate_http::{Charge, ClientIp, Key, RateLimitLayer};
use tokio::net::TcpListener;

const LOGIN: Quota = Quota::sliding_log(3, Duration::from_secs(600));

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-login")
        .deadline(Duration::from_secs(2))
        .build()?;
    // Behind a proxy, use `ClientIp::behind(networks)`: only declared headers are trusted.
    let client = Key::client_ip(ClientIp::peer());
    // A unit is charged before the password is checked, so that no two requests share the last one. It is
    // refunded before the response is sent, so that the next request can use it.
    let failures = Charge::when(|response| response.status == StatusCode::UNAUTHORIZED);
    let app = Router::new()
        .route("/login", post(login))
        .layer(RateLimitLayer::new(limiter.gate("login", LOGIN), client).charge(failures));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(TcpListener::bind(std::env::var("LISTEN")?).await?, app).await?;
    Ok(())
}

async fn login(headers: HeaderMap) -> (StatusCode, &'static str) {
    match headers.get("password").map(|password| password.as_bytes()) {
        Some(b"sesame") => (StatusCode::OK, "welcome\n"),
        _ => (StatusCode::UNAUTHORIZED, "wrong password\n"),
    }
}
