//! A mistyped name, mode or quota is not answered with success.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin::Inspector;
use tidegate::{Gate, Limiter, Quota, Rate};

use super::program::Program;
use super::rules::File;
use crate::support::fixture::{HOUR, builder, soon};

const BUCKET: [&str; 4] = ["--token-bucket", "2", "--rate", "2/h"];

const RULES: &str = "\
domain: auth
descriptors:
  - key: auth_type
    value: login
    rate_limit: { name: Logins, unit: hour, requests_per_unit: 2, algorithm: token_bucket }
  - key: auth_type
    value: signup
    rate_limit: { name: Twice, unit: hour, requests_per_unit: 3 }
  - key: auth_type
    value: reset
    rate_limit: { name: Twice, unit: hour, requests_per_unit: 3 }
  - key: free
    rate_limit: { unlimited: true }
";

/// An instance of a service with a gate `login`, which a key has used.
async fn service(program: &Program) -> (Limiter, Gate) {
    let limiter = builder(&program.url).namespace(&program.namespace).deny_cache(Duration::ZERO);
    let limiter = limiter.build().unwrap();
    let login = limiter.gate("login", Quota::token_bucket(2, Rate::per_hour(2)));
    login.penalize("user:42", 1).await.unwrap();
    soon("the instance is counted", async || live(&limiter).await >= 1).await;
    (limiter, login)
}

async fn live(limiter: &Limiter) -> u64 {
    Inspector::new(limiter).unwrap().instances().await.unwrap()
}

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

fn no_overrides(program: &Program) {
    program.run(["overrides"]).assert(1, &["no active switches or overrides"]);
}

#[tokio::test]
async fn switch_or_override_of_an_unknown_gate_changes_nothing_and_names_the_known_gates() {
    let program = Program::shared();
    let _service = service(&program).await;
    let set = ["override", "user:42", "--gate", "logn", "--for", "1h", "--yes"];
    for args in [with(&["switch", "logn", "closed", "--yes"], &[]), with(&set, &BUCKET)] {
        program.run(&args).assert(
            1,
            &[
                &*format!("no gate `logn` in namespace {}; did you mean `login`?; ", program.namespace),
                "nothing changed\ngates with state: login\n",
                "add --rules PATH; for a gate that has no state yet, add --force",
            ],
        );
        let failed = program.run(with(&args, &["--json"]));
        let error: Value = serde_json::from_str(&failed.err).unwrap();
        assert_eq!((failed.code, &error["error"]["exit_code"]), (Some(1), &json!(1)), "{failed:?}");
        no_overrides(&program);
    }
    program
        .run(with(&with(&set, &BUCKET), &["--force"]))
        .assert(0, &["logn has", "1 live instance, which applies it"]);
    // An override makes the gate known.
    program.run(["switch", "logn", "shadow", "--yes"]).assert(0, &["logn is switched shadow"]);
    program.run(["switch", "auth/login", "closed", "--yes"]).assert(2, &["gate name", "add --rules PATH"]);
}

#[tokio::test]
async fn switch_in_a_namespace_without_a_live_instance_changes_nothing_and_names_the_live_namespaces() {
    let program = Program::shared();
    let _service = service(&program).await;
    let other = Program::of(&program.url, &format!("{}x", program.namespace));
    let set = with(&["override", "user:42", "--gate", "login", "--for", "1h", "--yes"], &BUCKET);
    for args in [vec!["switch", "login", "closed", "--yes"], set] {
        let near = format!("no live instance in namespace {}; did you mean `", other.namespace);
        other.run(&args).assert(
            1,
            &[
                &*near,
                "nothing changed\nnamespaces with live instances: ",
                "`Builder::instances` are not counted; to change it anyway, add --force",
            ],
        );
        no_overrides(&other);
    }
    let force = ["switch", "login", "closed", "--yes", "--force"];
    other.run(force).assert(0, &["login is switched closed; no live instance is counted\n"]);
}

