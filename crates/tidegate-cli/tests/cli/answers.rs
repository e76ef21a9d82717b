//! The effect and the output of each command.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate::{Ban, KeyMode, Limiter, Quota, Rate};

use super::program::Program;
use crate::support::fixture::{HOUR, builder, quotas};

fn limiter(program: &Program) -> Limiter {
    builder(&program.url).namespace(&program.namespace).deny_cache(Duration::ZERO).build().unwrap()
}

const LOGIN: [&str; 6] = ["--gate", "login", "--token-bucket", "2", "--rate", "2/h"];

fn login(verb: &'static str) -> Vec<&'static str> {
    [&[verb, "user:42"], &LOGIN[..]].concat()
}

#[tokio::test]
async fn check_and_peek_return_the_decision_of_the_limiter() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let gate = limiter.gate("login", Quota::token_bucket(2, Rate::per_hour(2)));
    program.run(login("peek")).assert(0, &["allowed, 2 of 2 left\n"]);
    program.run(login("check")).assert(0, &["allowed, 1 of 2 left, resets in "]);
    let reply = program.json(0, &login("check"));
    assert_eq!(reply["remaining"], 0);
    assert_eq!(reply["redis_key"], gate.redis_key("user:42").unwrap());
    program.run(login("check")).assert(1, &["denied, 0 of 2 left, retry after 29m 5"]);
    program.run(login("peek")).assert(1, &["denied, 0 of 2 left, retry after 29m 5"]);
    let reply = program.json(1, &login("check"));
    let decision = gate.peek("user:42").await.unwrap();
    assert_eq!((reply["allowed"].as_bool(), reply["limit"].as_u64()), (Some(false), Some(2)));
    let retry_after = Duration::from_micros(reply["retry_after_us"].as_u64().unwrap());
    assert!(
        retry_after >= decision.retry_after()
            && retry_after < decision.retry_after() + Duration::from_secs(60)
    );
    program.run([&login("check")[..], &["--cost", "3"]].concat()).assert(2, &["a cost of 3 can never pass"]);
}

#[tokio::test]
async fn quota_arguments_use_the_same_redis_key_as_the_quota_in_rust() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let fixed = Quota::fixed_window(5, HOUR);
    let billing = "month+15@Europe/Berlin";
    let quotas: [(&[&str], Quota); 9] = [
        (
            &["--fixed-window", "5", "--calendar", billing],
            Quota::calendar_window(5, billing.parse().unwrap()),
        ),
        (&["--token-bucket", "5", "--rate", "5/h"], Quota::token_bucket(5, Rate::per_hour(5))),
        (&["--leaky-bucket", "5", "--rate", "1/12m"], Quota::leaky_bucket(5, Rate::per_hour(5))),
        (&["--fixed-window", "5", "--window", "1h"], fixed),
        (&["--fixed-window", "5", "--window", "1h", "--by-clock"], fixed.aligned_to_clock()),
        (
            &["--fixed-window", "5", "--window", "1h", "--by-clock", "90s"],
            fixed.aligned_to_clock_at(Duration::from_secs(90)),
        ),
        (&["--sliding-log", "5", "--window", "60m"], Quota::sliding_log(5, HOUR)),
        (
            &["--sliding-log", "5", "--window", "2h", "--count-denied"],
            Quota::sliding_log(5, 2 * HOUR).count_denied(),
        ),
        (&["--sliding-counter", "5", "--window", "1h"], Quota::sliding_counter(5, HOUR)),
    ];
    for (args, quota) in quotas {
        let reply = program.json(0, &[&["check", "x", "--gate", "g", "--cost", "2"], args].concat());
        let gate = limiter.gate("g", quota);
        assert_eq!(reply["redis_key"], gate.redis_key("x").unwrap(), "{args:?}");
        assert_eq!(gate.peek("x").await.unwrap().remaining(), 3, "{args:?}");
    }
    for args in [
        &["--token-bucket", "5"][..],
        &["--rate", "5/s"],
        &["--window", "1h"],
        &["--token-bucket", "0", "--rate", "5/s"],
        &["--fixed-window", "5", "--window", "100y"],
        &["--fixed-window", "5", "--window", "1h", "--by-clock", "1h"],
        &["--token-bucket", "5", "--rate", "5/s", "--by-clock"],
        &["--token-bucket", "5", "--rate", "5/s", "--sliding-log", "5"],
        &[],
    ] {
        program.run([&["check", "x", "--gate", "g"], args].concat()).assert(2, &[]);
    }
    program
        .run(["check", "x", "--gate", "Bad Name", "--token-bucket", "5", "--rate", "5/s"])
        .assert(2, &["gate name"]);
}

