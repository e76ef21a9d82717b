//! Commands that fail, and their messages.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tidegate::{Quota, Rate};
use tidegate_testkit::Server;

use super::program::{Program, Ran};
use crate::support::acl;
use crate::support::fixture::builder;

/// The right that an operator's Redis user needs beside the limiter's rights.
const OPERATOR: &str = "+scan +xadd";

#[test]
fn unreachable_redis_exits_with_3_and_names_the_server() {
    let program = Program::at("redis://ada:secret@127.0.0.1:1");
    for args in [
        &["inspect"][..],
        &["top", "--once"],
        &["check", "x", "--gate", "g", "--token-bucket", "1", "--rate", "1/s"],
        &["reset", "x", "--gate", "g", "--yes"],
        &["forget", "x", "--yes"],
    ] {
        let ran = program.run(args);
        ran.assert(3, &["Connection refused", "redis://127.0.0.1:1", "--redis"]);
        assert!(!ran.err.contains("secret"), "{ran:?}");
        let ran = program.run([args, &["--json"]].concat());
        let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!((ran.code, &error["error"]["exit_code"]), (Some(3), &3.into()), "{ran:?}");
    }
}

#[test]
fn invalid_quota_is_reported_without_a_call_to_redis() {
    let program = Program::at("redis://127.0.0.1:1");
    for verb in ["check", "peek"] {
        let ran = program.run([verb, "x", "--gate", "g", "--token-bucket", "0", "--rate", "1/s"]);
        ran.assert(2, &["capacity"]);
        assert!(!ran.err.contains("Connection refused"), "{ran:?}");
    }
    for (option, value, message) in [
        ("--cost", "-1", "invalid value '-1' for '--cost <UNITS>': write a whole number from 0"),
        ("--cost", "1.5", "write a whole number from 0"),
        (
            "--quota",
            "-5/s",
            "for '--quota <TEXT>': a number of units is missing before `-5/s`: a limit is not negative",
        ),
        ("--rate", "5/x", "for '--rate <RATE>': `x` is no unit of time"),
        ("--token-bucket", "-1", "write a whole number from 0"),
    ] {
        let ran = program.run(["check", "x", "--gate", "g", option, value]);
        ran.assert(2, &[message]);
        assert!(!ran.err.contains("tip:"), "{ran:?}");
    }
}

#[test]
fn invalid_url_exits_with_2() {
    Program::at("redis://h/0?db=3").run(["inspect"]).assert(
        2,
        &["of TIDEGATE_REDIS_URL cannot be used (it has no option `db`): write the database at the end, such as "],
    );
    for url in ["127.0.0.1:6379", "http://127.0.0.1", "redis://", "redis://127.0.0.1:port"] {
        Program::at(url).run(["inspect"]).assert(
            2,
            &["the Redis URL", "of TIDEGATE_REDIS_URL cannot be used", "such as redis://127.0.0.1:6379"],
        );
    }
    let ran = Program::at("").run(["inspect", "--redis", "localhost"]);
    ran.assert(
        2,
        &[
            "of --redis cannot be used (Redis URL did not parse)",
            "write such as redis://127.0.0.1:6379",
            "--password-file",
        ],
    );
    assert!(!ran.err.contains("`credentials`"), "{ran:?}");
    Program::at("redis://a redis://b").run(["inspect"]).assert(2, &["--sentinel or --cluster"]);
}

#[test]
fn server_of_another_kind_is_an_error_that_names_the_option() {
    let program = Program::shared();
    let check = ["check", "x", "--gate", "g", "--quota", "5/min"];
    program
        .run([&check[..], &["--cluster"]].concat())
        .assert(3, &["is not a node of a Redis Cluster (its cluster mode is off)", "remove --cluster"]);
    program
        .run([&check[..], &["--sentinel", "primary"]].concat())
        .assert(3, &["is a Redis, not a sentinel: give the addresses of sentinels", "or remove --sentinel"]);
    let file = super::rules::File::new("kind", "domain: d\ndescriptors: [{ key: k, rate_limit: 5/min }]\n");
    let any = "127.0.0.1:0";
    // Without a reply in time, the service would start.
    let ports = ["--grpc-addr", any, "--http-addr", any, "--deadline", "5s"];
    program
        .run([&["serve", "--cluster", "--rules", file.path()], &ports[..]].concat())
        .assert(3, &["is not a node of a Redis Cluster", "remove --cluster"]);
}

