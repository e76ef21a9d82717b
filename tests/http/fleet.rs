//! Three instances of the axum example behind one Redis, loaded together over connections that are kept:
//! what is admitted is what the definition permits, and every single response says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::Server;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rand::seq::SliceRandom;
use tokio::net::TcpStream;

use super::fixture::Reply;
use super::process::Example;

const INSTANCES: usize = 3;
const CONNECTIONS_EACH: usize = 16;

/// Twice the 60 that each key may have.
const ASKS_OF_A_FREE_KEY: usize = 120;

struct Load {
    free_keys: usize,
    pro_keys: usize,
    asks_of_a_pro_key: usize,
}

/// One request and its response.
struct Asked {
    key: String,
    sent: Instant,
    answered: Instant,
    reply: Reply,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_admits_20_000_requests_as_its_definitions_permit() {
    run(&Load { free_keys: 100, pro_keys: 4, asks_of_a_pro_key: 2_000 }, 20_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: scripts/test full"]
async fn long_form_a_fleet_admits_120_000_requests_as_its_definitions_permit() {
    run(&Load { free_keys: 600, pro_keys: 12, asks_of_a_pro_key: 4_000 }, 120_000).await;
}

async fn run(load: &Load, requests: usize) {
    let server = Server::process(&[]).unwrap();
    let instances: Vec<Example> = (0..INSTANCES).map(|_| Example::start("axum", server.url())).collect();
    let free = (0..load.free_keys).flat_map(|at| vec![format!("free-{at}"); ASKS_OF_A_FREE_KEY]);
    let pro = (0..load.pro_keys).flat_map(|at| vec![format!("pro-{at}"); load.asks_of_a_pro_key]);
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
            let mut asked = Vec::new();
            while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                asked.push(ask(&mut connection, key).await);
            }
            asked
        })
    });
    let mut by_key = HashMap::<String, Vec<Asked>>::new();
    for asked in futures_util::future::join_all(clients).await {
        for asked in asked.unwrap() {
            by_key.entry(asked.key.clone()).or_default().push(asked);
        }
    }
    let took = start.elapsed();

    let (mut admitted, mut all) = (0, 0);
    for (key, asked) in &by_key {
        let is_pro = key.starts_with("pro-");
        asked.iter().for_each(|asked| read(asked, is_pro, took));
        let passed = asked.iter().filter(|it| it.reply.status == StatusCode::OK).count();
        if is_pro {
            as_the_bucket_permits(asked, passed)
        } else {
            as_the_window_permits(asked)
        }
        admitted += passed;
        all += asked.len();
    }
    assert_eq!(all, requests);
    eprintln!(
        "{all} requests in {took:.1?} ({:.0}/s): {admitted} admitted, the others 429",
        all as f64 / took.as_secs_f64()
    );
}

async fn ask(connection: &mut SendRequest<Empty<Bytes>>, key: &str) -> Asked {
    let request = Request::get("/").header("host", "x").header("x-api-key", key).body(Empty::new()).unwrap();
    connection.ready().await.unwrap();
    let sent = Instant::now();
    let (head, body) = connection.send_request(request).await.unwrap().into_parts();
    let answered = Instant::now();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let reply = Reply { status: head.status, headers: head.headers, body };
    Asked { key: key.to_owned(), sent, answered, reply }
}

/// Everything that one response says fits together.
fn read(asked: &Asked, is_pro: bool, took: Duration) {
    let reply = &asked.reply;
    let (name, quota, window) = if is_pro { ("pro", 600, 60) } else { ("free", 60, 3_600) };
    let [limit, remaining, reset] =
        ["limit", "remaining", "reset"].map(|it| reply.number(&format!("x-ratelimit-{it}")));
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

/// 60 of them, and no two were told the same number.
fn as_the_window_permits(asked: &[Asked]) {
    let passed = asked.iter().filter(|it| it.reply.status == StatusCode::OK);
    let mut remaining: Vec<u64> = passed.map(|it| it.reply.number("x-ratelimit-remaining")).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (0..60).collect::<Vec<_>>());
}

/// 600 and 10 for each second from the first decision on. When a decision was made is known to within its
/// request.
fn as_the_bucket_permits(asked: &[Asked], passed: usize) {
    let permitted = |since: Instant, until: Instant| 600 + (until - since).as_millis() as usize / 100;
    let denied = asked.iter().filter(|it| it.reply.status != StatusCode::OK);
    let first_sent = asked.iter().map(|it| it.sent).min().unwrap();
    let first_answered = asked.iter().map(|it| it.answered).min().unwrap();
    let last_denied = denied.map(|it| it.sent).max().expect("more is asked than there is");
    let last_answered = asked.iter().map(|it| it.answered).max().unwrap();
    let (least, most) = (permitted(first_answered, last_denied), permitted(first_sent, last_answered));
    assert!((least..=most).contains(&passed), "{passed} passed, {least} to {most} were permitted");
}
