//! State that other programs wrote, and text that attackers chose.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use serde_json::json;
use tidegate::{Limiter, Quota};
use tidegate_testkit::Server;

use super::program::{Program, Ran};
use super::terminal::Terminal;
use crate::support::fixture::{HOUR, builder};

/// Sets a terminal's title, clears its screen, and requests a reply; then C1, bidi and zero-width characters.
const COMMANDS: &str = "\x1b]0;taken\x07\x1b[2J\x1b[6n\u{9b}31m\u{202e}\u{200b}\r\n\x08";

fn limiter(program: &Program) -> Limiter {
    builder(&program.url).namespace(&program.namespace).build().unwrap()
}

/// Asserts that the output contains only printable text and line ends.
#[track_caller]
fn assert_harmless(ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        let is_harmless = |character: char| {
            character == '\n' || !(character.is_control() || "\u{202e}\u{200b}".contains(character))
        };
        assert!(text.chars().all(is_harmless), "{ran:?}");
    }
}

fn set(server: &Server, words: &[&[u8]]) {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut command = redis::cmd(std::str::from_utf8(words[0]).unwrap());
    words[1..].iter().for_each(|word| drop(command.arg(*word).get_packed_command()));
    command.exec(&mut connection).unwrap();
}

#[tokio::test]
async fn stored_control_characters_do_not_reach_the_terminal() {
    let server = tidegate_testkit::shared();
    let program = Program::at(server.url());
    let limiter = limiter(&program);
    let quota = Quota::fixed_window(3, HOUR);
    limiter.gate("g", quota).penalize(COMMANDS, 1).await.unwrap();
    let garbage = limiter.gate("bad", quota).redis_key("user:42").unwrap();
    set(&server, &[b"SET", garbage.as_bytes(), COMMANDS.as_bytes()]);
    let foreign = format!("{}:2:g:fixed_window/3600s:{COMMANDS}", program.namespace);
    set(&server, &[b"SET", foreign.as_bytes(), b"1"]);
    set(&server, &[b"SET", format!("{}:{COMMANDS}", program.namespace).as_bytes(), b"\xff"]);

    let rules = std::env::temp_dir().join(format!("tidegate-{}-\x1b[2J.yaml", std::process::id()));
    std::fs::write(
        &rules,
        "domain: \"\\e[2J\"\ndescriptors: [{key: \"\\e[2J\", rate_limit: {unit: \"\\e\"}}]",
    )
    .unwrap();
    let rules = rules.to_str().unwrap();
    let valid = "{domain: d, descriptors: [{key: \"\\e[2J\", value: \"\\e[2J*\", rate_limit: {unit: day, requests_per_unit: 1}}]}";
    let valid_file = format!("{rules}.yaml");
    std::fs::write(&valid_file, valid).unwrap();
    let descriptor = format!("\x1b[2J=\x1b[2J{COMMANDS}");
    let runs: Vec<Vec<&str>> = vec![
        vec!["inspect"],
        vec![COMMANDS],
        vec!["inspect", "--gate", "g"],
        vec!["inspect", "--gate", "bad"],
        vec!["inspect", "user:42"],
        vec!["inspect", COMMANDS],
        vec!["inspect", "--gate", COMMANDS],
        vec!["inspect", "--stored", COMMANDS],
        vec!["top", "--once"],
        vec!["check", COMMANDS, "--gate", COMMANDS, "--fixed-window", "3", "--window", "1h"],
        vec!["check", COMMANDS, "--gate", "g", "--fixed-window", "3", "--window", "1h"],
        vec!["check", "user:42", "--gate", "bad", "--fixed-window", "3", "--window", "1h"],
        vec!["block", COMMANDS, "--gate", "g", "--for", "1h", "--yes"],
        vec!["unblock", COMMANDS, "--gate", "g", "--yes"],
        vec!["inspect", "--redis", COMMANDS],
        vec!["inspect", "--namespace", COMMANDS],
        vec!["inspect", "--hmac-secret-file", COMMANDS],
        vec!["rules", "validate", rules],
        vec!["rules", "validate", &valid_file],
        vec!["rules", "explain", &valid_file, "--domain", COMMANDS, "--descriptor", &descriptor],
        vec!["rules", "explain", &valid_file, "--domain", "d", "--descriptor", &descriptor],
        vec!["check", "--rules", &valid_file, "--domain", "d", "--descriptor", &descriptor],
        vec!["reset", COMMANDS, "--gate", "g", "--yes"],
        vec!["forget", COMMANDS, "--yes"],
    ];
    for args in &runs {
        for json in [&[][..], &["--json"]] {
            let ran = program.run([args, json].concat());
            assert_harmless(&ran);
            assert!(matches!(ran.code, Some(0..=4)), "{args:?}: {ran:?}");
        }
    }
    // With colors enabled, too.
    limiter.gate("g", quota).penalize(COMMANDS, 1).await.unwrap();
    for args in
        [&["inspect"][..], &["inspect", "--gate", "g"], &["inspect", "--gate", "bad"], &["inspect", COMMANDS]]
    {
        let mut terminal = Terminal::run(&program, args);
        assert!(terminal.end() <= 4);
        for part in ["\x1b]0;", "\x1b[2J", "\x1b[6n", "\u{9b}", "\u{202e}", "\x07"] {
            assert!(!terminal.raw().contains(part), "{args:?}: {:?}", terminal.raw());
        }
    }
    std::fs::remove_file(rules).unwrap();
    std::fs::remove_file(&valid_file).unwrap();
}

