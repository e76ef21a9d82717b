//! Charges that the response body determines.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use tidegate::{Gate, Limiter, Quota};
use tidegate_http::{Abandoned, BodyError, Charge, GateRule, Key, RateLimitLayer, ResponseBody, Usage};
use tidegate_testkit::Server;
use tokio::sync::mpsc;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::fixture::{by_key, request, settle};
use crate::support::fixture::{HOUR, limiter, soon};

const TAKEN: u64 = 50;

/// Returns a gate of 1,000 units for each store. The server lives as long as the first value.
fn gates() -> (std::sync::Arc<Server>, [Gate; 2]) {
    let server = tidegate_testkit::shared();
    let redis = limiter(&server);
    let gate = |limiter: Limiter| limiter.gate("tokens", Quota::fixed_window(1_000, HOUR));
    (server, [gate(Limiter::in_memory()), gate(redis)])
}

fn layer(gate: &Gate, charge: Charge) -> RateLimitLayer {
    RateLimitLayer::new(gate.clone(), by_key()).cost(|_| TAKEN).charge(charge)
}

async fn used(gate: &Gate) -> u64 {
    1_000 - gate.peek("a").await.unwrap().remaining()
}

/// Waits until exactly these units are charged.
async fn charged(gate: &Gate, units: u64, case: &str) {
    soon(&format!("{units} units are charged: {case}"), async || used(gate).await == units).await;
    settle().await;
    assert_eq!(used(gate).await, units, "no task changes it afterwards: {case}");
}

/// A frame of a body that fails if the service says so.
type Step = Result<Frame<Bytes>, std::io::Error>;

/// A response body that the test feeds. Reports to `at_drop` when it is dropped, like a stream that counts the
/// tokens it has sent.
struct Fed {
    frames: mpsc::UnboundedReceiver<Step>,
    at_drop: Option<(Usage, u64)>,
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
        if let Some((usage, units)) = &self.at_drop {
            usage.add(*units);
        }
    }
}

