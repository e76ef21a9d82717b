//! In-flight limits: their quotas, their holders, and what the program refuses.

use std::time::Duration;

use serde_json::json;
use tidegate::{Gate, Limiter, Permit, Quota};

use super::program::Program;
use super::rules::File;
use crate::support::acquired::AcquiredParts;
use crate::support::fixture::{builder, soon};

const TTL: Duration = Duration::from_secs(60);

fn limiter(program: &Program) -> Limiter {
    builder(&program.url).namespace(&program.namespace).permit_ttl(TTL).build().unwrap()
}

async fn acquire(gate: &Gate, units: u64) -> Permit {
    let acquired = gate.key("user:42").cost(units).acquire().await.unwrap();
    acquired.permit().unwrap()
}

const UPLOADS: [&str; 4] = ["--gate", "uploads", "--in-flight", "10"];

fn uploads(verb: &'static str) -> Vec<&'static str> {
    [&[verb, "user:42"], &UPLOADS[..]].concat()
}

#[tokio::test]
async fn peek_shows_the_units_left_and_check_is_refused() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let gate = limiter.gate("uploads", Quota::in_flight(10));
    let _held = acquire(&gate, 4).await;
    program.run(uploads("peek")).assert(0, &["allowed, 6 of 10 left"]);
    let reply = program.json(0, &uploads("peek"));
    assert_eq!(reply["redis_key"], gate.redis_key("user:42").unwrap());
    assert_eq!(reply["quota"], "10 in flight");
    program.run(uploads("check")).assert(2, &["use `peek`"]);
    assert_eq!(gate.peek("user:42").await.unwrap().remaining(), 6);
    // The quota is a part of the state.
    program.run(["peek", "user:42", "--gate", "uploads"]).assert(0, &["6 of 10 left", "10 in flight"]);
    for args in [
        &["--in-flight", "3", "--fair", "1s"][..],
        &["--in-flight", "0"],
        &["--in-flight", "3", "--rate", "1/s"],
    ] {
        program.run([&["peek", "x", "--gate", "uploads"], args].concat()).assert(2, &[]);
    }
}

#[tokio::test]
async fn inspect_shows_the_holders_and_their_leases() {
    let program = Program::shared();
    let (one, other) = (limiter(&program), limiter(&program));
    let quota = Quota::in_flight(10);
    let _held = [
        acquire(&one.gate("uploads", quota), 4).await,
        acquire(&one.gate("uploads", quota), 1).await,
        acquire(&other.gate("uploads", quota), 2).await,
    ];
    program.run(["inspect", "user:42"]).assert(0, &["7 of 10", "holder at uploads", "lease ends in"]);
    program.run(["inspect"]).assert(0, &["uploads", "in_flight"]);
    program.run(["top", "--once"]).assert(0, &["user:42", "7 of 10"]);
    let states = program.json(0, &["inspect", "user:42", "--gate", "uploads"])["states"].clone();
    let state = &states[0];
    assert_eq!((&state["used"], &state["limit"]), (&json!(7.0), &json!(10)));
    let holders = state["holders"].as_array().unwrap();
    let units: Vec<u64> = holders.iter().map(|holder| holder["units"].as_u64().unwrap()).collect();
    assert_eq!(units, [5, 2], "those with most units first");
    for holder in holders {
        let left = Duration::from_micros(holder["lease_ends_in_us"].as_u64().unwrap());
        assert!(left <= TTL && left > TTL / 2, "{left:?}");
        assert!(holder["name"].as_str().unwrap().ends_with("/60000"), "{holder}");
    }
    assert_eq!(state["more_holders"], json!(0));
}

#[tokio::test]
async fn override_changes_the_limit_in_place() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let gate = limiter.gate("uploads", Quota::in_flight(1));
    let _held = acquire(&gate, 1).await;
    assert!(gate.try_acquire("user:42").await.unwrap().permit().is_none());
    let args = ["override", "user:42", "--gate", "uploads", "--for", "1h", "--yes"];
    program.run([&args[..], &["--in-flight", "2"]].concat()).assert(0, &["2 in flight"]);
    program.run(["overrides"]).assert(0, &["2 in flight"]);
    soon("the override applies", async || gate.try_acquire("user:42").await.unwrap().permit().is_some())
        .await;
    program.run(["override", "user:42", "--gate", "uploads", "--end", "--yes"]).assert(0, &[]);
}

#[tokio::test]
async fn override_with_another_kind_of_limit_is_refused() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let _held = acquire(&limiter.gate("uploads", Quota::in_flight(1)), 1).await;
    let args = ["override", "user:42", "--gate", "uploads", "--for", "1h", "--yes"];
    let rate = ["--token-bucket", "2", "--rate", "2/h"];
    let refused = program.run([&args[..], &rate].concat());
    refused.assert(1, &["uploads", "in flight", "nothing changed", "--force"]);
    program.run([&args[..], &rate, &["--force"]].concat()).assert(0, &[]);
}

#[tokio::test]
async fn blocked_and_reset_keys_of_an_in_flight_limit() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let gate = limiter.gate("uploads", Quota::in_flight(3));
    let held = acquire(&gate, 1).await;
    program.run(["block", "user:42", "--gate", "uploads", "--for", "1h", "--yes"]).assert(0, &["is blocked"]);
    assert!(gate.try_acquire("user:42").await.unwrap().permit().is_none());
    program.run(uploads("peek")).assert(1, &["denied", "blocked for 59m"]);
    program.run(["unblock", "user:42", "--gate", "uploads", "--yes"]).assert(0, &["no longer blocked"]);
    assert_eq!(gate.peek("user:42").await.unwrap().remaining(), 2);
    program.run(["reset", "user:42", "--gate", "uploads", "--yes"]).assert(0, &["is reset"]);
    assert_eq!(gate.peek("user:42").await.unwrap().remaining(), 3);
    // The next report of the process counts its permit again.
    let another = acquire(&gate, 1).await;
    assert_eq!(gate.peek("user:42").await.unwrap().remaining(), 1);
    held.release().await.unwrap();
    another.release().await.unwrap();
    program.run(["inspect", "user:42"]).assert(1, &["no state"]);
}

#[tokio::test]
async fn corrupt_holder_is_reported() {
    let program = Program::shared();
    let limiter = limiter(&program);
    let gate = limiter.gate("uploads", Quota::in_flight(3));
    let _held = acquire(&gate, 1).await;
    let key = gate.redis_key("user:42").unwrap();
    let server = tidegate_testkit::shared();
    server.cli(&["HSET", &key, "other/60000", "\x1b[31m"]).unwrap();
    let ran = program.run(["inspect", "user:42"]);
    ran.assert(0, &["holders of uploads not readable"]);
    assert!(!ran.out.contains('\x1b'), "{ran:?}");
}

#[test]
fn request_with_a_rule_in_flight_can_be_peeked() {
    let program = Program::shared();
    let text = "{domain: d, descriptors: [{key: u, rate_limit: {in_flight: 3}}]}";
    let file = File::new("in-flight", text);
    let request = ["--rules", file.path(), "--domain", "d", "-d", "u=ada"];
    program.run([&["peek"], &request[..]].concat()).assert(0, &["allowed", "3 of 3 left"]);
    program.run([&["check"], &request[..]].concat()).assert(2, &["use `peek`"]);
    program
        .run(["rules", "explain", file.path(), "--domain", "d", "-d", "u=ada"])
        .assert(0, &["3 in flight"]);
    program.run(["peek", "ada", "--gate", "d.u", "--rules", file.path()]).assert(0, &["3 of 3 left"]);
}
