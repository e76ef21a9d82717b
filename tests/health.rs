//! The health report of a limiter.

use std::time::Duration;

use tidegate::{Limiter, Quota};
use tidegate_testkit::Server;

use crate::support::fixture::{HOUR, Paused, builder_as_is, closed_port, soon};

#[tokio::test]
async fn health_names_the_server_and_warns_of_an_eviction_policy() {
    let server = Server::process(&[]).unwrap();
    let limiter = builder_as_is(server.url()).instances(3).build().unwrap();
    let health = limiter.health().await;
    assert!(health.is_good(), "{health}");
    assert!(health.server().unwrap().ends_with(server.version()), "{health}");
    assert_eq!((health.instances(), health.breaker_open_for()), (3, None));
    assert!(health.to_string().ends_with("answers, circuit breaker closed, 3 instances"), "{health}");
    for policy in ["allkeys-lru", "volatile-ttl"] {
        server.cli(&["CONFIG", "SET", "maxmemory-policy", policy]).unwrap();
        let health = limiter.health().await;
        assert!(!health.is_good() && health.warnings()[0].contains(policy), "{health}");
        assert!(health.to_string().contains("set it to noeviction"), "{health}");
    }
}

#[tokio::test]
async fn health_reports_for_how_long_the_breaker_has_been_open() {
    let server = Server::process(&[]).unwrap();
    let limiter = builder_as_is(server.url()).deadline(Duration::from_millis(20)).build().unwrap();
    let gate = limiter.gate("gate", Quota::fixed_window(5, HOUR));
    let paused = Paused::new(&server);
    for _ in 0..5 {
        let _ = gate.check("key").await.unwrap();
    }
    let health = limiter.health().await;
    assert!(health.breaker_open_for().is_some() && !health.is_good(), "{health}");
    drop(paused);
    soon("the limiter is healthy again", async || limiter.health().await.is_good()).await;
}

#[tokio::test]
async fn health_reports_why_the_server_is_unavailable() {
    let url = format!("redis://127.0.0.1:{}", closed_port());
    let health = builder_as_is(&url).build().unwrap().health().await;
    assert!(health.server().unwrap_err().is_unavailable());
    assert!(health.to_string().contains("Connection refused"), "{health}");
    let limiter = Limiter::in_memory();
    assert!(limiter.health().await.is_good());
    limiter.shutdown().await;
    assert!(limiter.health().await.server().unwrap_err().is_shut_down());
}
