//! A call of `Control` succeeds if its write succeeds, even if the result cannot be read back.

use std::time::Duration;

use tidegate::{Limiter, Override, Quota, Switch};
use tidegate_testkit::Server;

use crate::support::acl::{self, PASSWORD, USER};
use crate::support::fixture::{HOUR, builder, soon};

const QUOTA: Quota = Quota::fixed_window(7, HOUR);

/// Removes the permission to read overrides (`+hget`) and keeps those to write them (`+hgetall`, `+hset`,
/// `+hdel`).
fn forbid_reading(server: &Server) {
    assert_eq!(server.cli(&["ACL", "SETUSER", USER, "-hget"]).unwrap(), "OK");
}

fn permit_reading(server: &Server) {
    assert_eq!(server.cli(&["ACL", "SETUSER", USER, "+hget"]).unwrap(), "OK");
}

/// Returns a limiter of that user and one with all permissions, in the same namespace.
fn restricted_and_full(server: &Server) -> [Limiter; 2] {
    acl::create_user(server);
    let restricted = builder(server.url()).credentials(USER, PASSWORD).namespace("tidegate");
    let full = builder(server.url()).namespace("tidegate");
    [restricted.build().unwrap(), full.build().unwrap()]
}

#[tokio::test]
async fn an_override_that_redis_stored_is_reported_as_set_although_it_cannot_be_read_back() {
    let server = Server::process(&[]).unwrap();
    let [restricted, full] = restricted_and_full(&server);
    forbid_reading(&server);
    let control = restricted.control();
    assert!(control.overrides().await.unwrap_err().is_unavailable(), "the test forbids reading");

    control.set_override("api", "user:42", QUOTA, HOUR).await.unwrap();
    control.switch("api", Switch::Closed, None).await.unwrap();
    let stored = full.control().overrides().await.unwrap();
    let is_switch = |found: &Override| matches!(found, Override::Switch { switch: Switch::Closed, .. });
    let is_override = |found: &Override| matches!(found, Override::Quota { quota, .. } if *quota == QUOTA);
    assert_eq!(stored.len(), 2);
    assert!(stored.iter().any(is_switch) && stored.iter().any(is_override), "{stored:?}");

    control.end_switch("api").await.unwrap();
    control.end_override("api", "user:42").await.unwrap();
    assert_eq!(full.control().overrides().await.unwrap(), []);
}

#[tokio::test]
async fn an_override_that_could_not_be_read_back_is_followed_once_it_can_be_read() {
    let server = Server::process(&[]).unwrap();
    let [restricted, _full] = restricted_and_full(&server);
    let gate = restricted.gate("api", Quota::token_bucket(1, tidegate::Rate::per_hour(1)));
    assert_eq!(gate.check("user:42").await.unwrap().limit(), 1);
    forbid_reading(&server);
    restricted.control().switch("api", Switch::Open, None).await.unwrap();
    permit_reading(&server);
    soon("the switch is followed", async || {
        gate.check("user:42").await.is_ok_and(|decision| decision.source() == tidegate::Source::Switch)
    })
    .await;
}

#[tokio::test]
async fn an_override_that_redis_rejected_is_an_error() {
    let server = Server::process(&[]).unwrap();
    let [restricted, full] = restricted_and_full(&server);
    assert_eq!(server.cli(&["ACL", "SETUSER", USER, "-hset"]).unwrap(), "OK");
    let refused = restricted.control().set_override("api", "user:42", QUOTA, Duration::from_secs(60)).await;
    assert!(refused.unwrap_err().to_string().contains("NOPERM"));
    assert_eq!(full.control().overrides().await.unwrap(), []);
}
