//! Where it cannot be done, and what the message says then.

use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::Server;
use tidegate::{Quota, Rate};

use super::program::{Program, Ran};
use crate::support::acl;
use crate::support::fixture::builder;

/// What an operator's user needs beside the limiter's rights.
const OPERATOR: &str = "+scan";

#[test]
fn a_redis_that_is_not_there_ends_with_3_and_says_which_was_asked() {
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
        let said: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
        assert_eq!((ran.code, &said["error"]["exit_code"]), (Some(3), &3.into()), "{ran:?}");
    }
}

#[test]
fn a_url_that_is_none_ends_with_2() {
    for url in ["127.0.0.1:6379", "http://127.0.0.1", "redis://", "redis://127.0.0.1:port"] {
        Program::at(url)
            .run(["inspect"])
            .assert(2, &["the Redis URL cannot be used", "redis://127.0.0.1:6379"]);
    }
    Program::at("redis://a redis://b").run(["inspect"]).assert(2, &["--sentinel or --cluster"]);
}

#[test]
fn a_redis_that_hangs_is_waited_for_no_longer_than_said() {
    let server = Server::process(&[]).unwrap();
    let program = Program::at(server.url());
    let _paused = server.pause().unwrap();
    let start = Instant::now();
    program.run(["inspect", "--timeout", "300ms"]).assert(3, &["no answer within 300ms"]);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_wrong_password_is_told_and_never_shown() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", "right-secret"]).unwrap();
    let port = server.url().rsplit_once(':').unwrap().1.to_owned();
    let url = |login: &str| format!("redis://{login}127.0.0.1:{port}");
    Program::at(&url("")).run(["inspect"]).assert(3, &["NOAUTH", "correct the credentials"]);
    let ran = Program::at(&url(":wrong-secret@")).run(["inspect"]);
    ran.assert(3, &["WRONGPASS", "correct the credentials"]);
    assert!(!ran.err.contains("wrong-secret"), "{ran:?}");
    Program::at(&url(":right-secret@")).run(["inspect"]).assert(1, &["nothing is stored"]);

    let file = std::env::temp_dir().join(format!("tidegate-{}-password", std::process::id()));
    std::fs::write(&file, "right-secret\n").unwrap();
    let args = ["inspect", "--password-file", file.to_str().unwrap()];
    Program::at(&url("")).run(args).assert(1, &["nothing is stored"]);
    std::fs::remove_file(&file).unwrap();
    Program::at(&url("")).run(args).assert(2, &["this cannot be read"]);

    // Seen by everyone in the list of processes.
    let ran = Program::at("").run(["inspect", "--redis", &url(":right-secret@")]);
    ran.assert(1, &["can be seen by everyone", "TIDEGATE_REDIS_URL"]);
    assert!(!ran.err.contains("right-secret"), "{ran:?}");
}

#[tokio::test]
async fn the_rights_in_the_docs_suffice_and_without_one_the_message_says_which() {
    let server = Server::process(&[]).unwrap();
    let line = acl::line() + " " + OPERATOR;
    let docs = include_str!("../../docs/cli.md");
    assert!(docs.lines().any(|other| other == line), "docs/cli.md has another line than {line}");
    assert_eq!(server.cli(&line.split(' ').collect::<Vec<_>>()).unwrap(), "OK");
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
async fn a_reader_that_goes_away_is_no_failure() {
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
