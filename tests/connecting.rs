//! The connection is one, and is made when it is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{Limiter, Quota, Rate};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Takes connections and never says a word; how many it took.
async fn black_hole() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            open.push(connection);
        }
    });
    (url, taken)
}

#[tokio::test]
async fn one_attempt_is_made_however_many_wait_and_give_up() {
    let (url, taken) = black_hole().await;
    let limiter = Limiter::builder().url(&url).deadline(Duration::from_millis(20)).build().unwrap();
    let gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_second(1)));
    for _ in 0..3 {
        let mut callers = JoinSet::new();
        for _ in 0..200 {
            let gate = gate.clone();
            callers.spawn(async move { gate.check("key").await.unwrap_err() });
        }
        for error in callers.join_all().await {
            assert!(error.is_timeout() && error.is_unavailable(), "{error}");
            assert!(error.to_string().contains("while waiting for a connection"), "{error}");
        }
    }
    assert_eq!(taken.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn nobody_connects_before_the_first_ask() {
    let (url, taken) = black_hole().await;
    let limiter = Limiter::open(&url).unwrap();
    let _gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_second(1)));
    tokio::task::yield_now().await;
    assert_eq!(taken.load(Ordering::SeqCst), 0);
}

#[test]
fn a_limiter_that_outlives_a_runtime_connects_in_the_next() {
    let server = harness::shared();
    let limiter = Limiter::builder().url(server.url()).namespace("connecting").build().unwrap();
    let gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_day(1)));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = || gate.ask("key").deadline(Duration::from_secs(10)).check();
    for left in [4, 3, 2] {
        assert_eq!(runtime().block_on(ask()).unwrap().remaining(), left);
    }
}
