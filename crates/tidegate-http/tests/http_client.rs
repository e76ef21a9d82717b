//! Several instances together keep the limit of a third party, over real sockets and with a real Redis.

mod example;
mod fleet;
mod messages;
mod third_party;

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use tidegate::{Gate, Limiter, Quota, Rate};
use tidegate_http::{Key, Outgoing, OutgoingError, OutgoingLayer};
use tidegate_testkit::Server;
use tower::{Layer, ServiceExt};

use crate::support::fixture::{builder, namespace};

/// A quota that never delays a request.
const AMPLE: Quota = Quota::token_bucket(1_000_000, Rate::per_second(1_000_000));

const KEY: &str = "the third party";

/// One of several instances that send requests to the third party.
struct Instance {
    gate: Gate,
    client: Outgoing<Client<HttpConnector, Body>>,
}

impl Instance {
    fn new(gate: Gate, set: impl FnOnce(OutgoingLayer) -> OutgoingLayer) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let layer = set(OutgoingLayer::new(gate.clone()).key(Key::constant(KEY)));
        Self { gate, client: layer.layer(client) }
    }

    async fn get(&self, url: &str) -> Result<Response<()>, OutgoingError<Error>> {
        let request = Request::get(url).body(Body::empty()).unwrap();
        Ok(self.client.clone().oneshot(request).await?.map(|_| ()))
    }

    /// Returns the time for which the key is blocked.
    async fn blocked_for(&self) -> Duration {
        self.gate.peek(KEY).await.unwrap().retry_after()
    }
}

/// Returns separate limiters with the same namespace.
fn limiters<const N: usize>(server: &Server) -> [Limiter; N] {
    let namespace = namespace();
    std::array::from_fn(|_| builder(server.url()).namespace(&namespace).build().unwrap())
}

fn instances<const N: usize>(
    server: &Server,
    quota: Quota,
    set: impl Fn(OutgoingLayer) -> OutgoingLayer,
) -> [Instance; N] {
    limiters::<N>(server).map(|limiter| Instance::new(limiter.gate("outgoing", quota), &set))
}
