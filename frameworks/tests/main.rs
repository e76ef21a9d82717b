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

/// The address that the examples trust to forward others.
const BALANCER: [u8; 4] = [127, 0, 0, 9];
const CLIENT: [u8; 4] = [127, 0, 0, 1];

/// Asserts that the example admits two requests of an address, and rejects the third until Retry-After.
async fn limits_each_address(name: &str) {
    let redis = Server::process(&[]).unwrap();
    let example = Example::start_with(name, redis.url(), &[("PROXIES", "127.0.0.9")]);
    for remaining in ["1", "0"] {
        let admitted = get(example.address, CLIENT, "/", &[]).await;
        assert_eq!((admitted.status, &*admitted.body), (200, "hello\n"), "{admitted:?}");
        assert_eq!(admitted.header("x-ratelimit-remaining"), Some(remaining));
        assert_eq!(admitted.header("retry-after"), None);
    }
    let claimed = [("x-real-ip", "203.0.113.7"), ("x-forwarded-for", "203.0.113.7")];
    let denied = get(example.address, CLIENT, "/", &claimed).await;
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&wait), "{denied:?}");
    assert_eq!(denied.header("ratelimit-policy"), Some("\"hello\";q=2;w=60"));
    assert_eq!(denied.header("ratelimit"), Some(&*format!("\"hello\";r=0;t={wait}")));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.body.contains("\"violated-policies\":[\"hello\"]"), "{denied:?}");
    for (forwarded, status) in [
        ("203.0.113.7", 200),
        ("203.0.113.8", 200),
        ("2001:db8::1", 200),
        ("2001:db8::2", 200),
        ("2001:db8::3", 429), // One client has all addresses of a /64.
        ("2001:db8:0:1::1", 200),
    ] {
        let reply = get(example.address, BALANCER, "/", &[("x-forwarded-for", forwarded)]).await;
        assert_eq!(reply.status, status, "{forwarded}: {reply:?}");
    }
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

#[tokio::test]
async fn no_address_is_trusted_to_forward_others_by_default() {
    let redis = Server::process(&[]).unwrap();
    let example = Example::start("poem", redis.url());
    for (forwarded, status) in [("203.0.113.7", 200), ("203.0.113.8", 200), ("203.0.113.9", 429)] {
        let reply = get(example.address, CLIENT, "/", &[("x-forwarded-for", forwarded)]).await;
        assert_eq!(reply.status, status, "{forwarded}: {reply:?}");
    }
}