#[tokio::test]
async fn all_live_instances_are_counted_and_fixed_ones_are_not() {
    let program = Program::shared();
    let services = [service(&program).await, service(&program).await, service(&program).await];
    let fixed = builder(&program.url).namespace(&program.namespace).instances(5).build().unwrap();
    fixed.gate("login", Quota::token_bucket(2, Rate::per_hour(2))).penalize("user:43", 1).await.unwrap();
    soon("all instances are counted", async || live(&services[0].0).await == 3).await;
    let reply = program.json(0, &["switch", "login", "shadow", "--yes"]);
    assert_eq!(reply["instances"], 3);
    program
        .run(["switch", "login", "closed", "--yes"])
        .assert(0, &[
            "login is switched closed; 3 live instances, of which those that follow overrides apply it within a second\n",
        ]);
}

#[tokio::test]
async fn reply_does_not_claim_that_an_instance_without_overrides_follows() {
    let program = Program::shared();
    let limiter =
        builder(&program.url).namespace(&program.namespace).follow_overrides(false).build().unwrap();
    let login = limiter.gate("login", Quota::token_bucket(2, Rate::per_hour(2)));
    login.penalize("user:42", 1).await.unwrap();
    soon("the instance is counted", async || live(&limiter).await == 1).await;
    program
        .run(["switch", "login", "closed", "--yes"])
        .assert(0, &["; 1 live instance, which applies it within a second if it follows overrides\n"]);
    assert!(login.check("user:43").await.unwrap().is_allowed(), "it does not follow the switch");
}

#[tokio::test]
async fn block_at_an_unknown_gate_changes_nothing_and_names_the_known_gates() {
    let program = Program::shared();
    let (limiter, _login) = service(&program).await;
    let block = ["block", "user:43", "--gate", "logn", "--for", "1h", "--yes"];
    program.run(with(&block, &BUCKET)).assert(
        1,
        &[
            &*format!("no gate `logn` in namespace {}; did you mean `login`?; ", program.namespace),
            "nothing changed\ngates with state: login\n",
            "for a gate that has no state yet, add --force",
        ],
    );
    let other = limiter.gate("logn", Quota::token_bucket(2, Rate::per_hour(2)));
    assert!(other.peek("user:43").await.unwrap().is_allowed());
    program.run(with(&with(&block, &BUCKET), &["--force"])).assert(0, &["user:43 is blocked at logn for 1h"]);
    assert!(!other.peek("user:43").await.unwrap().is_allowed());
    // The gate has state now.
    program
        .run(with(&["block", "user:44", "--gate", "logn", "--for", "1h", "--yes"], &BUCKET))
        .assert(0, &[]);

    let file = File::new("unknown", RULES);
    let block = ["block", "user:43", "--gate", "Logins", "--for", "1h", "--yes", "--rules", file.path()];
    program.run(block).assert(0, &["user:43 is blocked at auth / auth_type=login for 1h"]);
    let stored = ["block", "%hmac=00", "--stored", "--gate", "login", "--for", "1h", "--yes"];
    program.run(with(&stored, &BUCKET)).assert(2, &["no state of %hmac=00 at login"]);
}

#[tokio::test]
async fn switch_and_override_accept_the_name_or_path_of_a_rule() {
    let program = Program::shared();
    let _service = service(&program).await;
    let file = File::new("typos", RULES);
    let switch = |gate: &str, code: i32, texts: &[&str]| {
        program.run(["switch", gate, "shadow", "--rules", file.path(), "--yes"]).assert(code, texts);
    };
    for name in ["Logins", "auth.auth_type_login", "auth.auth_type-login", "auth / auth_type=login"] {
        switch(name, 0, &["auth / auth_type=login is switched shadow"]);
    }
    switch("auth.free", 0, &["auth / free is switched shadow"]);
    switch(
        "Login",
        2,
        &["no rule has the gate, path or name `Login`; did you mean `Logins`?", "auth / free"],
    );
    switch("Twice", 2, &["2 rules have the name `Twice`", "auth.auth_type-signup, auth.auth_type-reset"]);
    let set = ["override", "ada", "--gate", "Logins", "--rules", file.path(), "--yes"];
    program
        .run(with(&set, &["--for", "1h", "--token-bucket", "9", "--rate", "9/h"]))
        .assert(0, &["ada at auth / auth_type=login has the quota 9/h burst 9 for 1h"]);
    program
        .run(with(&set, &["--end"]))
        .assert(0, &["ada at auth / auth_type=login has the gate's own quota"]);
    program.run(with(&set, &["--for", "1h"])).assert(0, &["2/h burst 2"]);
    let check = ["check", "bob", "--rules", file.path(), "--gate"];
    assert_eq!(program.json(0, &with(&check, &["Logins"]))["gate"], "auth.auth_type-login");
    program.run(with(&check, &["auth.free"])).assert(2, &["has no quota"]);
}

