//! Malformed keys in Redis, and servers whose scans never end.

use std::io::Write;
use std::net::TcpListener;
use std::thread;

use redis::{Parser, Value};
use tidegate::{Limiter, Quota};
use tidegate_testkit::Server;

use super::program::Program;
use crate::support::fixture::{HOUR, builder};

fn set(server: &Server, words: &[&[u8]]) {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut command = redis::Cmd::new();
    words.iter().for_each(|word| drop(command.arg(*word).get_packed_command()));
    command.exec(&mut connection).unwrap();
}

async fn limiter_with_one_key(program: &Program) -> Limiter {
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    limiter.gate("api", Quota::fixed_window(3, HOUR)).penalize("good", 2).await.unwrap();
    limiter
}

#[tokio::test]
async fn malformed_key_is_an_error_for_that_key_alone() {
    let server = tidegate_testkit::shared();
    let parts = "a:".repeat(1_000);
    for (name, key, words, shown) in [
        ("garbage", ":1:garbage", &["SET", "", "x"][..], "1 key not written by tidegate: "),
        ("text", ":2:api:fixed_window/3600s:bad", &["SET", "", "x"], "not readable: "),
        ("type", ":2:api:sliding_log/3600s:bad", &["SADD", "", "x"], "not readable: "),
        ("bucket", ":2:api:token_bucket:bad", &["RPUSH", "", "x"], "not readable: "),
        ("parts", &format!(":2:api:token_bucket:{parts}"), &["SET", "", "x"], "not readable: "),
        ("other-parts", &format!(":{parts}"), &["SET", "", "x"], "1 key not written by tidegate: "),
        ("spaces", ":2:api:fixed_window/3600s:a b", &["SET", "", "x"], "1 key not written by tidegate: "),
    ] {
        let program = Program::at(server.url());
        limiter_with_one_key(&program).await;
        let key = format!("{}{key}", program.namespace);
        let words: Vec<&[u8]> =
            words.iter().map(|word| if word.is_empty() { key.as_bytes() } else { word.as_bytes() }).collect();
        set(&server, &words);
        for args in [&["inspect", "--gate", "api"][..], &["top", "--once"]] {
            let ran = program.run(args);
            assert!(
                ran.out.lines().any(|line| line.starts_with("good ") && line.contains(" 2 ")),
                "{name}: {ran:?}"
            );
            assert!(
                ran.out.contains(shown) || !shown.starts_with("not") && args[0] == "inspect",
                "{name}: {ran:?}"
            );
            assert!(ran.out.lines().all(|line| line.chars().count() < 600), "{name}: {ran:?}");
        }
        program.run(["inspect", "good"]).assert(0, &["api"]);
        let ran = program.run(["inspect"]);
        assert!(ran.out.contains("api "), "{name}: {ran:?}");
    }
}

#[tokio::test]
async fn key_that_is_not_utf_8_is_named_and_escaped() {
    let server = tidegate_testkit::shared();
    let program = Program::at(server.url());
    limiter_with_one_key(&program).await;
    set(
        &server,
        &[b"SET", &[program.namespace.as_bytes(), b":\xff\x1b[2J\xe2\x80\xae", &[b'x'; 200]].concat(), b"1"],
    );
    let namespace = &program.namespace;
    let shown = format!("1 key not written by tidegate: {namespace}:\u{fffd}\\u{{1b}}[2J\\u{{202e}}xx");
    for args in [&["inspect"][..], &["top", "--once"]] {
        let ran = program.run(args);
        ran.assert(0, &[&shown, "api"]);
        assert!(ran.out.lines().last().unwrap().ends_with("x…"), "{ran:?}");
    }
}

#[tokio::test]
async fn overrides_of_a_wrong_type_are_a_note_and_the_states_are_shown() {
    let server = tidegate_testkit::shared();
    let program = Program::at(server.url());
    limiter_with_one_key(&program).await;
    set(&server, &[b"SET", format!("{}:1:overrides", program.namespace).as_bytes(), b"x"]);
    for args in [&["inspect"][..], &["inspect", "good"], &["inspect", "--gate", "api"]] {
        program
            .run(args)
            .assert(0, &["overrides not readable: the key has a type that tidegate does not write", "api"]);
    }
}

/// A server whose SCAN always returns this cursor.
fn endless_server(cursor: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut commands = Parser::new();
                while let Ok(Value::Array(words)) = commands.parse_value(&mut stream) {
                    let name: String = redis::from_redis_value(words[0].clone()).unwrap();
                    let reply = match name.as_str() {
                        "SCAN" => format!("*2\r\n${}\r\n{cursor}\r\n*0\r\n", cursor.len()),
                        "EVALSHA" | "EVAL" => "*3\r\n:1767225600000000\r\n:-2\r\n$0\r\n\r\n".to_owned(),
                        _ => "+OK\r\n".to_owned(),
                    };
                    if stream.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

#[test]
fn scan_of_a_server_that_repeats_a_cursor_ends() {
    let program = Program::at(&endless_server("7"));
    for args in [
        &["inspect"][..],
        &["inspect", "user:42"],
        &["top", "--once"],
        &["reset", "x", "--gate", "g", "--yes"],
    ] {
        program.run(args).assert(3, &["SCAN repeats the cursor 7 and never ends"]);
    }
}