fn data(text: &'static str) -> Step {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

/// A response whose body the test feeds.
struct Streaming {
    response: Response<ResponseBody<Fed>>,
    frames: mpsc::UnboundedSender<Step>,
    usage: Option<Usage>,
}

impl Streaming {
    async fn begin(layer: RateLimitLayer) -> Self {
        Self::begin_with(layer, None).await
    }

    async fn begin_with(layer: RateLimitLayer, at_drop: Option<u64>) -> Self {
        let (sent, mut received) = mpsc::unbounded_channel();
        let service = layer.layer(service_fn(move |request: Request<String>| {
            let (frames, fed) = mpsc::unbounded_channel();
            let usage = request.extensions().get::<Usage>().cloned();
            let at_drop = usage.clone().zip(at_drop);
            sent.send((frames, usage)).unwrap();
            async move { Ok::<_, Infallible>(Response::new(Fed { frames: fed, at_drop })) }
        }));
        let response = service.oneshot(request("a")).await.unwrap();
        let (frames, usage) = received.recv().await.unwrap();
        Self { response, frames, usage }
    }

    fn usage(&self) -> &Usage {
        self.usage.as_ref().unwrap()
    }

    /// Sends a frame, and reads it as the server does.
    async fn send(&mut self, frame: Step) -> Option<Result<Frame<Bytes>, BodyError>> {
        self.frames.send(frame).unwrap();
        self.response.body_mut().frame().await
    }

    /// Ends the body, and reads its end.
    async fn end(mut self) {
        drop(self.frames);
        assert!(self.response.body_mut().frame().await.is_none());
    }
}

#[tokio::test]
async fn units_reported_while_streaming_are_charged_at_the_end() {
    let (_server, gates) = gates();
    for gate in gates {
        let mut streaming = Streaming::begin(layer(&gate, Charge::usage())).await;
        assert_eq!(streaming.response.headers()["x-ratelimit-remaining"], "950", "the state before the body");
        assert_eq!(streaming.usage().reserved(), TAKEN);
        streaming.usage().add(3);
        streaming.send(data("one")).await.unwrap().unwrap();
        streaming.usage().add(4);
        assert_eq!(used(&gate).await, TAKEN, "the taken units are held while the body is sent");
        streaming.end().await;
        charged(&gate, 7, "fewer than taken").await;

        let streaming = Streaming::begin(layer(&gate, Charge::usage())).await;
        streaming.usage().set(93);
        streaming.end().await;
        charged(&gate, 100, "more than taken").await;

        Streaming::begin(layer(&gate, Charge::usage())).await.end().await;
        charged(&gate, 100 + TAKEN, "without a report, the cost").await;
    }
}

#[tokio::test]
async fn client_that_leaves_pays_as_the_policy_says() {
    let (_server, gates) = gates();
    for gate in gates {
        for (policy, reported, expected) in [
            (Abandoned::Charged, None, TAKEN),
            (Abandoned::Charged, Some(7), TAKEN),
            (Abandoned::Charged, Some(80), 80),
            (Abandoned::Refunded, None, 0),
            (Abandoned::Refunded, Some(80), 0),
            (Abandoned::Used, None, TAKEN),
            (Abandoned::Used, Some(7), 7),
            (Abandoned::Used, Some(80), 80),
        ] {
            gate.reset("a").await.unwrap();
            let mut streaming = Streaming::begin(layer(&gate, Charge::usage().if_abandoned(policy))).await;
            streaming.send(data("one")).await.unwrap().unwrap();
            if let Some(reported) = reported {
                streaming.usage().set(reported);
            }
            drop(streaming.response);
            charged(&gate, expected, &format!("{policy:?}, {reported:?}")).await;
        }
    }
}

#[tokio::test]
async fn report_of_a_dropped_stream_counts() {
    let (_server, gates) = gates();
    for gate in gates {
        let left = layer(&gate, Charge::usage().if_abandoned(Abandoned::Used));
        drop(Streaming::begin_with(left, Some(5)).await.response);
        charged(&gate, 5, "reported in the stream's Drop").await;
    }
}

#[tokio::test]
async fn bytes_of_the_body_are_charged() {
    let (_server, gates) = gates();
    for gate in gates {
        let charge = || Charge::bytes(10).if_abandoned(Abandoned::Used);
        let mut streaming = Streaming::begin(layer(&gate, charge())).await;
        for _ in 0..7 {
            streaming.send(data("three")).await.unwrap().unwrap();
        }
        streaming.end().await;
        charged(&gate, 4, "35 bytes").await;

        let mut streaming = Streaming::begin(layer(&gate, charge())).await;
        streaming.send(data("eleven bytes")).await.unwrap().unwrap();
        drop(streaming.response);
        charged(&gate, 4 + 2, "a client that leaves after 12 bytes").await;

        Streaming::begin(layer(&gate, charge())).await.end().await;
        charged(&gate, 6, "an empty body is free").await;
    }
}

#[tokio::test]
async fn units_in_the_trailers_are_charged() {
    let (_server, gates) = gates();
    for gate in gates {
        let charge = Charge::trailers(|trailers| trailers.get("x-tokens")?.to_str().ok()?.parse().ok());
        let mut total = 0;
        for (name, value, units) in
            [("x-tokens", "12", 12), ("x-tokens", "many", TAKEN), ("x-other", "12", TAKEN)]
        {
            let mut streaming = Streaming::begin(layer(&gate, charge.clone())).await;
            streaming.send(data("one")).await.unwrap().unwrap();
            let trailers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            let frame = streaming.send(Ok(Frame::trailers(trailers.clone()))).await.unwrap().unwrap();
            assert_eq!(frame.into_trailers().unwrap(), trailers, "they are passed on");
            // A server does not poll beyond the trailers.
            drop(streaming.response);
            total += units;
            charged(&gate, total, value).await;
        }
    }
}

#[tokio::test]
async fn failed_body_is_charged_what_it_used() {
    let (_server, gates) = gates();
    for gate in gates {
        for (reported, expected) in [(Some(7), 7), (None, TAKEN)] {
            gate.reset("a").await.unwrap();
            let charge = Charge::usage().if_abandoned(Abandoned::Refunded);
            let mut streaming = Streaming::begin(layer(&gate, charge)).await;
            if let Some(reported) = reported {
                streaming.usage().add(reported);
            }
            let error =
                streaming.send(Err(std::io::Error::other("upstream failed"))).await.unwrap().unwrap_err();
            assert_eq!(error.to_string(), "upstream failed");
            assert!(error.into_inner().downcast::<std::io::Error>().is_ok(), "the service's own error");
            charged(&gate, expected, &format!("{reported:?}")).await;
        }
    }
}

/// Responds with this body to a request with this method, and drops the body as soon as a server would.
async fn serve_once<B>(layer: RateLimitLayer, method: Method, response: Response<B>)
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let mut service = layer.layer(tower::util::BoxCloneService::new({
        let response = std::sync::Arc::new(std::sync::Mutex::new(Some(response)));
        service_fn(move |_: Request<String>| {
            let response = response.lock().unwrap().take().unwrap();
            async move { Ok::<_, Infallible>(response) }
        })
    }));
    let mut request = request("a");
    *request.method_mut() = method.clone();
    let response = service.ready().await.unwrap().call(request).await.unwrap();
    let length =
        response.headers().get("content-length").map(|value| value.to_str().unwrap().parse().unwrap());
    let mut body = std::pin::pin!(response.into_body());
    let mut read = 0;
    // hyper stops reading at the known length, at the end that the body announces, and before a HEAD's body.
    while method != Method::HEAD && !body.is_end_stream() && length != Some(read) {
        let Some(frame) = body.frame().await else { break };
        read += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
}

#[tokio::test]
async fn body_that_the_server_stops_reading_at_its_end_is_complete() {
    let (_server, gates) = gates();
    for gate in gates {
        let charge = || layer(&gate, Charge::bytes(1).if_abandoned(Abandoned::Refunded));
        serve_once(charge(), Method::GET, Response::new(Full::from("12345"))).await;
        charged(&gate, 5, "a body that announces its end").await;

        let chunks = ["12", "345"].map(|chunk| Ok::<_, Infallible>(Frame::data(Bytes::from(chunk))));
        let stream = StreamBody::new(futures_util::stream::iter(chunks));
        let response = Response::builder().header("content-length", 5).body(stream).unwrap();
        serve_once(charge(), Method::GET, response).await;
        charged(&gate, 10, "a stream of known length").await;

        let head = Response::builder().header("content-length", 5).body(Full::from("12345")).unwrap();
        serve_once(charge(), Method::HEAD, head).await;
        charged(&gate, 10, "HEAD sends no byte").await;

        let not_modified =
            Response::builder().status(StatusCode::NOT_MODIFIED).body(Full::from("12345")).unwrap();
        serve_once(charge(), Method::GET, not_modified).await;
        charged(&gate, 10, "304 sends no byte").await;
    }
}

#[tokio::test]
async fn each_gate_is_charged_at_its_own_time() {
    let (_server, gates) = gates();
    for tokens in gates {
        let requests = tokens.clone();
        let failures = tokens.clone();
        let other = |key: &'static str| Key::constant(key);
        let rules = RateLimitLayer::of([
            GateRule::new(requests, other("requests")).cost(|_| 1),
            GateRule::new(tokens.clone(), by_key()).cost(|_| TAKEN).charge(Charge::usage()),
            GateRule::new(failures, other("failures")).cost(|_| 1).charge(Charge::when(|_| false)),
        ]);
        let remaining = async |key: &str| tokens.peek(key).await.unwrap().remaining();
        let streaming = Streaming::begin(rules).await;
        assert_eq!((remaining("requests").await, remaining("failures").await), (999, 1_000));
        assert_eq!(streaming.usage().reserved(), TAKEN, "of the limits that charge the usage");
        streaming.usage().add(8);
        streaming.end().await;
        charged(&tokens, 8, "tokens").await;
        assert_eq!((remaining("requests").await, remaining("failures").await), (999, 1_000));
    }
}

#[tokio::test]
async fn nested_layers_charge_the_same_report() {
    let (_server, gates) = gates();
    for gate in gates {
        let all =
            RateLimitLayer::new(gate.clone(), Key::constant("all")).cost(|_| 20).charge(Charge::usage());
        let user = layer(&gate, Charge::usage());
        let service = all.layer(user.layer(service_fn(|request: Request<String>| async move {
            let usage = request.extensions().get::<Usage>().unwrap();
            assert_eq!(usage.reserved(), 20, "the smaller reservation");
            usage.add(6);
            Ok::<_, Infallible>(Response::new(Full::from("hello")))
        })));
        let response = service.oneshot(request("a")).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
        charged(&gate, 6, "user").await;
        soon("all", async || gate.peek("all").await.unwrap().remaining() == 994).await;
    }
}

#[tokio::test]
async fn abandoned_handler_pays_what_it_has_reported() {
    let (_server, gates) = gates();
    for gate in gates {
        for (policy, expected) in
            [(Abandoned::Used, 7), (Abandoned::Charged, TAKEN), (Abandoned::Refunded, 0)]
        {
            gate.reset("a").await.unwrap();
            let (entered, mut inside) = mpsc::unbounded_channel();
            let service = layer(&gate, Charge::usage().if_abandoned(policy)).layer(service_fn(
                move |request: Request<String>| {
                    request.extensions().get::<Usage>().unwrap().add(7);
                    entered.send(()).unwrap();
                    std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
                },
            ));
            let sent = tokio::spawn(service.oneshot(request("a")));
            inside.recv().await.unwrap();
            sent.abort();
            assert!(sent.await.unwrap_err().is_cancelled());
            charged(&gate, expected, &format!("{policy:?}")).await;
        }
    }
}

#[tokio::test]
async fn body_dropped_on_a_thread_without_a_runtime_is_settled() {
    let (_server, gates) = gates();
    for gate in gates {
        let streaming = Streaming::begin(layer(&gate, Charge::usage().if_abandoned(Abandoned::Used))).await;
        streaming.usage().add(9);
        let response = streaming.response;
        std::thread::spawn(move || drop(response)).join().unwrap();
        charged(&gate, 9, "on the request's runtime").await;
    }
}

#[tokio::test]
async fn shadow_gate_charges_no_streamed_units() {
    let gate = Limiter::in_memory().gate("tokens", Quota::fixed_window(10, HOUR)).shadow(true);
    for _ in 0..2 {
        let streaming = Streaming::begin(layer(&gate, Charge::usage())).await;
        assert_eq!(streaming.usage().reserved(), 0, "the cost is above the limit, so nothing was taken");
        streaming.usage().add(3);
        streaming.end().await;
    }
    assert_eq!(gate.peek("a").await.unwrap().remaining(), 10);
}