#[tokio::test]
async fn switch_off_is_refused_and_names_clear() {
    let program = Program::shared();
    let _service = service(&program).await;
    program.run(["switch", "login", "closed", "--yes"]).assert(0, &[]);
    program.run(["switch", "login", "off", "--yes"]).assert(
        2,
        &["`switch login clear` ends the switch", "login follows its own quota again", "`switch login open`"],
    );
    program.run(["overrides"]).assert(0, &["closed"]);
    program.run(["switch", "logn", "clear", "--yes"]).assert(
        1,
        &["logn is not switched; did you mean `login`?; nothing changed\nswitched gates: login\n"],
    );
    program.run(["switch", "login", "clear", "--yes"]).assert(0, &["login follows its own quota again"]);
    program
        .run(["switch", "login", "clear", "--yes"])
        .assert(1, &["login is not switched; nothing changed\nno gate is switched\n"]);
    let reply = program.json(0, &["switch", "login", "clear", "--yes", "--force"]);
    assert_eq!((&reply["switch"], &reply["instances"]), (&json!("clear"), &json!(1)));
}

#[tokio::test]
async fn end_of_an_override_that_does_not_exist_is_reported() {
    let program = Program::shared();
    let _service = service(&program).await;
    let set = with(&["override", "user:42", "--gate", "login", "--for", "1h", "--yes"], &BUCKET);
    program.run(set).assert(0, &[]);
    let end = |key: &str, gate: &str| program.run(["override", key, "--gate", gate, "--end", "--yes"]);
    end("user:42", "logn").assert(
        1,
        &["no override of this key at logn; did you mean `login`?; nothing changed\nthe key has overrides at: login"],
    );
    end("user:43", "login").assert(1, &["the key has no override at any gate: see `tidegate overrides`"]);
    end("user:42", "login").assert(0, &["user:42 at login has the gate's own quota; 1 live instance,"]);
}

#[tokio::test]
async fn check_with_another_algorithm_or_window_than_stored_warns() {
    let program = Program::shared();
    let (limiter, _) = service(&program).await;
    limiter.gate("fixed", Quota::fixed_window(5, HOUR)).penalize("user:42", 1).await.unwrap();
    for verb in ["peek", "check"] {
        for (gate, quota, stored, given) in [
            ("login", &["--sliding-log", "5", "--window", "1h"][..], "token_bucket", "sliding_log/3600s"),
            ("fixed", &["--fixed-window", "5", "--window", "2h"], "fixed_window/3600s", "fixed_window/7200s"),
        ] {
            let text = format!("{gate} is stored as {stored}, but this check uses {given}: services do not");
            // A key with state, and a new key at a gate that other keys use.
            let warned: &[&str] = if verb == "peek" { &["user:42", "user:43"] } else { &["user:42"] };
            for key in warned {
                let ran = program.run(with(&[verb, key, "--gate", gate], quota));
                ran.assert(0, &["allowed", &text, "rules: --rules PATH"]);
            }
            // The check has stored state of its quota, so that a new key is no longer suspicious.
            let reply = program.json(0, &with(&["peek", "user:44", "--gate", gate], quota));
            assert_eq!(reply["notes"].as_array().unwrap().len(), usize::from(verb == "peek"), "{reply}");
        }
    }
    // The same algorithm and window: no warning, also for a new key and with other numbers.
    for key in ["user:42", "user:43"] {
        let ran = program.run(["peek", key, "--gate", "login", "--token-bucket", "9", "--rate", "9/h"]);
        ran.assert(0, &["allowed"]);
        assert_eq!(ran.err, "");
    }
    // An override decides by another quota than the gate's.
    let log = ["--sliding-log", "5", "--window", "1h"];
    let set = with(&["override", "user:45", "--gate", "login", "--for", "1h", "--yes"], &log);
    program.run(set).assert(0, &[]);
    let ran = program.run(with(&["peek", "user:45", "--gate", "login"], &BUCKET));
    ran.assert(0, &["5 of 5 left"]);
    assert_eq!(ran.err, "");
}

