//! The service behind the layer, without a framework: it does what the path of a request says.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, once, unfold};
use tidegate::Decision;
use tidegate_http::{RateLimitLayer, RequestPermits, Usage};
use tidegate_rules::RulesDecision;
use tokio::sync::Semaphore;

use super::client::Client;

/// Starts a server of one framework with this layer around the service.
pub(crate) type Serve = fn(RateLimitLayer, App) -> Server;

/// A server. It ends when this is dropped, or with the test's runtime.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Whether clients connect over HTTP/2.
    pub(crate) is_http2: bool,
    pub(crate) _running: Box<dyn Any + Send>,
}

impl Server {
    pub(super) async fn connect(&self) -> Client {
        match self.is_http2 {
            true => Client::connect_http2(self.address).await,
            false => Client::connect(self.address).await,
        }
    }
}

/// The values that a handler extracts.
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) decision: Option<Decision>,
    pub(crate) rules_decision: Option<RulesDecision>,
    pub(crate) usage: Option<Usage>,
    pub(crate) permits: RequestPermits,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Pieces,
}

pub(crate) type Pieces = BoxStream<'static, io::Result<Bytes>>;

/// The handler's error: each framework responds with [`FAILED`].
pub(crate) struct Failed;

pub(crate) const FAILED: u16 = 418;

#[derive(Clone)]
pub(crate) struct App(Arc<AppInner>);

struct AppInner {
    calls: AtomicUsize,
    inside: AtomicUsize,
    steps: Semaphore,
}

/// A request inside the service, from the start of its handler to the end of its body.
struct Inside(App);

impl App {
    pub(crate) fn new() -> Self {
        let steps = Semaphore::new(0);
        Self(Arc::new(AppInner { calls: AtomicUsize::new(0), inside: AtomicUsize::new(0), steps }))
    }

    /// Returns the number of requests that reached the service.
    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// Returns the number of requests inside the service.
    pub(crate) fn inside(&self) -> usize {
        self.0.inside.load(Ordering::SeqCst)
    }

    /// Lets one stream continue.
    pub(crate) fn step(&self) {
        self.0.steps.add_permits(1);
    }

    async fn await_step(&self) {
        self.0.steps.acquire().await.unwrap().forget();
    }

    pub(crate) async fn answer(&self, seen: Seen) -> Result<Answer, Failed> {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        self.0.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(self.clone());
        let (way, value) = seen.path.trim_start_matches('/').split_once('/').unwrap_or((&seen.path[1..], ""));
        let body = match way {
            "status" => {
                return Ok(Answer { status: value.parse().unwrap(), body: text("as asked".to_owned()) });
            }
            "usage" => {
                seen.usage.expect("a charge that reads it").set(value.parse().unwrap());
                text("used".to_owned())
            }
            "rules" => {
                let names = seen.rules_decision.iter().flat_map(RulesDecision::outcomes);
                let names = names.filter_map(|outcome| Some(outcome.rule()?.shown().to_string()));
                text(names.collect::<Vec<_>>().join(","))
            }
            "permits" => text(format!("empty: {}", seen.permits.is_empty())),
            "stream" | "broken" => {
                let second = if way == "stream" { Ok("two") } else { Err("broken") };
                unfold(("one,", Some(inside)), move |(piece, inside)| async move {
                    if piece.is_empty() {
                        inside.as_ref()?.0.await_step().await;
                        return Some((second.map(Bytes::from).map_err(io::Error::other), ("", None)));
                    }
                    Some((Ok(Bytes::from(piece)), ("", inside)))
                })
                .boxed()
            }
            "endless" => unfold(inside, |inside| async move {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Some((Ok(Bytes::from_static(b"more")), inside))
            })
            .boxed(),
            "hold" => {
                std::future::pending::<()>().await;
                text(String::new())
            }
            "fail" => return Err(Failed),
            "panic" => panic!("as the test wants"),
            _ => text(
                seen.decision
                    .map_or("hello".to_owned(), |decision| format!("hello, {} more", decision.remaining())),
            ),
        };
        Ok(Answer { status: 200, body })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

fn text(text: String) -> Pieces {
    once(async move { Ok(Bytes::from(text)) }).boxed()
}