#[tokio::test]
async fn inspect_shows_the_usage_at_every_gate_without_a_quota() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let quotas = quotas(10, 24 * HOUR);
    for (name, quota) in quotas {
        limiter.gate(name, quota).penalize("user:42", 4).await.unwrap();
        // A different key with the same end.
        limiter.gate(name, quota).penalize("x:user:42", 1).await.unwrap();
    }
    let log = limiter.gate("log", quotas[4].1);
    log.penalize("user:42", 1).await.unwrap();
    log.block("user:42", Duration::from_secs(600)).await.unwrap();

    let reply = program.json(0, &["inspect", "user:42"]);
    let states = reply["states"].as_array().unwrap();
    assert_eq!(states.len(), quotas.len());
    for (name, quota) in quotas {
        let gate = limiter.gate(name, quota);
        let state = states.iter().find(|state| state["gate"] == name).unwrap();
        assert_eq!(state["redis_key"], gate.redis_key("user:42").unwrap());
        assert_eq!((&state["key"], &state["written"]), (&json!("user:42"), &json!("user:42")));
        let used = state["used"].as_f64().unwrap();
        let expected = if name == "log" { 5.0 } else { 4.0 };
        assert!(used <= expected && used > expected - 0.01, "{name}: {used}");
        let is_level = ["token", "leaky"].contains(&name);
        assert_eq!(state["limit"], if is_level { json!(10) } else { Value::Null }, "{name}");
        assert_eq!(state["blocked_for_us"].is_u64(), name == "log", "{name}");
        let reset_after = Duration::from_micros(state["reset_after_us"].as_u64().unwrap());
        let block = if name == "log" { Duration::from_secs(600) } else { Duration::ZERO };
        let decision = gate.peek("user:42").await.unwrap();
        assert!(reset_after.max(block) >= decision.reset_after(), "{name}: {reset_after:?} {decision:?}");
        assert!(state["expires_in_us"].as_u64().unwrap() + 1_000 >= reset_after.as_micros() as u64, "{name}");
    }
    let ran = program.run(["inspect", "user:42"]);
    ran.assert(0, &["10/d burst 10", "fixed_window/86400s@clock", "9m 5"]);
    assert_eq!(ran.out.lines().count(), 1 + quotas.len());
    program.run(["inspect", "user:42", "--gate", "log"]).assert(0, &["sliding_log/86400s"]);
    let reply = program.json(0, &["inspect", "user:42", "--limit", "2"]);
    assert_eq!((reply["states"].as_array().unwrap().len(), &reply["more"]), (2, &json!(4)));
    program
        .run(["inspect", "login"])
        .assert(1, &["no state of login", "for all keys of a gate, write --gate NAME"]);

    let reply = program.json(0, &["inspect", "--gate", "token"]);
    assert_eq!((&reply["keys"], &reply["blocked"], &reply["more"]), (&json!(2), &json!(0), &json!(0)));
    assert_eq!(reply["states"][0]["key"], "user:42", "the most used is the first");
    let reply = program.json(0, &["inspect"]);
    assert_eq!((&reply["keys"], reply["gates"].as_array().unwrap().len()), (&json!(12), quotas.len()));
    program.run(["inspect"]).assert(0, &["fixed.clock", "sliding_counter/86400s", "blocked"]);
    let reply = program.json(0, &["top", "--once", "--limit", "3"]);
    assert_eq!(reply["states"][0]["gate"], "log");
    assert_eq!((reply["states"].as_array().unwrap().len(), &reply["keys"]), (3, &json!(12)));
}

#[tokio::test]
async fn missing_state_is_reported() {
    let program = Program::shared();
    program.run(["inspect"]).assert(1, &["no state in namespace", "--namespace"]);
    program.run(["inspect", "--gate", "login"]).assert(1, &["no state of gate login"]);
    program.run(["top", "--once"]).assert(1, &["0 of 0 keys"]);
    assert_eq!(program.json(1, &["inspect"])["gates"], json!([]));
}

