//! Runs the examples as processes over real sockets with a real Redis.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue should panic")]
#![allow(unreachable_pub, reason = "nothing here is reached from outside")]

mod client;
mod pingora;
#[path = "../../crates/tidegate-http/tests/http/process.rs"]
mod process;
mod upstream;

use tidegate_testkit::Server;

use self::client::get;
use self::process::Example;

/// Asserts that the example admits two requests of an address, and rejects the third until Retry-After.
async fn limits_each_address(name: &str) {
    let redis = Server::process(&[]).unwrap();
    let example = Example::start(name, redis.url());
    for remaining in ["1", "0"] {
        let admitted = get(example.address, [127, 0, 0, 1], "/", &[]).await;
        assert_eq!((admitted.status, &*admitted.body), (200, "hello\n"), "{admitted:?}");
        assert_eq!(admitted.header("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(admitted.header("retry-after"), None);
    }
    let denied = get(example.address, [127, 0, 0, 1], "/", &[("x-real-ip", "203.0.113.7")]).await;
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{denied:?}");
    assert_eq!(denied.header("ratelimit-policy"), Some("\"hello\";q=2;w=60"));
    assert_eq!(denied.header("ratelimit"), Some(&*format!("\"hello\";r=0;t={wait}")));
    assert!(denied.body.starts_with("The limit \"hello\" of 2 in 60 seconds is exceeded."), "{denied:?}");
    assert_eq!(get(example.address, [127, 0, 0, 2], "/", &[]).await.status, 200, "another address");
}

#[tokio::test]
async fn handler_of_poem_limits_each_address() {
    limits_each_address("poem").await;
}

#[tokio::test]
async fn handler_of_rocket_limits_each_address() {
    limits_each_address("rocket").await;
}

#[tokio::test]
async fn handler_of_salvo_limits_each_address() {
    limits_each_address("salvo").await;
}

#[tokio::test]
async fn filter_of_warp_limits_each_address() {
    limits_each_address("warp").await;
}
