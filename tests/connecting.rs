//! A limiter has one connection, and opens it when a call needs it.

use std::time::Duration;

use tidegate::{Limiter, Quota, Rate};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::support::black_hole::black_hole;
use crate::support::fixture::builder;
use crate::support::hear::hear;

#[tokio::test]
async fn waiting_callers_share_one_connection_attempt() {
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
            assert!(error.to_string().contains("waiting for a connection"), "{error}");
        }
    }
    assert_eq!(hole.taken(), 1);
}

#[tokio::test]
async fn connection_is_replaced_if_the_server_goes_silent_after_the_handshake() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let limiter = builder(&url).deadline(Duration::from_millis(20)).build().unwrap();
    let gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_second(1)));
    let checks = tokio::spawn(async move {
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
    checks.abort();
}

#[tokio::test]
async fn credentials_outside_the_url_need_no_encoding() {
    const PASSWORD: &str = "p@ss:w/or%d#?";
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", PASSWORD]).unwrap();
    let builder = || Limiter::builder().url(server.url()).deadline(Duration::from_secs(10));
    builder().credentials("default", PASSWORD).build().unwrap().ready().await.unwrap();

    let wrong = builder().credentials("default", "wrong");
    assert!(!format!("{wrong:?}").contains("wrong"));
    let error = wrong.build().unwrap().ready().await.unwrap_err();
    assert!(error.is_unavailable() && !error.to_string().contains("wrong"), "{error}");
}

#[tokio::test]
async fn check_over_the_limit_is_denied_although_redis_rejects_writes() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let limiter = builder(server.url()).build().unwrap();
    let day = Duration::from_secs(86_400);
    let fast = limiter.gate("bucket", Quota::token_bucket(1, Rate::per_second(1)));
    let slow = limiter.gate("bucket", Quota::token_bucket(1, Rate::per_hour(1)));
    let window = limiter.gate("window", Quota::fixed_window(1, day));
    assert!(fast.check("x").await.unwrap().is_allowed());
    assert!(window.check("x").await.unwrap().is_allowed());
    server.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap();

    // The expiry of the key is too short for the slow rate, and Redis rejects the write that would extend it.
    assert!(!slow.check("x").await.unwrap().is_allowed());
    let both = limiter.check_all([window.key("x"), slow.key("untouched")]).await.unwrap();
    assert!(!both.is_allowed());
    assert!(slow.check("untouched").await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn limiter_does_not_connect_before_the_first_check() {
    let hole = black_hole().await;
    let limiter = Limiter::open(&hole.url).unwrap();
    let _gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_second(1)));
    tokio::task::yield_now().await;
    assert_eq!(hole.taken(), 0);
}

#[test]
fn limiter_that_outlives_a_runtime_connects_on_the_next() {
    let server = tidegate_testkit::shared();
    let limiter = Limiter::builder().url(server.url()).namespace("connecting").build().unwrap();
    let gate = limiter.gate("gate", Quota::token_bucket(5, Rate::per_day(1)));
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let check = || gate.key("key").deadline(Duration::from_secs(10)).check();
    for remaining in [4, 3, 2] {
        assert_eq!(runtime().block_on(check()).unwrap().remaining(), remaining);
    }
}

#[tokio::test]
async fn error_names_the_credentials_provider_if_that_takes_too_long() {
    let server = tidegate_testkit::shared();
    let provider = std::future::pending::<Result<(String, String), std::io::Error>>;
    let limiter = builder(server.url()).credentials_provider(provider).build().unwrap();
    let error = limiter.gate("gate", Quota::token_bucket(5, Rate::per_second(1))).check("key").await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("the credentials provider took longer than 900ms"), "{error}");
}