#[tokio::test]
async fn commands_change_only_the_named_key() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let gates = [
        limiter.gate("login", Quota::token_bucket(2, Rate::per_hour(2))),
        limiter.gate("api", Quota::sliding_log(2, HOUR)),
    ];
    for gate in &gates {
        for key in ["user:42", "user:43", "x:user:42"] {
            gate.penalize(key, 1).await.unwrap();
        }
    }
    let left = async |key: &str| {
        [gates[0].peek(key).await.unwrap().remaining(), gates[1].peek(key).await.unwrap().remaining()]
    };
    // Without a terminal and without --yes, nothing changes.
    for args in [
        &["reset", "user:42", "--gate", "login"][..],
        &["forget", "user:42"],
        &["block", "user:42", "--gate", "login", "--for", "1h"],
        &["unblock", "user:42", "--gate", "login"],
    ] {
        program.run(args).assert(2, &["add --yes"]);
    }
    assert_eq!((left("user:42").await, left("user:43").await), ([1, 1], [1, 1]));

    let reply = program.json(0, &["reset", "user:42", "--gate", "login", "--yes"]);
    assert_eq!(reply, json!({ "removed": 1, "redis_keys": [gates[0].redis_key("user:42").unwrap()] }));
    assert_eq!((left("user:42").await, left("user:43").await), ([2, 1], [1, 1]));
    program
        .run(["reset", "user:42", "--gate", "login", "--yes"])
        .assert(1, &["no state of user:42 at login"]);

    gates[0].penalize("user:42", 1).await.unwrap();
    let reply = program.json(0, &["forget", "user:42", "--yes"]);
    assert_eq!(reply["removed"], 2);
    assert_eq!((left("user:42").await, left("user:43").await), ([2, 2], [1, 1]));
    assert_eq!(left("x:user:42").await, [1, 1]);
    program.run(["forget", "user:42", "--yes"]).assert(1, &["no state of user:42"]);
}

#[tokio::test]
async fn block_needs_no_quota_if_the_gate_has_state() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let block = |key: &str, gate: &str| program.run(["block", key, "--gate", gate, "--for", "10m", "--yes"]);
    for (name, quota) in quotas(3, HOUR) {
        block("user:42", name).assert(2, &["its algorithm is unknown"]);
        let gate = limiter.gate(name, quota);
        gate.penalize("user:42", 1).await.unwrap();
        // `user:43` has no state, so the form of the gate's other keys applies; `user:42` has its own.
        for key in ["user:43", "user:42"] {
            block(key, name).assert(0, &["is blocked at", "for 10m"]);
            let decision = gate.peek(key).await.unwrap();
            assert!(
                !decision.is_allowed() && decision.retry_after() > Duration::from_secs(590),
                "{name}: {decision}"
            );
            program.run(["unblock", key, "--gate", name, "--yes"]).assert(0, &["is no longer blocked at"]);
            let left = gate.peek(key).await.unwrap().remaining();
            assert_eq!(left, if key == "user:42" { 2 } else { 3 }, "{name}: the usage stays");
            program.run(["unblock", key, "--gate", name, "--yes"]).assert(1, &[]);
        }
    }
    limiter.gate("token", Quota::sliding_log(1, HOUR)).penalize("user:1", 1).await.unwrap();
    block("user:44", "token").assert(2, &["is stored as token_bucket and as sliding_log/3600s"]);
    let args = [
        "block",
        "user:44",
        "--gate",
        "new",
        "--for",
        "10m",
        "--yes",
        "--sliding-log",
        "3",
        "--window",
        "1h",
        "--force",
    ];
    program.run(args).assert(0, &[]);
    assert!(!limiter.gate("new", Quota::sliding_log(3, HOUR)).peek("user:44").await.unwrap().is_allowed());
}

