//! The README's first program: an axum service that limits each client's address, for the whole fleet. The test
//! `crates/tidegate-http/tests/http/first_program.rs` builds it in a project of its own, as README.md says.
use std::net::SocketAddr;

use axum::{Router, routing::get};
use tidegate::Limiter;
use tidegate_http::{ClientIp, Key, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::builder().url("redis://127.0.0.1:6379").namespace("shop").build()?;
    limiter.ready().await?; // ends here without Redis; a service can also log it and go on
    let api = limiter.gate("api", "100/min burst 20".parse()?);
    let limit = RateLimitLayer::new(api, Key::client_ip(ClientIp::peer()));
    let app = Router::new().route("/", get("hi\n")).layer(limit);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
