//! `top` in a terminal.

use std::process::Command;

use tidegate::{Gate, Quota, Rate};
use tidegate_testkit::Server;

use super::program::Program;
use super::terminal::Terminal;
use crate::support::fixture::builder;

const TOP: [&str; 3] = ["top", "--every", "100ms"];

fn gate(program: &Program) -> Gate {
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    limiter.gate("api", Quota::token_bucket(100, Rate::per_hour(1)))
}

#[tokio::test]
async fn top_shows_current_usage_and_restores_the_terminal() {
    let program = Program::shared();
    let gate = gate(&program);
    gate.penalize("user:1", 7).await.unwrap();
    // By each key and signal that ends it.
    for end in ["q", "\u{3}", "\u{1b}", "TERM", "HUP"] {
        let mut terminal = Terminal::run(&program, &TOP);
        terminal.see("user:1");
        assert!(terminal.is_full_screen());
        for word in ["key", "gate", "used", "api", "1/h burst 100", "q quits"] {
            terminal.see(word);
        }
        let key = format!("user:{end}").escape_debug().to_string();
        gate.penalize(&key, 50).await.unwrap();
        terminal.see("of 100");
        let first = |terminal: &Terminal| terminal.screen().lines().nth(2).unwrap_or_default().to_owned();
        terminal.see("50 of 100");
        // The program may be drawing the screen.
        terminal.until(|terminal| first(terminal).contains("of 100"), "the usage of a key in the first row");
        gate.reset(&key).await.unwrap();
        match end {
            "TERM" | "HUP" => {
                let process = terminal.process().to_string();
                assert!(Command::new("kill").args(["-s", end, &process]).status().unwrap().success());
            }
            keys => terminal.press(keys),
        }
        assert_eq!(terminal.end(), 0, "{end:?}");
    }
}

#[tokio::test]
async fn top_fits_any_terminal() {
    let program = Program::shared();
    let gate = gate(&program);
    for user in 0..60 {
        gate.penalize(format!("user:{user}:{}", "x".repeat(100)), user + 1).await.unwrap();
    }
    let mut terminal = Terminal::run(&program, &[&TOP[..], &["--limit", "50"]].concat());
    terminal.see("60 of 100");
    for (rows, columns) in [(5, 30), (1, 1), (2, 200), (50, 200)] {
        terminal.resize(rows, columns);
    }
    terminal.see("user:59");
    terminal.see("user:20");
    terminal.press("q");
    assert_eq!(terminal.end(), 0);
}

#[tokio::test]
async fn top_shows_errors_and_still_handles_keys() {
    let server = Server::process(&[]).unwrap();
    let program = Program::at(server.url());
    gate(&program).penalize("user:1", 7).await.unwrap();
    let mut terminal = Terminal::run(&program, &[&TOP[..], &["--timeout", "2s"]].concat());
    terminal.see("user:1");
    let paused = server.pause().unwrap();
    terminal.see("timed out after 2s");
    terminal.see("user:1");
    drop(paused);
    terminal.see("q quits");
    let _paused = server.pause().unwrap();
    terminal.press("q");
    assert_eq!(terminal.end(), 0);
}

#[tokio::test]
async fn top_draws_nothing_if_the_first_read_fails() {
    let program = Program::at("redis://127.0.0.1:1");
    let mut terminal = Terminal::run(&program, &TOP);
    terminal.see("Connection refused");
    assert_eq!(terminal.end(), 3);
    assert!(!terminal.raw().contains("\x1b[?1049h"));
}