#[tokio::test]
async fn peek_of_a_blocked_key_tells_until_when() {
    let program = Program::shared();
    let (limiter, login) = service(&program).await;
    login.block("user:42", HOUR * 3 / 2).await.unwrap();
    for verb in ["peek", "check"] {
        let args = with(&[verb, "user:42", "--gate", "login"], &BUCKET);
        program.run(&args).assert(1, &["denied: the key is blocked for 1h 29m, until 20"]);
        let left = program.json(1, &args)["blocked_for_us"].as_u64().unwrap();
        assert!(left > 3_600_000_000 && left <= 5_400_000_000, "{left}");
    }
    assert_eq!(
        program.json(0, &with(&["peek", "x", "--gate", "login"], &BUCKET))["blocked_for_us"],
        json!(null)
    );

    let file = File::new("blocked", RULES);
    let rule = limiter.gate("auth.auth_type-login", Quota::token_bucket(2, Rate::per_hour(2)));
    let peek = ["peek", "--rules", file.path(), "--domain", "auth", "-d", "auth_type=login"];
    let reply = program.json(0, &peek);
    assert_eq!(reply["notes"], json!([]));
    rule.block("", HOUR).await.unwrap();
    let ran = program.run(peek);
    ran.assert(1, &["denied", "is blocked at auth / auth_type=login for 59m"]);
}

#[tokio::test]
async fn quota_is_optional_where_the_state_contains_it() {
    let program = Program::shared();
    let (limiter, login) = service(&program).await;
    let peek = |key: &str, gate: &str| program.run(["peek", key, "--gate", gate]);
    peek("user:42", "login").assert(0, &["allowed, 1 of 2 left", "(stored quota: 2/h burst 2)"]);
    program.run(["check", "user:42", "--gate", "login"]).assert(0, &["allowed, 0 of 2 left"]);
    assert_eq!(login.peek("user:42").await.unwrap().remaining(), 0, "the same state as the service's");
    limiter.gate("queue", Quota::leaky_bucket(3, Rate::per_hour(3))).penalize("user:42", 1).await.unwrap();
    peek("user:42", "queue").assert(0, &["(stored quota: 3/h queue 3)"]);
    let windows = [
        ("fixed", Quota::fixed_window(5, HOUR), "add `--fixed-window LIMIT --window 3600s`,"),
        (
            "clock",
            Quota::fixed_window(5, HOUR).aligned_to_clock_at(Duration::from_secs(90)),
            "add `--fixed-window LIMIT --window 3600s --by-clock 90s`,",
        ),
        ("log", Quota::sliding_log(5, HOUR), "add `--sliding-log LIMIT --window 3600s`,"),
        ("counter", Quota::sliding_counter(5, HOUR), "add `--sliding-counter LIMIT --window 3600s`,"),
    ];
    for (gate, quota, option) in windows {
        limiter.gate(gate, quota).penalize("user:42", 1).await.unwrap();
        peek("user:42", gate).assert(2, &["which does not contain the limit", option]);
        peek("user:43", gate).assert(2, &["no state of user:43 at", "other keys are stored as", option]);
    }
    peek("user:43", "login").assert(2, &["add `--token-bucket CAPACITY --rate RATE`, or --rules PATH"]);
    peek("user:42", "logn").assert(2, &["no state of gate logn", "--quota \"5/min burst 5\""]);
    limiter.gate("login", Quota::sliding_log(5, HOUR)).penalize("user:42", 1).await.unwrap();
    peek("user:42", "login").assert(2, &["is stored as token_bucket and as sliding_log/3600s"]);
    // An override's quota decides, so the gate's is not needed.
    program
        .run([
            "override",
            "user:46",
            "--gate",
            "login",
            "--for",
            "1h",
            "--yes",
            "--sliding-log",
            "7",
            "--window",
            "1h",
        ])
        .assert(0, &[]);
    peek("user:46", "login").assert(0, &["allowed, 7 of 7 left"]);
}
