//! Gates are shown by their rules, and each name that is shown is taken.

use std::fs;

use serde_json::{Value, json};
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

#[tokio::test]
async fn gates_lists_those_of_the_rules_and_those_that_only_redis_knows() {
    let (program, rules) = (Program::shared(), File::new("names-list", RULES));
    program.run(["gates"]).assert(1, &["no gates"]);
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let _ = limiter.gate("login", Quota::token_bucket(2, Rate::per_hour(2))).check("ada").await.unwrap();
    let _ = limiter.gate("hourly", "7/h".parse().unwrap()).check("ada").await.unwrap();
    run(&program, rules.path(), &["check", "ada", "--gate", SHOWN]).assert(0, &[]);
    let listed = program.json(0, &["gates", "--rules", rules.path()]);
    let row = |gate: &Value| {
        let [name, readable, quota] =
            ["gate", "readable", "quota"].map(|field| gate[field].as_str().unwrap());
        (name.to_owned(), readable.to_owned(), quota.to_owned(), gate["line"].as_u64())
    };
    let rows: Vec<_> = listed["gates"].as_array().unwrap().iter().map(row).collect();
    let candidate = format!("{SHOWN} (candidate)");
    assert_eq!(rows[0], (STORED.to_owned(), SHOWN.to_owned(), "5/h".to_owned(), Some(6)));
    assert_eq!((&*rows[1].1, &*rows[1].2), (&*candidate, "1/h, candidate (denies nothing)"));
    let row = |name: &str, readable: &str, quota: &str, line| {
        (name.to_owned(), readable.to_owned(), quota.to_owned(), line)
    };
    assert_eq!(
        rows[2..],
        [
            row("api.free", "api / free", "unlimited", Some(7)),
            row("hourly", "hourly", "fixed_window/3600s@clock", None),
            row("login", "login", "2/h burst 2", None),
        ]
    );
    assert_eq!(listed["gates"][3]["file"], json!(null));
    let text = program.run(["gates", "--rules", rules.path()]);
    text.assert(0, &["defined at", &candidate, "api.free", &format!("{}:6", rules.path())]);
}

#[test]
fn gates_of_the_rules_are_listed_without_redis() {
    let (program, rules) = (Program::at("redis://127.0.0.1:1"), File::new("names-offline", RULES));
    let listed = program.run(["gates", "--rules", rules.path()]);
    listed.assert(0, &[SHOWN, "gates that no rule has are not listed: "]);
    program.run(["gates"]).assert(3, &["127.0.0.1:1"]);
}

#[test]
fn completion_knows_the_gates_of_the_rules() {
    let (program, rules) = (Program::at(""), File::new("names-complete", RULES));
    let complete = |words: &[&str], rules: &str| {
        let mut command = program.command([&["--", "tidegate"], words].concat());
        command.env("COMPLETE", "fish").env("TIDEGATE_RULES", rules);
        Ran::of(&command.output().unwrap()).out
    };
    for words in [&["check", "ada", "--gate", ""][..], &["switch", "api.p"], &["inspect", "--gate", ""]] {
        let out = complete(words, rules.path());
        assert!(out.contains(&format!("{STORED}\t{SHOWN}\n")), "{words:?}: {out}");
    }
    assert!(complete(&["switch", "api.f"], rules.path()).starts_with("api.free\t"));
    let given = complete(&["block", "ada", "--rules", rules.path(), "--gate", ""], "");
    assert!(given.contains(STORED), "{given}");
    assert!(complete(&["ins"], "").contains("inspect"));
}

#[test]
fn man_pages_are_written_for_each_command() {
    let folder = std::env::temp_dir().join(format!("tidegate-man-{}", std::process::id()));
    let program = Program::at("");
    let path = folder.to_str().unwrap();
    program.run(["man", path]).assert(2, &["No such file"]);
    fs::create_dir(&folder).unwrap();
    program.run(["man", path]).assert(0, &[]);
    let page = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert!(page("tidegate.1").contains("Exit codes") && page("tidegate-check.1").contains("token"));
    assert!(page("tidegate-rules-explain.1").contains("descriptor"));
    fs::remove_dir_all(&folder).unwrap();
}
