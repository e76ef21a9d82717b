//! Gates are shown by their rules, and each name that is shown is taken.

use tidegate::{Quota, Rate};

use super::program::{Program, Ran};
use super::rules::File;
use crate::support::fixture::builder;

const RULES: &str = "\
domain: api
descriptors:
  - key: path
    value: /login
    descriptors:
      - { key: user, rate_limit: { unit: hour, requests_per_unit: 5, candidate: { requests_per_unit: 1 } } }
  - { key: free, rate_limit: { unlimited: true } }
";
const SHOWN: &str = "api / path=/login / user";
const STORED: &str = "api.path-_login.user.-9bca630f42ef6cfc1db3";

/// Runs with the rules of the environment.
fn run(program: &Program, rules: &str, args: &[&str]) -> Ran {
    Ran::of(&program.command(args).env("TIDEGATE_RULES", rules).output().unwrap())
}

#[test]
fn gate_of_a_rule_is_shown_by_its_rule_and_this_name_is_taken_by_each_command() {
    let (program, rules) = (Program::shared(), File::new("names", RULES));
    let run = |args: &[&str], texts: &[&str]| {
        let ran = run(&program, rules.path(), args);
        ran.assert(0, texts);
        ran.out
    };
    run(&["check", "ada", "--gate", SHOWN], &["allowed, 4 of 5 left"]);
    run(&["peek", "--domain", "api", "-d", "path=/login,user=ada"], &["allowed"]);
    for inspect in [&["inspect", "ada"][..], &["inspect"], &["inspect", "--gate", SHOWN], &["top", "--once"]]
    {
        let out = run(inspect, &[SHOWN]);
        let redis_key = format!("{}:2:{STORED}:", program.namespace);
        assert!(!out.replace(&redis_key, "").contains(STORED), "{inspect:?}: {out}");
    }
    let blocked = format!("ada is blocked at {SHOWN} for 1h");
    run(&["block", "ada", "--gate", SHOWN, "--for", "1h", "--yes"], &[&blocked]);
    run(&["unblock", "ada", "--gate", SHOWN, "--yes"], &[&format!("no longer blocked at {SHOWN}")]);
    run(&["switch", SHOWN, "shadow", "--yes", "--force"], &[&format!("{SHOWN} is switched shadow")]);
    let own = ["override", "ada", "--gate", SHOWN, "--for", "1h", "--quota", "9/h", "--yes", "--force"];
    run(&own, &[&format!("ada at {SHOWN} has the quota 9/h")]);
    run(&["overrides"], &[SHOWN]);
    run(&["reset", "ada", "--gate", SHOWN, "--yes"], &[&format!("ada at {SHOWN} is reset")]);
    run(&["forget", "ada", "--yes"], &[&format!("(gates: {SHOWN})")]);
    let explain = ["rules", "explain", rules.path(), "--domain", "api", "-d", "path=/login,user=ada"];
    run(&explain, &[SHOWN, STORED]);
}

#[tokio::test]
async fn rules_of_the_environment_need_not_have_the_gate_and_need_not_be_valid() {
    let (program, rules) = (Program::shared(), File::new("names-env", RULES));
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let _ = limiter.gate("login", Quota::token_bucket(2, Rate::per_hour(2))).check("ada").await.unwrap();
    run(&program, rules.path(), &["peek", "ada", "--gate", "login"]).assert(0, &["1 of 2 left"]);
    let mistyped = run(&program, rules.path(), &["peek", "ada", "--gate", "api / path=/logn / user"]);
    mistyped.assert(2, &["no rule has the gate", "did you mean `api / path=/login / user`?"]);
    let invalid = File::new("names-invalid", "domain: api\ndescriptors: [{ key: user, rate_limt: 1/day }]\n");
    let warned = run(&program, invalid.path(), &["peek", "ada", "--gate", "login"]);
    warned.assert(0, &["1 of 2 left", "TIDEGATE_RULES names no gates", "rate_limt"]);
}

#[test]
fn name_of_two_gates_is_refused_with_their_names_in_redis() {
    let rules = "domain: d\ndescriptors:\n  - { key: 'a=b', rate_limit: 1/day }\n  - { key: a, value: b, rate_limit: 1/day }\n";
    let (program, rules) = (Program::shared(), File::new("names-twice", rules));
    let check = |gate: &str| program.run(["check", "x", "--gate", gate, "--rules", rules.path()]);
    let refused = check("d / a=b");
    refused.assert(2, &["2 rules have the name `d / a=b`: give one of their gates: d.a_b.-"]);
    let (_, names) = refused.err.trim_end().split_once("one of their gates: ").unwrap();
    names.split(", ").for_each(|name| check(name).assert(0, &["allowed"]));
}
