//! A gRPC service (tonic's health check) that each client may call twice a minute.
//!
//! ```console
//! $ TIDEGATE_REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:3000 cargo run -p tidegate-http --features tonic --example grpc
//! ```
//!
//! Its responses (without `date` and `content-length`). An empty gRPC message is five zero bytes. The last
//! request is sent without a message: it is rejected before its body is read, which some versions of curl
//! report as an error over HTTP/2:
//!
//! ```console
//! $ printf '\0\0\0\0\0' | curl -s -D - -o /dev/null --http2-prior-knowledge -H 'content-type: application/grpc' -H 'te: trailers' -H 'x-client: ann' --data-binary @- http://127.0.0.1:3000/grpc.health.v1.Health/Check | grep -E 'grpc|ratelimit:'
//! content-type: application/grpc
//! ratelimit: "health";r=1;t=30
//! grpc-status: 0
//! $ printf '\0\0\0\0\0' | curl -s -D - -o /dev/null --http2-prior-knowledge -H 'content-type: application/grpc' -H 'te: trailers' -H 'x-client: ann' --data-binary @- http://127.0.0.1:3000/grpc.health.v1.Health/Check | grep grpc
//! content-type: application/grpc
//! grpc-status: 0
//! $ curl -s -D - -o /dev/null --http2-prior-knowledge -X POST -H 'content-type: application/grpc' -H 'te: trailers' -H 'x-client: ann' http://127.0.0.1:3000/grpc.health.v1.Health/Check | grep -E 'grpc-(status|message):|ratelimit:'
//! grpc-status: 8
//! grpc-message: The%20limit%20%22health%22%20of%202%20in%2060%20seconds%20is%20exceeded.%20Try%20again%20in%2030%20seconds.
//! ratelimit: "health";r=0;t=30
//! ```
use std::time::Duration;

use tidegate::{Limiter, Quota, Rate};
use tidegate_http::{Key, RateLimitLayer};
use tonic::transport::Server;

const HEALTH: Quota = Quota::token_bucket(2, Rate::per_minute(2));

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let limiter = Limiter::builder()
        .url(&std::env::var("TIDEGATE_REDIS_URL")?)
        .namespace("example-grpc")
        .deadline(Duration::from_secs(2))
        .build()?;
    let (_reporter, health) = tonic_health::server::health_reporter();
    Server::builder()
        .layer(RateLimitLayer::new(limiter.gate("health", HEALTH), Key::header("x-client")))
        .add_service(health)
        .serve(std::env::var("LISTEN")?.parse()?)
        .await?;
    Ok(())
}
