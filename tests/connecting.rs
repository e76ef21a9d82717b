//! The connection is one, and is made when it is needed.

use std::time::Duration;

use tidegate::{Limiter, Quota, Rate};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::black_hole::black_hole;
use crate::support::fixture::builder;
use crate::support::hear::hear;

#[tokio::test]
async fn one_attempt_is_made_however_many_wait_and_give_up() {
    let hole = black_hole().await;
    let limiter = builder(&hole.url).deadline(Duration::from_millis(20)).build().unwrap();
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
    assert_eq!(hole.taken(), 1);
}

#[tokio::test]
async fn a_server_that_falls_silent_after_the_handshake_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let limiter = builder(&url).deadline(Duration::from_millis(20)).build().unwrap();
    let gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_second(1)));
    let asking = tokio::spawn(async move {
        loop {
            gate.check("key").await.unwrap_err();
        }
    });
    let (mut first, _) = listener.accept().await.unwrap();
    hear(&mut first, "PING").await;
    first.write_all(b"+PONG\r\n").await.unwrap();
    hear(&mut first, "EVALSHA").await;
    let second = tokio::time::timeout(Duration::from_secs(30), listener.accept()).await;
    second.expect("another attempt").unwrap();
    asking.abort();
}

#[tokio::test]
async fn credentials_beside_the_url_need_no_encoding() {
    const PASSWORD: &str = "p@ss:w/or%d#?";
    let server = harness::Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", PASSWORD]).unwrap();
    let builder = || Limiter::builder().url(server.url()).deadline(Duration::from_secs(10));
    builder().credentials("default", PASSWORD).build().unwrap().ready().await.unwrap();

    let wrong = builder().credentials("default", "wrong");
    assert!(!format!("{wrong:?}").contains("wrong"));
    let error = wrong.build().unwrap().ready().await.unwrap_err();
    assert!(error.is_unavailable() && !error.to_string().contains("wrong"), "{error}");
}

#[tokio::test]
async fn a_denial_stands_where_redis_refuses_writes() {
    let server = harness::Server::process(&[]).unwrap();
    let limiter = builder(server.url()).build().unwrap();
    let day = Duration::from_secs(86_400);
    let fast = limiter.gate("bucket", Quota::token_bucket(1, Rate::per_second(1)));
    let slow = limiter.gate("bucket", Quota::token_bucket(1, Rate::per_hour(1)));
    let window = limiter.gate("window", Quota::fixed_window(1, day));
    assert!(fast.check("x").await.unwrap().is_allowed());
    assert!(window.check("x").await.unwrap().is_allowed());
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();

    // Its expiry is too short for this rate, and cannot be lengthened.
    assert!(!slow.check("x").await.unwrap().is_allowed());
    let both = limiter.check_all([window.ask("x"), slow.ask("untouched")]).await.unwrap();
    assert!(!both.is_allowed());
    assert!(slow.check("untouched").await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn nobody_connects_before_the_first_ask() {
    let hole = black_hole().await;
    let limiter = Limiter::open(&hole.url).unwrap();
    let _gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_second(1)));
    tokio::task::yield_now().await;
    assert_eq!(hole.taken(), 0);
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
