//! A service behind the layer, and its responses.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use sfv::{Dictionary, List, ListEntry, Parser};
use tidegate::{Gate, Limiter, Quota, Rate};
use tidegate_http::{Key, RateLimitLayer, ResponseBody};
use tokio::task::JoinHandle;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

/// A service behind the layer under test. Counts the requests that reach it.
#[derive(Clone)]
pub(crate) struct Tested {
    service: BoxCloneSyncService<Request<String>, Response<ResponseBody<String>>, Infallible>,
    calls: Arc<AtomicUsize>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Tested {
    /// Returns a service that replies with `hello`.
    pub(crate) fn new(layer: RateLimitLayer) -> Self {
        Self::with(layer, |_| std::future::ready(Response::new("hello".to_owned())))
    }

    /// Returns a service that replies as `respond` does.
    pub(crate) fn with<F>(
        layer: RateLimitLayer,
        respond: impl Fn(Request<String>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<String>> + Send + 'static,
    {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let inner = service_fn(move |request| {
            counted.fetch_add(1, Ordering::SeqCst);
            let response = respond(request);
            async move { Ok::<_, Infallible>(response.await) }
        });
        Self { service: BoxCloneSyncService::new(layer.layer(inner)), calls }
    }

    /// Returns the number of requests that reached the service.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(crate) async fn send(&self, request: Request<String>) -> Reply {
        let (head, body) = self.service.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Reply { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&self, key: &str) -> Reply {
        self.send(request(key)).await
    }

    /// Sends a request, and runs it until it is done or waits for the clock.
    pub(crate) async fn begin(&self, request: Request<String>) -> JoinHandle<Reply> {
        let tested = self.clone();
        let sent = tokio::spawn(async move { tested.send(request).await });
        settle().await;
        sent
    }
}

/// Yields until no request makes progress. This works on one thread and with a store that replies at once: a
/// request that is not done after this waits for the clock.
pub(crate) async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn request(key: &str) -> Request<String> {
    Request::builder().header("x-api-key", key).body(String::new()).unwrap()
}

pub(crate) fn by_key() -> Key {
    Key::header("x-api-key")
}

/// Returns a gate with a capacity of 3 units that gains one unit every 20 s.
pub(crate) fn three_a_minute(limiter: &Limiter, name: &str) -> Gate {
    limiter.gate(name, Quota::token_bucket(3, Rate::per_minute(3)))
}

/// One limit of draft 11, from `RateLimit-Policy` and `RateLimit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) quota: i64,
    pub(crate) window: i64,
    pub(crate) remaining: i64,
    pub(crate) reset: i64,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.header(name).unwrap_or_else(|| panic!("no {name}: {self:?}")).parse().unwrap()
    }

    /// Returns all lines of a header, joined.
    fn field(&self, name: &str) -> String {
        let lines = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap());
        lines.collect::<Vec<_>>().join(", ")
    }

    /// Parses the draft 11 headers with a parser for structured fields.
    pub(crate) fn limits(&self) -> Vec<Limit> {
        let policies = items(&self.field("ratelimit-policy"));
        let limits = items(&self.field("ratelimit"));
        assert_eq!(policies.len(), limits.len(), "{self:?}");
        let both = policies.into_iter().zip(limits);
        both.map(|((name, policy), (same, limit))| {
            assert_eq!(name, same);
            let limit = Limit {
                name: name.as_string().unwrap().as_str().to_owned(),
                quota: policy("q"),
                window: policy("w"),
                remaining: limit("r"),
                reset: limit("t"),
            };
            assert!(limit.quota > 0 && limit.window > 0 && limit.remaining >= 0 && limit.reset >= 0);
            limit
        })
        .collect()
    }

    /// Parses the policies of draft 7: units and window.
    pub(crate) fn unnamed_policies(&self) -> Vec<(i64, i64)> {
        let items = items(&self.field("ratelimit-policy")).into_iter();
        items.map(|(units, policy)| (units.as_integer().unwrap().into(), policy("w"))).collect()
    }

    /// Parses the `RateLimit` header of draft 7: limit, remaining, reset.
    pub(crate) fn unnamed_limit(&self) -> [i64; 3] {
        let field = self.field("ratelimit");
        let dictionary = Parser::new(&field).parse::<Dictionary>().unwrap();
        ["limit", "remaining", "reset"].map(|key| match &dictionary[key] {
            ListEntry::Item(item) => item.bare_item.as_integer().unwrap().into(),
            other => panic!("{other:?}"),
        })
    }
}

type Parameters = Box<dyn Fn(&str) -> i64>;

fn items(field: &str) -> Vec<(sfv::BareItem, Parameters)> {
    let list = Parser::new(field).parse::<List>().unwrap_or_else(|error| panic!("{field}: {error}"));
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => {
            let parameters = item.params;
            let get = move |key: &str| i64::from(parameters[key].as_integer().unwrap());
            (item.bare_item, Box::new(get) as Parameters)
        }
        other => panic!("{other:?}"),
    });
    items.collect()
}

/// Decodes percent escapes.
pub(crate) fn unescaped(name: &str) -> String {
    let mut parts = name.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}
