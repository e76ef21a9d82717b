//! The permissions in docs/operate/redis-user.md are necessary and sufficient for the Redis user of tidegate. The behavior
//! suite runs as that user.

use std::time::Duration;

use tidegate::algorithm::Storage;
use tidegate::{Ban, Error, Gate, Limiter, OnFailure, Quota, Rate, Switch};
use tidegate_testkit::Server;

use crate::support::acl::{self, PASSWORD, USER};
use crate::support::fixture::{HOUR, builder_as_is};

fn limiter(server: &Server, namespace: &str) -> Limiter {
    let builder = builder_as_is(server.url()).credentials(USER, PASSWORD).namespace(namespace);
    builder.on_failure(OnFailure::Error).deny_cache(Duration::ZERO).build().unwrap()
}

fn gates(limiter: &Limiter) -> Vec<Gate> {
    [
        ("token", Quota::token_bucket(3, Rate::per_hour(3))),
        ("leaky", Quota::leaky_bucket(3, Rate::per_hour(3))),
        ("fixed", Quota::fixed_window(3, HOUR)),
        ("log", Quota::sliding_log(3, HOUR)),
        ("counting", Quota::sliding_log(3, HOUR).count_denied()),
        ("counter", Quota::sliding_counter(3, HOUR)),
    ]
    .map(|(name, quota)| limiter.gate(name, quota))
    .into()
}

/// Calls every operation of a limiter. Returns the errors.
async fn call_everything(server: &Server, limiter: &Limiter) -> Vec<Error> {
    // Without the cached scripts, the client must send them, which needs EVAL.
    server.cli(&["SCRIPT", "FLUSH"]).unwrap();
    server.cli(&["FLUSHALL"]).unwrap();
    let gates = gates(limiter);
    let mut failed = Vec::new();
    for gate in &gates {
        for _ in 0..2 {
            failed.extend(gate.check("x").await.err());
        }
        failed.extend(gate.refund("x", 1).await.err());
        failed.extend(gate.penalize("x", 5).await.err());
        failed.extend(gate.check("x").await.err());
        if gate.name() == Some("token") {
            // A denial extends the expiry that another version of the limit has set.
            let slower = limiter.gate("token", Quota::token_bucket(1, Rate::per_day(1)));
            failed.extend(slower.check("x").await.err());
        }
        failed.extend(gate.peek("x").await.err());
        // The next write removes an expired block.
        failed.extend(gate.block("x", Duration::from_millis(1)).await.err());
        tokio::time::sleep(Duration::from_millis(3)).await;
        failed.extend(gate.refund("x", 6).await.err());
        failed.extend(gate.check("x").await.err());
        failed.extend(gate.unblock("x").await.err());
        failed.extend(gate.reset("x").await.err());
        if gate.quota().unwrap().kind().definition().storage == Storage::Log {
            // One entry has left the window. The other is in the future, as after the clock was set back.
            for at in ["1000000", "4000000000000000"] {
                let key = gate.redis_key(at).unwrap();
                server.cli(&["ZADD", &key, at, "0000000000000001:1"]).unwrap();
                failed.extend(gate.check(at).await.err());
            }
        }
    }
    // The summary of the holders is out of date, so the peek scans them.
    let permits = limiter.gate("permits", Quota::in_flight(1));
    let key = permits.redis_key("x").unwrap();
    server.cli(&["HSET", &key, "held", "1/1 at 1 sure until 1", "web-1/1000", "1 #1"]).unwrap();
    failed.extend(permits.peek("x").await.err());
    // Denials are counted, and then begin a ban.
    let ban = Ban::after(3, HOUR);
    let banned = limiter.gate("banned", Quota::fixed_window(1, HOUR)).ban(ban);
    for _ in 0..4 {
        failed.extend(banned.check("x").await.err());
    }
    failed.extend(limiter.check_all(gates.iter().map(|gate| gate.key("x"))).await.err());
    failed.extend(limiter.ready().await.err());
    let control = limiter.control();
    failed.extend(control.switch("token", Switch::Shadow, None).await.err());
    failed.extend(control.end_switch("token").await.err());
    failed.extend(control.overrides().await.err());
    failed
}

/// Returns the commands that the server rejected since the last call, from the ACL LOG of the server.
fn rejected_commands(server: &Server) -> Vec<String> {
    let log = server.cli(&["ACL", "LOG"]).unwrap();
    server.cli(&["ACL", "LOG", "RESET"]).unwrap();
    let mut lines = log.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if line.ends_with("\"object\"") {
            let object = lines.next().and_then(|line| line.split('"').nth(1));
            found.push(object.unwrap().to_owned());
        }
    }
    found
}

#[test]
fn readme_lists_the_permissions_that_the_tests_use() {
    let readme = include_str!("../docs/operate/redis-user.md");
    let given: Vec<&str> = readme.lines().filter(|line| line.starts_with("ACL SETUSER ")).collect();
    assert_eq!(given, [acl::line()]);
}

#[tokio::test]
async fn user_with_the_readme_permissions_can_call_everything() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    let failed = call_everything(&server, &limiter(&server, "tidegate")).await;
    assert!(failed.is_empty(), "{failed:?}");
    let rejected = rejected_commands(&server);
    assert!(rejected.is_empty(), "{rejected:?}");
}