#[tokio::test]
async fn keys_are_found_in_every_stored_form() {
    let program = Program::shared();
    let long = "x".repeat(300);
    let hostile = "a b%*?[c]\\{d}\u{e9}:";
    for key in [&*long, hostile, ""] {
        limiter(&program).gate("g", Quota::fixed_window(3, HOUR)).penalize(key, 1).await.unwrap();
        let reply = program.json(0, &["inspect", "--", key]);
        assert_eq!(reply["states"].as_array().unwrap().len(), 1, "{key}");
        assert_eq!(reply["states"][0]["key"], if key == long { Value::Null } else { json!(key) });
        let written = reply["states"][0]["written"].as_str().unwrap();
        let same = program.json(0, &["inspect", "--stored", "--", written]);
        // The remaining times differ, because the calls run at different times.
        assert_eq!(same["states"][0]["redis_key"], reply["states"][0]["redis_key"], "{key}");
        assert_eq!(program.json(0, &["forget", "--yes", "--", key])["removed"], 1, "{key}");
    }
    program.run(["inspect", "a%20b"]).assert(1, &["add --stored"]);

    let secret = [7_u8; 32];
    let file = std::env::temp_dir().join(format!("tidegate-{}-secret", std::process::id()));
    std::fs::write(&file, secret).unwrap();
    let private = builder(&program.url).namespace(&program.namespace).key_mode(KeyMode::Hmac(secret.into()));
    let gate = private.build().unwrap().gate("g", Quota::fixed_window(3, HOUR));
    gate.penalize("ada", 1).await.unwrap();
    // Stored before the secret was set.
    limiter(&program).gate("old", Quota::fixed_window(3, HOUR)).penalize("ada", 1).await.unwrap();
    assert_eq!(program.json(0, &["inspect", "ada"])["states"].as_array().unwrap().len(), 1);
    let secret = ["--hmac-secret-file", file.to_str().unwrap()];
    let reply = program.json(0, &[&["inspect", "ada"], &secret[..]].concat());
    assert_eq!(reply["states"].as_array().unwrap().len(), 2);
    let reply = program.json(
        0,
        &[&["check", "ada", "--gate", "g", "--fixed-window", "3", "--window", "1h"], &secret[..]].concat(),
    );
    assert_eq!(reply["remaining"], 1, "the same key as the service's");
    // Without the secret, the operator can give the key in its stored form.
    let redis_key = gate.redis_key("ada").unwrap();
    let written = redis_key.rsplit(':').next().unwrap();
    let block = ["block", written, "--stored", "--gate", "g", "--for", "1h", "--yes"];
    assert_eq!(program.json(0, &block)["redis_keys"], json!([redis_key]));
    assert!(!gate.peek("ada").await.unwrap().is_allowed());
    program
        .run(["block", "%hmac=00", "--stored", "--gate", "g", "--for", "1h", "--yes"])
        .assert(2, &["no state of"]);
    assert_eq!(program.json(0, &[&["forget", "ada", "--yes"], &secret[..]].concat())["removed"], 2);
    std::fs::remove_file(&file).unwrap();
}

#[tokio::test]
async fn inspect_shows_counted_denials_and_the_ban_that_unblock_ends() {
    let program = Program::shared();
    let server = tidegate_testkit::shared();
    let ban = Ban::after(3, HOUR).lasting(2 * HOUR);
    let gate = limiter(&program).gate("login", Quota::token_bucket(1, Rate::per_hour(1))).ban(ban);
    let begun = Instant::now();
    for _ in 0..3 {
        let _ = gate.check("user:42").await.unwrap();
    }
    let state = gate.redis_key("user:42").unwrap();
    let count = state.replace(":token_bucket:", ":denials/token_bucket:");
    program.run(["inspect", "user:42"]).assert(0, &["denials counted for a ban", "count ends in"]);
    let found = program.json(0, &["inspect", "user:42"]);
    let denials = &found["denials"][0];
    let ends_in = Duration::from_micros(denials["ends_in_us"].as_u64().unwrap());
    assert!(ends_in <= HOUR + Duration::from_millis(1), "rounded up to a millisecond: {ends_in:?}");
    assert!(ends_in + begun.elapsed() >= HOUR, "{ends_in:?}");
    assert_eq!((&denials["redis_key"], &denials["count"]), (&json!(state), &json!(2)));
    assert_eq!(found["notes"], json!([]), "a count is no foreign key");

    let _ = gate.check("user:42").await.unwrap();
    let found = program.json(0, &["inspect", "user:42"]);
    assert_eq!(found["denials"], json!([]));
    assert!(found["states"][0]["blocked_for_us"].as_u64().unwrap() > 3_600_000_000);
    program.run(["unblock", "user:42", "--gate", "login", "--yes"]).assert(0, &["no longer blocked"]);
    let unblocked = gate.peek("user:42").await.unwrap();
    assert!(unblocked.retry_after() <= HOUR, "{unblocked:?}");

    // A count can outlast its state.
    server.cli(&["DEL", &state]).unwrap();
    server.cli(&["SET", &count, "7", "EX", "60"]).unwrap();
    program.run(["inspect", "user:42"]).assert(0, &["no state of user:42", "7"]);
    program.run(["forget", "user:42", "--yes"]).assert(0, &["removed 1 state of user:42"]);
    assert_eq!(server.cli(&["EXISTS", &count]).unwrap(), "(integer) 0");
    server.cli(&["SET", &count, "x"]).unwrap();
    program.run(["reset", "user:42", "--gate", "login", "--yes"]).assert(0, &["is reset"]);
    assert_eq!(server.cli(&["EXISTS", &count]).unwrap(), "(integer) 0");
}

