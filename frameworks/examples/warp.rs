//! warp: a handler behind a limit, with the rejections and headers of the layer of `tidegate-http`.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run --manifest-path frameworks/Cargo.toml --example warp
//! ```
#[path = "shared/limit.rs"]
mod limit;
#[path = "shared/respond.rs"]
mod respond;

use std::net::SocketAddr;

use tidegate_http::RateLimitLayer;
use warp::Filter;
use warp::http::{HeaderMap, Method, Response, Uri};

async fn limited(
    limit: RateLimitLayer,
    method: Method,
    headers: HeaderMap,
    peer: Option<SocketAddr>,
) -> Response<String> {
    // For keys by path, use the filter `warp::path::full`.
    let head = limit::head(method, Uri::default(), headers, peer);
    respond::respond(&limit, &head, hello()).await
}

async fn hello() -> Response<String> {
    Response::new("hello\n".to_owned())
}

#[tokio::main]
async fn main() -> Result<(), limit::Failure> {
    let (limit, address) = limit::from_environment()?;
    let head = warp::method().and(warp::header::headers_cloned()).and(warp::addr::remote());
    let limit = warp::any().map(move || limit.clone());
    warp::serve(warp::path::end().and(limit).and(head).then(limited)).run(address).await;
    Ok(())
}