#[tokio::test]
async fn top_escapes_stored_control_characters() {
    let program = Program::shared();
    limiter(&program).gate("g", Quota::fixed_window(3, HOUR)).penalize(COMMANDS, 1).await.unwrap();
    let mut terminal = Terminal::run(&program, &["top", "--every", "100ms"]);
    terminal.see("%1B]0;taken%07");
    terminal.press("q");
    assert_eq!(terminal.end(), 0);
    assert!(!terminal.raw().contains("\x1b]0;"), "{:?}", terminal.raw());
}

#[test]
fn control_characters_in_server_errors_are_escaped() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let program = Program::at(&format!("redis://{}", listener.local_addr().unwrap()));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut bytes = [0; 4_096];
                while let Ok(1..) = stream.read(&mut bytes) {
                    if stream.write_all(b"-ERR \x1b]0;taken\x07 \x1b[2J\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    for args in [&["inspect", "--timeout", "1s"][..], &["inspect", "--timeout", "1s", "--json"]] {
        let ran = program.run(args);
        ran.assert(3, &["taken"]);
        assert_harmless(&ran);
    }
}

#[tokio::test]
async fn corrupt_state_is_reported_and_exits_with_4() {
    let server = tidegate_testkit::shared();
    let program = Program::at(server.url());
    let limiter = limiter(&program);
    for (gate, quota, words) in [
        ("text", Quota::sliding_counter(3, HOUR), &[&b"SET"[..], b"", b"1"][..]),
        ("list", Quota::sliding_counter(3, HOUR), &[b"RPUSH", b"", b"1"]),
        ("hash", Quota::sliding_log(3, HOUR), &[b"HSET", b"", b"used", b"1 since 1"]),
        ("field", Quota::sliding_counter(3, HOUR), &[b"HSET", b"", b"other", b"1"]),
        ("fields", Quota::fixed_window(3, HOUR), &[b"HSET", b"", b"used", b"1"]),
        ("garbage", Quota::fixed_window(3, HOUR), &[b"SET", b"", b"many"]),
        ("member", Quota::sliding_log(3, HOUR), &[b"ZADD", b"", b"9000000000000000", b"x"]),
        ("huge", Quota::fixed_window(3, HOUR), &[b"SET", b"", &[b'7'; 1_000_000]]),
    ] {
        limiter.gate(gate, quota).penalize("good", 1).await.unwrap();
        let key = limiter.gate(gate, quota).redis_key("user:42").unwrap();
        let words: Vec<&[u8]> =
            words.iter().map(|word| if word.is_empty() { key.as_bytes() } else { *word }).collect();
        set(&server, &words);
        for args in [&["inspect", "user:42", "--gate", gate][..], &["inspect", "--gate", gate]] {
            let ran = program.run(args);
            ran.assert(4, &["not readable", "tidegate: "]);
            assert!(ran.out.len() < 1_000, "{gate}: {} bytes", ran.out.len());
        }
        program.run(["inspect", "good", "--gate", gate]).assert(0, &[]);
        let reply = program.run(["inspect", "--gate", gate, "--json"]);
        let reply: serde_json::Value = serde_json::from_str(&reply.out).unwrap();
        assert_eq!((&reply["keys"], &reply["states"][0]["used"]), (&json!(2), &json!(null)), "{gate}");
        assert!(reply["states"][0]["error"].is_string() && reply["states"][1]["error"].is_null(), "{gate}");
        // A key with invalid state can still be reset.
        program.run(["reset", "user:42", "--gate", gate, "--yes"]).assert(0, &[]);
        program.run(["inspect", "--gate", gate]).assert(0, &["1 key,"]);
    }
}

#[tokio::test]
async fn state_of_another_version_is_reported_and_not_changed() {
    let server = tidegate_testkit::shared();
    let program = Program::at(server.url());
    limiter(&program).gate("login", Quota::fixed_window(3, HOUR)).penalize("user:42", 1).await.unwrap();
    let newer = format!("{}:3:login:fixed_window/3600s:user:42", program.namespace);
    set(&server, &[b"HSET", newer.as_bytes(), b"used", b"?"]);
    let note = "1 key of layout 3, written by another version of tidegate";
    program.run(["inspect"]).assert(0, &[note]);
    program.run(["inspect", "user:42"]).assert(0, &[note]);
    program
        .run(["forget", "user:42", "--yes"])
        .assert(0, &[note, "removed 1 state of user:42 (gates: login)"]);
    program.run(["inspect", "user:42"]).assert(1, &[note]);
    assert_eq!(server.cli(&["EXISTS", &newer]).unwrap(), "(integer) 1");
}