#[tokio::test]
async fn inspect_shows_the_state_beside_a_corrupt_count() {
    let program = Program::shared();
    let server = tidegate_testkit::shared();
    let gate = limiter(&program).gate("login", Quota::fixed_window(9, HOUR));
    gate.penalize("user:42", 1).await.unwrap();
    let state = gate.redis_key("user:42").unwrap();
    let count = state.replace(":fixed_window/3600s:", ":denials/fixed_window/3600s:");
    server.cli(&["SET", &count, "x"]).unwrap();
    program
        .run(["inspect", "user:42"])
        .assert(4, &["login  fixed_window/3600s  1  ", "corrupt state in field `denials`"]);
    let found = program.json(4, &["inspect", "user:42"]);
    assert_eq!(found["states"][0]["redis_key"], json!(state));
    assert!(found["denials"][0]["error"].as_str().unwrap().contains("`denials`"));
    assert_eq!(found["denials"][0]["count"], Value::Null);
}

#[tokio::test]
async fn unblock_removes_the_counted_denials_of_a_key_that_is_not_blocked() {
    let program = Program::shared();
    let server = tidegate_testkit::shared();
    let ban = Ban::after(3, HOUR);
    let gate = limiter(&program).gate("login", Quota::token_bucket(1, Rate::per_hour(1))).ban(ban);
    for _ in 0..3 {
        let _ = gate.check("user:42").await.unwrap();
    }
    let state = gate.redis_key("user:42").unwrap();
    let count = state.replace(":token_bucket:", ":denials/token_bucket:");
    assert_eq!(server.cli(&["EXISTS", &state, &count]).unwrap(), "(integer) 2");
    let unblock = ["unblock", "user:42", "--gate", "login", "--yes"];
    program.run(unblock).assert(0, &["not blocked", "counted denials are removed"]);
    assert_eq!(server.cli(&["EXISTS", &count]).unwrap(), "(integer) 0");
    assert_eq!(server.cli(&["EXISTS", &state]).unwrap(), "(integer) 1", "the usage stays");
    program.run(unblock).assert(1, &["not blocked"]);

    // A count can outlast its state.
    server.cli(&["DEL", &state]).unwrap();
    server.cli(&["SET", &count, "2", "EX", "60"]).unwrap();
    let removed = program.json(0, &unblock);
    assert_eq!((&removed["unblocked"], &removed["counts_removed"]), (&json!(0), &json!(1)));
    assert_eq!(server.cli(&["EXISTS", &state, &count]).unwrap(), "(integer) 0");
    program.run(unblock).assert(1, &["no state of user:42"]);
}

#[tokio::test]
async fn inspect_shows_the_holds_of_a_key_and_reset_removes_them() {
    let program = Program::shared();
    let server = tidegate_testkit::shared();
    program.run(login("check")).assert(0, &["allowed"]);
    let state = limiter(&program).gate("login", Quota::token_bucket(2, Rate::per_hour(2)));
    let state = state.redis_key("user:42").unwrap();
    let holds = state.replace(":token_bucket:", ":holds/token_bucket:");
    let ends = (std::time::UNIX_EPOCH.elapsed().unwrap() + HOUR).as_micros().to_string();
    server.cli(&["ZADD", &holds, &ends, "a:b:1:60000000:back", &ends, "c:2:60000000:keep"]).unwrap();
    program
        .run(["inspect", "user:42"])
        .assert(0, &["1 of 2", "then", "a:b", "is refunded", "stays charged", "59m 5"]);
    let found = program.json(0, &["inspect", "user:42"]);
    let of_state = &found["holds"][0];
    assert_eq!((&of_state["redis_key"], &of_state["count"]), (&json!(state), &json!(2)));
    assert_eq!(of_state["first"][0]["id"], "a:b");
    assert_eq!(
        (&of_state["first"][1]["units"], &of_state["first"][1]["at_end"]),
        (&json!(2), &json!("keep"))
    );
    assert_eq!(found["notes"], json!([]), "holds are not foreign keys");
    assert_eq!(program.json(0, &["inspect", "user:42", "--limit", "1"])["holds"][0]["count"], 2);
    program.json(0, &["reset", "user:42", "--gate", "login", "--yes"]);
    assert_eq!(server.cli(&["EXISTS", &state, &holds]).unwrap(), "(integer) 0");

    // Holds can outlast their state.
    server.cli(&["ZADD", &holds, &ends, "a:1:60000000:keep"]).unwrap();
    program.run(["inspect", "user:42"]).assert(0, &["no state of user:42", "stays charged"]);
    program.run(["forget", "user:42", "--yes"]).assert(0, &["removed 1 state of user:42"]);
    assert_eq!(server.cli(&["EXISTS", &holds]).unwrap(), "(integer) 0");

    server.cli(&["ZADD", &holds, "1", "x"]).unwrap();
    program.run(["inspect", "user:42"]).assert(4, &["corrupt state in field `holds`"]);
    server.cli(&["DEL", &holds]).unwrap();
}
