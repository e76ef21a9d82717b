//! A Redis that cannot count denials, and denials whose replies are lost.

use tidegate::{Ban, Quota};
use tidegate_testkit::{Fault, Proxy, Server};

use super::processes::{BAN, count_key, gate};
use crate::support::acl::{self, PASSWORD, USER};
use crate::support::fixture::{HOUR, PATIENCE, builder, namespace, soon};

/// Returns the count of denials as `redis-cli` displays it.
fn count(server: &Server, key: &str) -> String {
    server.cli(&["GET", key]).unwrap()
}

#[tokio::test]
async fn denied_check_stays_denied_if_redis_has_no_memory_to_count() {
    let server = Server::process(&["--maxmemory-policy", "noeviction"]).unwrap();
    let (gate, bans) = gate(builder(server.url()), Ban::after(2, BAN.within()).lasting(BAN.lasts()));
    for key in ["x", "y"] {
        assert!(gate.check(key).await.unwrap().is_allowed());
    }
    assert!(!gate.check("x").await.unwrap().is_allowed());
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    for key in ["x", "y"] {
        for _ in 0..5 {
            let denied = gate.check(key).await.unwrap();
            assert!(!denied.is_allowed() && denied.retry_after() <= HOUR, "{denied:?}");
        }
    }
    assert_eq!(bans.count(), 0);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    // The count before is still there.
    assert!(gate.check("x").await.unwrap().retry_after() > HOUR);
    assert_eq!(bans.count(), 1);
}

#[tokio::test]
async fn denial_that_redis_refuses_to_count_is_an_error() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    let builder = builder(server.url()).namespace("tidegate").credentials(USER, PASSWORD);
    let (gate, _) = gate(builder, BAN);
    assert!(gate.check("x").await.unwrap().is_allowed());
    assert!(!gate.check("x").await.unwrap().is_allowed());
    let without_right = ["ACL", "SETUSER", USER, "-incrby"];
    for (refuse, permit, refusal) in [
        (&["REPLICAOF", "127.0.0.1", "1"][..], &["REPLICAOF", "NO", "ONE"][..], "READONLY"),
        (&without_right, &["ACL", "SETUSER", USER, "+incrby"], "NOPERM"),
    ] {
        assert_eq!(server.cli(refuse).unwrap(), "OK");
        let error = gate.check("x").await.unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains(refusal), "{error}");
        assert_eq!(server.cli(permit).unwrap(), "OK");
        soon("a check is denied again", async || gate.check("x").await.is_ok()).await;
    }
    assert_eq!(count(&server, &count_key(&gate, "x")), "\"3\"");
}

#[tokio::test]
async fn new_count_replaces_a_value_that_no_ban_wrote() {
    let server = tidegate_testkit::shared();
    let (gate, _) = gate(builder(server.url()), BAN);
    assert!(gate.check("x").await.unwrap().is_allowed());
    let key = count_key(&gate, "x");
    for text in ["", "x", "0", "-1", "1.5", "01", "99999999999999999999"] {
        server.cli(&["SET", &key, text]).unwrap();
        assert!(!gate.check("x").await.unwrap().is_allowed());
        assert_eq!(count(&server, &key), "\"1\"", "{text}");
        assert_ne!(server.cli(&["PTTL", &key]).unwrap(), "(integer) -1", "{text}");
    }
    server.cli(&["DEL", &key]).unwrap();
    server.cli(&["LPUSH", &key, "x"]).unwrap();
    assert!(!gate.check("x").await.unwrap().is_allowed());
    assert_eq!(count(&server, &key), "\"1\"");
    // A count without an expiry gets one.
    server.cli(&["SET", &key, "7"]).unwrap();
    assert!(!gate.check("x").await.unwrap().is_allowed());
    assert_eq!(count(&server, &key), "\"8\"");
    assert_ne!(server.cli(&["PTTL", &key]).unwrap(), "(integer) -1");
}

#[tokio::test]
async fn unreadable_count_fails_neither_merged_checks_nor_neighbors() {
    let server = tidegate_testkit::shared();
    let limiter = builder(server.url()).build().unwrap();
    let gate = limiter.gate("login", Quota::fixed_window(3, HOUR)).ban(BAN);
    let other = limiter.gate("other", Quota::fixed_window(3, HOUR)).ban(BAN);
    let key = gate.redis_key("x").unwrap().replace(":login:", ":login:denials/");
    server.cli(&["SET", &key, "x"]).unwrap();
    let checks = gate.check_many(["x"; 5]).await;
    assert_eq!(checks.iter().filter(|check| check.as_ref().unwrap().is_allowed()).count(), 3);
    assert_eq!(count(&server, &key), "\"2\"");
    server.cli(&["SET", &key, "x"]).unwrap();
    let group = limiter.check_all([gate.key("x"), other.key("x")]).await.unwrap();
    assert!(!group.is_allowed());
    assert_eq!((group.each_alone()[1].remaining(), count(&server, &key)), (3, "\"1\"".to_owned()));
}

/// The first run admits the last unit, or counts the denials. Its reply is lost.
#[tokio::test]
async fn check_that_is_sent_again_after_a_lost_reply_counts_no_denial() {
    let server = tidegate_testkit::shared();
    let proxy = Proxy::start(server.url()).unwrap();
    let namespace = namespace();
    let (service, _) = gate(builder(&proxy.url()).namespace(&namespace), BAN);
    let (observer, _) = gate(builder(server.url()).namespace(&namespace), BAN);
    // Loads the script: otherwise the first call is answered NOSCRIPT, and that reply is delayed.
    assert!(observer.check("other").await.unwrap().is_allowed());
    let key = count_key(&observer, "x");
    for (checks, first_run, after) in [(1, "(nil)", "(nil)"), (5, "\"5\"", "\"5\"")] {
        assert!(service.peek("other").await.is_ok());
        proxy.set(Fault::Slow(2 * PATIENCE));
        let checked = service.clone();
        let checks = tokio::spawn(async move { checked.check_many(vec!["x"; checks]).await });
        soon("the first call has run", async || {
            let is_charged = observer.peek("x").await.unwrap().remaining() == 0;
            is_charged && count(&server, &key) == first_run
        })
        .await;
        proxy.set(Fault::None);
        proxy.cut();
        for check in checks.await.unwrap() {
            let denied = check.unwrap();
            assert!(!denied.is_allowed() && denied.retry_after() <= HOUR, "{denied:?}");
        }
        assert_eq!(count(&server, &key), after);
    }
}