#[test]
fn hanging_redis_times_out_after_the_given_timeout() {
    let server = Server::process(&[]).unwrap();
    let program = Program::at(server.url());
    let _paused = server.pause().unwrap();
    let start = Instant::now();
    program.run(["inspect", "--timeout", "300ms"]).assert(3, &["timed out after 300ms"]);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn wrong_password_is_reported_but_never_printed() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", "right-secret"]).unwrap();
    let port = server.url().rsplit_once(':').unwrap().1.to_owned();
    let url = |login: &str| format!("redis://{login}127.0.0.1:{port}");
    let ran = Program::at(&url("")).run(["inspect"]);
    ran.assert(3, &["NOAUTH", "this Redis needs a password: add --password-file FILE"]);
    assert!(!ran.err.contains("another server"), "{ran:?}");
    let ran = Program::at(&url(":wrong-secret@")).run(["inspect"]);
    ran.assert(3, &["WRONGPASS", "correct the credentials"]);
    assert!(!ran.err.contains("wrong-secret"), "{ran:?}");
    Program::at(&url(":right-secret@")).run(["inspect"]).assert(1, &["no state in namespace"]);

    let file = std::env::temp_dir().join(format!("tidegate-{}-password", std::process::id()));
    std::fs::write(&file, "right-secret\n").unwrap();
    let args = ["inspect", "--password-file", file.to_str().unwrap()];
    Program::at(&url("")).run(args).assert(1, &["no state in namespace"]);
    std::fs::remove_file(&file).unwrap();
    Program::at(&url("")).run(args).assert(2, &["cannot read "]);

    let ran = Program::at(&format!("{}/99", url(":right-secret@"))).run(["inspect"]);
    ran.assert(3, &["DB index is out of range", "Redis has no database 99"]);

    // An argument is visible in the process list.
    let ran = Program::at("").run(["inspect", "--redis", &url(":right-secret@")]);
    ran.assert(1, &["every user of this machine can see", "TIDEGATE_REDIS_URL"]);
    assert!(!ran.err.contains("right-secret"), "{ran:?}");
}

#[tokio::test]
async fn documented_rights_suffice_and_a_missing_right_is_named() {
    let server = Server::process(&[]).unwrap();
    let acl_line = acl::line() + " " + OPERATOR;
    let docs = include_str!("../../../../docs/operate/cli.md");
    assert!(docs.lines().any(|line| line == acl_line), "docs/operate/cli.md does not contain {acl_line}");
    assert_eq!(server.cli(&acl_line.split(' ').collect::<Vec<_>>()).unwrap(), "OK");
    let url = server.url().replace("://", &format!("://{}:{}@", acl::USER, acl::PASSWORD));
    let program = Program::of(&url, "tidegate");
    let limiter = builder(server.url()).namespace("tidegate").build().unwrap();
    let run = |code: i32, args: &[&str]| {
        let ran = program.run(args);
        ran.assert(code, &[]);
        assert!(!ran.err.contains("NOPERM"), "{args:?}: {ran:?}");
    };
    for quota in
        [Quota::token_bucket(1, Rate::per_hour(1)), Quota::sliding_log(1, Duration::from_secs(3_600))]
    {
        limiter.gate("g", quota).penalize("user:42", 1).await.unwrap();
        run(0, &["inspect"]);
        run(0, &["inspect", "user:42"]);
        run(0, &["inspect", "--gate", "g"]);
        run(0, &["top", "--once"]);
        run(0, &["block", "user:42", "--gate", "g", "--for", "1h", "--yes"]);
        run(0, &["unblock", "user:42", "--gate", "g", "--yes"]);
        run(0, &["reset", "user:42", "--gate", "g", "--yes"]);
        run(0, &["check", "user:42", "--gate", "h", "--token-bucket", "1", "--rate", "1/h"]);
        run(0, &["forget", "user:42", "--yes"]);
    }
    server.cli(&["ACL", "SETUSER", acl::USER, "-scan"]).unwrap();
    program.run(["inspect"]).assert(3, &["NOPERM", "+scan"]);
    let other = Program::of(&url, "other");
    other
        .run(["check", "x", "--gate", "g", "--token-bucket", "1", "--rate", "1/h"])
        .assert(3, &["NOPERM", "~NAMESPACE:*"]);
}

#[tokio::test]
async fn closed_output_pipe_is_not_a_failure() {
    let program = Program::shared();
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let gate = limiter.gate("g", Quota::token_bucket(1, Rate::per_hour(1)));
    for user in 0..2_000 {
        gate.penalize(format!("user:{user}"), 1).await.unwrap();
    }
    let mut command = program.command(["inspect", "--gate", "g", "--limit", "2000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ran = Ran::of(&child.wait_with_output().unwrap());
    assert_eq!((ran.code, &*ran.err), (Some(0), ""), "{ran:?}");
}
