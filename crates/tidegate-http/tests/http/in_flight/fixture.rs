//! Gates with in-flight limits, and responses whose bodies the test feeds.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tidegate::{Event, Gate, Limiter, ManualClock, Observer, Quota};
use tidegate_http::{BodyError, RateLimitLayer, ResponseBody};
use tidegate_testkit::Server;
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt, service_fn};

use crate::http::fixture::{by_key, request, settle};
use crate::support::fixture::{PATIENCE, builder, soon};

pub(super) const SLOTS: u64 = 10;

/// Prints errors, which responses do not show.
struct Failures;

impl Observer for Failures {
    fn on(&self, event: &Event<'_>) {
        if let Event::Failed { gate, error } = *event {
            eprintln!("{gate}: {error}");
        }
    }
}

/// The codes of the limiter's warnings.
#[derive(Clone, Default)]
pub(super) struct Codes(Arc<Mutex<Vec<&'static str>>>);

impl Observer for Codes {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = event {
            self.0.lock().unwrap().push(warning.code());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

impl Codes {
    pub(super) fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

/// Returns a limiter in memory that a busy machine does not hold to a deadline.
pub(super) fn memory() -> Limiter {
    Limiter::builder().in_memory().deadline(PATIENCE).observer(Failures).build().unwrap()
}

/// Returns a limiter in memory on a clock that the test moves.
pub(super) fn memory_with(clock: &ManualClock) -> Limiter {
    Limiter::builder().in_memory().manual_clock(clock.clone()).deadline(PATIENCE).build().unwrap()
}

/// Returns a limiter for each store. The server lives as long as the first value.
pub(super) fn stores() -> (Arc<Server>, [Limiter; 2]) {
    let server = tidegate_testkit::shared();
    let redis = builder(server.url()).observer(Failures).build().unwrap();
    (server, [memory(), redis])
}

/// Returns a gate of 10 slots for each store.
pub(super) fn gates() -> (Arc<Server>, [Gate; 2]) {
    let (server, stores) = stores();
    (server, stores.map(|limiter| limiter.gate("uploads", Quota::in_flight(SLOTS))))
}

pub(super) fn layer(gate: &Gate) -> RateLimitLayer {
    RateLimitLayer::new(gate.clone(), by_key())
}

/// Returns the units that the store counts as held for key `a`.
pub(super) async fn held(gate: &Gate) -> u64 {
    let decision = gate.peek("a").await.unwrap();
    decision.limit() - decision.remaining()
}

/// Waits until exactly these units are held.
pub(super) async fn holds(gate: &Gate, units: u64, case: &str) {
    soon(&format!("{units} units are held: {case}"), async || held(gate).await == units).await;
    settle().await;
    assert_eq!(held(gate).await, units, "no task changes it afterwards: {case}");
}

/// A frame of a body that fails if the service says so.
pub(super) type Step = Result<Frame<Bytes>, std::io::Error>;

/// A response body that the test feeds.
pub(super) struct Fed {
    frames: mpsc::UnboundedReceiver<Step>,
    /// Called when the body is dropped.
    at_drop: Option<Box<dyn FnOnce() + Send>>,
}

impl Body for Fed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        self.frames.poll_recv(cx)
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        if let Some(at_drop) = self.at_drop.take() {
            at_drop();
        }
    }
}

pub(super) fn data(text: &'static str) -> Step {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

/// A response whose body the test feeds.
pub(super) struct Open {
    pub(super) response: Response<ResponseBody<Fed>>,
    frames: mpsc::UnboundedSender<Step>,
}

impl Open {
    /// Sends a request through the layer.
    pub(super) async fn begin(layer: RateLimitLayer) -> Self {
        Self::begin_with(layer, request("a"), StatusCode::OK, None).await
    }

    pub(super) async fn begin_with(
        layer: RateLimitLayer,
        request: Request<String>,
        status: StatusCode,
        at_drop: Option<Box<dyn FnOnce() + Send>>,
    ) -> Self {
        let (frames, fed) = mpsc::unbounded_channel();
        let body = Arc::new(Mutex::new(Some(Fed { frames: fed, at_drop })));
        let service = layer.layer(service_fn(move |_: Request<String>| {
            let body = body.lock().unwrap().take().expect("one request");
            let response = Response::builder().status(status).body(body).unwrap();
            async move { Ok::<_, Infallible>(response) }
        }));
        let response = service.oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "admitted");
        Self { response, frames }
    }

    /// Sends a frame, and reads it as the server does.
    pub(super) async fn send(&mut self, frame: Step) -> Option<Result<Frame<Bytes>, BodyError>> {
        self.frames.send(frame).unwrap();
        self.response.body_mut().frame().await
    }

    /// Ends the body, and reads its end. Returns the response.
    pub(super) async fn end(mut self) -> Response<ResponseBody<Fed>> {
        drop(self.frames);
        assert!(self.response.body_mut().frame().await.is_none());
        self.response
    }
}
