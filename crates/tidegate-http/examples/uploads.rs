//! Accepts uploads: of each client, two at the same time and 100 an hour. Of all clients together four at the same
//! time, of which one slot is reserved for paying clients.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features axum --example uploads
//! ```
//!
//! Its responses. An upload that has ended gives its slot back. `/held/SECONDS` responds slowly: while two such
//! requests of a client run, a third one is denied, and charged nothing. `free-` clients together have three slots, and
//! `paid-` clients get the fourth:
//!
//! ```console
//! $ curl -s -H 'x-client: free-ann' -d 'hello' -w 'slots: %header{ratelimit}\n' http://127.0.0.1:3000/
//! 5 bytes
//! slots: "client";r=1, "all";r=2, "hourly";r=99;t=36
//! $ for n in 1 2; do curl -s -o /dev/null -H 'x-client: free-ann' http://127.0.0.1:3000/held/3 & done; sleep 1; curl -s -H 'accept: text/plain' -H 'x-client: free-ann' -d 'hello' http://127.0.0.1:3000/; wait
//! The limit "client" of 2 concurrent requests is reached. Try again in 1 second.
//! $ for n in 1 2 3; do curl -s -o /dev/null -H "x-client: free-$n" http://127.0.0.1:3000/held/3 & done; sleep 1; for name in free-ann paid-bob; do curl -s -H 'accept: text/plain' -H "x-client: $name" -d 'hello' http://127.0.0.1:3000/; done; wait
//! The limit "all" of 3 concurrent requests is reached. Try again in 1 second.
//! 5 bytes
//! ```
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::routing::{get, post};
use http::request::Parts;
use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{GateRule, Key, RateLimitLayer};
use tokio::net::TcpListener;

type Failure = Box<dyn std::error::Error>;

fn is_paying(request: &Parts) -> bool {
    request.headers.get("x-client").is_some_and(|client| client.as_bytes().starts_with(b"paid-"))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-uploads")
        .deadline(Duration::from_secs(2))
        .build()?;
    let client = limiter.gate("client", Quota::in_flight(2));
    let all = limiter.gate("all", Quota::in_flight(4));
    let hourly = limiter.gate("hourly", Quota::token_bucket(100, Rate::per_hour(100)));
    // All three admit an upload, or none does.
    let layer = RateLimitLayer::of([
        GateRule::new(client, Key::header("x-client")),
        GateRule::new(all, Key::constant("all")).reserve_for(is_paying, 0.25),
        GateRule::new(hourly, Key::header("x-client")),
    ]);
    let app = Router::new().route("/", post(upload)).route("/held/{seconds}", get(hold)).layer(layer);
    let listener = TcpListener::bind(std::env::var("LISTEN")?).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn upload(body: Bytes) -> String {
    format!("{} bytes\n", body.len())
}

async fn hold(Path(seconds): Path<u64>) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