/// Returns whether an error reports a missing permission, names it, and states the remedy.
fn names_missing_permission(error: &Error, server: &Server, right: &str) -> bool {
    let text = error.to_string();
    // Redis 7.0 does not name a permission that a script lacks; its ACL LOG does.
    let is_unnamed = server.version().starts_with("7.0.") && text.contains("can't run this command");
    let is_named = text.contains(&format!("no permissions to run the '{right}' command"))
        && text.contains(&format!("lacks the permission `+{right}`"));
    text.contains("NOPERM")
        && text.contains("ACL SETUSER")
        && (is_named || is_unnamed && text.contains("see `ACL LOG`"))
}

#[tokio::test]
async fn each_permission_is_needed_and_the_error_names_a_missing_one() {
    let server = Server::process(&[]).unwrap();
    for right in acl::rights() {
        acl::create_user(&server);
        server.cli(&["ACL", "SETUSER", USER, &format!("-{right}")]).unwrap();
        rejected_commands(&server);
        let failed = call_everything(&server, &limiter(&server, "tidegate")).await;
        assert!(rejected_commands(&server).contains(&right), "{right} is not needed");
        // A connection remains usable even if PING is rejected.
        assert_eq!(failed.is_empty(), right == "ping", "{right}: {failed:?}");
        for error in failed {
            assert!(
                error.is_unavailable() && names_missing_permission(&error, &server, &right),
                "{right}: {error}"
            );
        }
    }
}

#[tokio::test]
async fn health_warns_about_each_missing_permission() {
    let server = Server::process(&[]).unwrap();
    for right in acl::CALLED.map(str::to_lowercase) {
        acl::create_user(&server);
        server.cli(&["ACL", "SETUSER", USER, "+info", &format!("-{right}")]).unwrap();
        let health = limiter(&server, "tidegate").health().await;
        assert_eq!(health.warnings().len(), 1, "{right}: {health}");
        assert!(health.warnings()[0].contains(&format!("lacks +{right} for")), "{right}: {health}");
    }
    server.cli(&["ACL", "SETUSER", USER, "-evalsha"]).unwrap();
    let health = limiter(&server, "tidegate").health().await;
    assert!(health.server().unwrap_err().to_string().contains("`+evalsha`"), "{health}");

    acl::create_user(&server);
    server.cli(&["ACL", "SETUSER", USER, "+info"]).unwrap();
    let health = limiter(&server, "tidegate").health().await;
    assert!(health.is_good(), "{health}");
    let rights = include_str!("../lua/observe/rights.lua");
    let listed = rights.lines().filter_map(|line| line.strip_prefix("need('")?.split('\'').next());
    assert!(listed.eq(acl::CALLED));
}

#[tokio::test]
async fn permission_missing_inside_a_script_never_overadmits() {
    let server = Server::process(&[]).unwrap();
    let base = builder_as_is(server.url()).namespace("tidegate");
    let base = gates(&base.on_failure(OnFailure::Error).deny_cache(Duration::ZERO).build().unwrap());
    for right in acl::CALLED.map(str::to_lowercase) {
        acl::create_user(&server);
        server.cli(&["ACL", "SETUSER", USER, &format!("-{right}")]).unwrap();
        for (gate, base) in gates(&limiter(&server, "tidegate")).iter().zip(&base) {
            base.reset("x").await.unwrap();
            assert!(base.check("x").await.unwrap().is_allowed());
            let is_charged = gate.check("x").await.is_ok();
            let left = base.peek("x").await.unwrap().remaining();
            // A check that failed may still have been charged. The worst case denies other callers.
            assert!(left == 1 || !is_charged && left == 2, "{right}: {gate:?} leaves {left}");
            let is_given_back = gate.refund("x", 1).await.is_ok();
            let now = base.peek("x").await.unwrap().remaining();
            assert!(now == left + 1 || !is_given_back && now == left, "{right}: {gate:?} leaves {now}");
        }
    }
}

#[tokio::test]
async fn keys_of_another_namespace_are_rejected() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    let gate = limiter(&server, "other").gate("gate", Quota::fixed_window(1, HOUR));
    let error = gate.check("x").await.unwrap_err();
    let text = error.to_string().to_lowercase();
    assert!(error.is_unavailable() && text.contains("noperm") && text.contains("key"), "{error}");
    assert!(error.to_string().contains("`~NAMESPACE:*`"), "{error}");
    assert!(rejected_commands(&server).contains(&gate.redis_key("x").unwrap()));
}

#[tokio::test]
async fn rejected_credentials_are_an_error_that_states_the_remedy() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    let failed = |user: &str, password: &str| {
        let limiter = builder_as_is(server.url()).credentials(user, password).build().unwrap();
        async move { limiter.ready().await.unwrap_err().to_string() }
    };
    for error in [failed(USER, "wrong").await, failed("nobody", PASSWORD).await] {
        assert!(error.contains("WRONGPASS") && error.contains("correct the credentials"), "{error}");
    }
    server.cli(&["ACL", "SETUSER", "default", "off"]).unwrap();
    let limiter = builder_as_is(server.url()).build().unwrap();
    let error = limiter.ready().await.unwrap_err().to_string();
    assert!(error.contains("NOAUTH") && error.contains("correct the credentials"), "{error}");
}

#[tokio::test]
async fn out_of_memory_is_an_error_that_states_the_remedy() {
    let server = Server::process(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]).unwrap();
    let limiter = builder_as_is(server.url()).on_failure(OnFailure::Error).build().unwrap();
    for gate in gates(&limiter) {
        let error = gate.check("x").await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(
            error.to_string().contains("OOM") && error.to_string().contains("raise `maxmemory`"),
            "{error}"
        );
    }
}
