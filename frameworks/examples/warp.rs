//! warp: a filter checks a gate, and reports the limit as the layer of `tidegate-http` does.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example warp
//! ```
#[path = "shared/gate.rs"]
mod gate;

use std::net::SocketAddr;

use tidegate::Gate;
use tidegate_http::{Headers, Rejection};
use warp::Filter;
use warp::http::{Response, StatusCode};

async fn hello(gate: Gate, client: Option<SocketAddr>) -> Response<String> {
    let client = client.map(|address| address.ip().to_string()).unwrap_or_default();
    let mut response = Response::new("hello\n".to_owned());
    match gate.check(&client).await {
        Ok(decision) => {
            response.headers_mut().extend(Headers::new().of(&gate, &decision));
            if !decision.is_allowed() {
                let rejection = Rejection::of(&gate, decision);
                *response.status_mut() = rejection.status();
                *response.body_mut() = rejection.message().to_owned();
            }
        }
        Err(_) => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
    }
    response
}

#[tokio::main]
async fn main() -> Result<(), gate::Failure> {
    let (gate, address) = gate::from_environment()?;
    let gate = warp::any().map(move || gate.clone());
    warp::serve(warp::path::end().and(gate).and(warp::addr::remote()).then(hello)).run(address).await;
    Ok(())
}
