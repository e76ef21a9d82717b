//! Three instances of the axum or actix-web example with one Redis, under load over persistent connections. The
//! fleet admits what the quotas permit, and each response is consistent.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rand::seq::SliceRandom;
use tidegate_testkit::Server;
use tokio::net::TcpStream;

use super::fixture::Reply;
use super::process::Example;

const INSTANCES: usize = 3;
const CONNECTIONS_EACH: usize = 16;

/// Twice the limit of 60 per key.
const REQUESTS_PER_FREE_KEY: usize = 120;

struct Load {
    free_keys: usize,
    pro_keys: usize,
    requests_per_pro_key: usize,
}

/// One request and its response.
struct Exchange {
    key: String,
    sent: Instant,
    received: Instant,
    reply: Reply,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_keeps_its_limits_over_20_000_requests() {
    run("axum", &Load { free_keys: 100, pro_keys: 4, requests_per_pro_key: 2_000 }, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_of_actix_web_keeps_its_limits_over_20_000_requests() {
    run("actix", &Load { free_keys: 100, pro_keys: 4, requests_per_pro_key: 2_000 }, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: scripts/test full"]
async fn long_form_fleet_keeps_its_limits_over_120_000_requests() {
    run("axum", &Load { free_keys: 600, pro_keys: 12, requests_per_pro_key: 4_000 }, 120_000).await;
}

async fn run(example: &str, load: &Load, requests: usize) {
    let server = Server::process(&[]).unwrap();
    let instances: Vec<Example> = (0..INSTANCES).map(|_| Example::start(example, server.url())).collect();
    let free = (0..load.free_keys).flat_map(|at| vec![format!("free-{at}"); REQUESTS_PER_FREE_KEY]);
    let pro = (0..load.pro_keys).flat_map(|at| vec![format!("pro-{at}"); load.requests_per_pro_key]);
    let mut keys: Vec<String> = free.chain(pro).collect();
    keys.shuffle(&mut rand::rng());
    assert_eq!(keys.len(), requests);

    let (keys, next) = (Arc::new(keys), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    let clients = (0..INSTANCES * CONNECTIONS_EACH).map(|at| {
        let (address, keys, next) = (instances[at % INSTANCES].address, keys.clone(), next.clone());
        tokio::spawn(async move {
            let (mut connection, driver) =
                handshake(TokioIo::new(TcpStream::connect(address).await.unwrap())).await.unwrap();
            tokio::spawn(driver);
            let mut exchanges = Vec::new();
            while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                exchanges.push(send(&mut connection, key).await);
            }
            exchanges
        })
    });
    let mut by_key = HashMap::<String, Vec<Exchange>>::new();
    for exchanges in futures_util::future::join_all(clients).await {
        for exchange in exchanges.unwrap() {
            by_key.entry(exchange.key.clone()).or_default().push(exchange);
        }
    }
    let took = start.elapsed();

    let (mut admitted, mut all) = (0, 0);
    for (key, exchanges) in &by_key {
        let is_pro = key.starts_with("pro-");
        exchanges.iter().for_each(|exchange| assert_consistent(exchange, is_pro, took));
        let passed = exchanges.iter().filter(|exchange| exchange.reply.status == StatusCode::OK).count();
        if is_pro {
            assert_within_bucket(exchanges, passed)
        } else {
            assert_window_is_exact(exchanges)
        }
        admitted += passed;
        all += exchanges.len();
    }
    assert_eq!(all, requests);
    eprintln!(
        "{example}: {all} requests in {took:.1?} ({:.0}/s): {admitted} admitted, the others 429",
        all as f64 / took.as_secs_f64()
    );
}

async fn send(connection: &mut SendRequest<Empty<Bytes>>, key: &str) -> Exchange {
    let request = Request::get("/").header("host", "x").header("x-api-key", key).body(Empty::new()).unwrap();
    connection.ready().await.unwrap();
    let sent = Instant::now();
    let (head, body) = connection.send_request(request).await.unwrap().into_parts();
    let received = Instant::now();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let reply = Reply { status: head.status, headers: head.headers, body };
    Exchange { key: key.to_owned(), sent, received, reply }
}

/// Asserts that status, headers and body of one response agree.
fn assert_consistent(exchange: &Exchange, is_pro: bool, took: Duration) {
    let reply = &exchange.reply;
    let (name, quota, window) = if is_pro { ("pro", 600, 60) } else { ("free", 60, 3_600) };
    let [limit, remaining, reset] =
        ["limit", "remaining", "reset"].map(|name| reply.number(&format!("x-ratelimit-{name}")));
    assert_eq!(limit, quota);
    assert!(remaining < quota, "{reply:?}");
    let limits = reply.limits();
    assert_eq!(limits.len(), 1);
    assert_eq!((&*limits[0].name, limits[0].quota, limits[0].window), (name, quota as i64, window));
    assert_eq!((limits[0].remaining, limits[0].reset), (remaining as i64, reset as i64));
    let longest = if is_pro { 60 } else { 3_600 };
    let shortest = if is_pro { 1 } else { 3_600 - took.as_secs() - 1 };
    assert!((shortest..=longest).contains(&reset), "{reply:?}");
    match reply.status {
        StatusCode::OK => {
            assert_eq!(reply.body, format!("hello, {remaining} more\n"));
            assert_eq!(reply.header("retry-after"), None);
        }
        StatusCode::TOO_MANY_REQUESTS => {
            assert_eq!((remaining, reply.number("retry-after")), (0, reset), "{reply:?}");
            let problem: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
            assert_eq!(problem["violated-policies"], serde_json::json!([name]));
        }
        other => panic!("{other}: {reply:?}"),
    }
}

/// Asserts that 60 requests passed, each with another number of remaining units.
fn assert_window_is_exact(exchanges: &[Exchange]) {
    let passed = exchanges.iter().filter(|exchange| exchange.reply.status == StatusCode::OK);
    let mut remaining: Vec<u64> =
        passed.map(|exchange| exchange.reply.number("x-ratelimit-remaining")).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (0..60).collect::<Vec<_>>());
}

/// Asserts that 600 requests passed, and 10 more per second since the first decision. The time of a decision
/// lies between the times of its request and its response.
///
/// A full bucket gains no units. On a busy machine it may be full again after the first requests. So the
/// minimum is that of the least favorable time at which the bucket can have been full.
fn assert_within_bucket(exchanges: &[Exchange], passed: usize) {
    let gained = |since: Instant, until: Instant| (until - since).as_millis() as usize / 100;
    let denied = exchanges.iter().filter(|exchange| exchange.reply.status != StatusCode::OK);
    let first_sent = exchanges.iter().map(|exchange| exchange.sent).min().unwrap();
    let passes = exchanges.iter().filter(|exchange| exchange.reply.status == StatusCode::OK);
    let mut received: Vec<Instant> = passes.map(|exchange| exchange.received).collect();
    received.sort_unstable();
    let last_denied = denied.map(|exchange| exchange.sent).max().expect("the load exceeds the limit");
    let last_received = exchanges.iter().map(|exchange| exchange.received).max().unwrap();
    // Each entry of `received` has as many passes before it as its index.
    let can_be_full = received.iter().enumerate().filter(|&(used, at)| used <= gained(first_sent, *at));
    let min = can_be_full.map(|(used, at)| used + 600 + gained(*at, last_denied)).min().unwrap();
    let max = 600 + gained(first_sent, last_received);
    assert!((min..=max).contains(&passed), "{passed} passed, {min} to {max} were permitted");
}
