//! The screenshots of the documentation: written by an ignored test, since fonts differ between machines.
#![allow(clippy::print_stdout, reason = "prints sizes and times, which no test asserts")]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::super::html::fixture::OPERATOR;
use super::driver::{Browser, Scheme};
use super::fleet;

/// Name, page, width and scheme of each.
const SHOTS: [(&str, &str, u32, Scheme); 6] = [
    ("overview", "/", 1280, Scheme::Light),
    ("overview-dark", "/", 1280, Scheme::Dark),
    ("overview-phone", "/", 390, Scheme::Light),
    ("key", "/key?key=mallory%40example.net", 1280, Scheme::Light),
    ("gates", "/gates", 1280, Scheme::Light),
    ("rules", "/rules", 1280, Scheme::Dark),
];

/// The folder of all screenshots: smaller than this.
const MAX_BYTES: u64 = 400_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes docs/operate/img"]
async fn long_form_screenshots_of_the_documentation_are_written() {
    let folder = match std::env::var("TIDEGATE_SCREENSHOTS") {
        Ok(folder) => folder.into(),
        Err(_) => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/img"),
    };
    fs::create_dir_all(&folder).unwrap();
    let files = tempfile::tempdir().unwrap();
    let console = fleet::start(files.path()).await;
    let browser = Browser::start().await;
    browser.log_in(&console, OPERATOR).await;
    browser.sees("deny requests").await;
    let all = std::env::var("TIDEGATE_SCREENSHOTS").is_ok();
    let more = if all { fleet::MORE_SHOTS } else { &[] };
    for (name, path, width, scheme) in SHOTS.iter().chain(more) {
        browser.prefer(*scheme).await;
        browser.resize(*width).await;
        browser.open(&console, path).await;
        let picture = STANDARD.decode(browser.screenshot().await).unwrap();
        fs::write(folder.join(name).with_extension("webp"), picture).unwrap();
    }
    let bytes: u64 = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    eprintln!("{} kB of screenshots", bytes / 1_000);
    assert!(all || bytes < MAX_BYTES, "{bytes}");
    browser.close().await;
    console.stop().await;
}

/// The picture of the README: the program's own demo, after some minutes of its traffic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes docs/operate/img/demo.webp; needs the program, and TIDEGATE_DEMO_MINUTES of traffic (5)"]
async fn long_form_picture_of_the_demo_is_written() {
    let minutes = std::env::var("TIDEGATE_DEMO_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("tidegate");
    let ports = ["--grpc-addr", "--http-addr", "--admin-addr"].map(|port| [port, "127.0.0.1:0"]);
    let mut demo = Command::new(program);
    demo.args(["--json", "serve", "--demo"]).args(ports.concat()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut demo = demo.spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let started = lines.next_line().await.unwrap().unwrap();
    let started: serde_json::Value = serde_json::from_str(&started).unwrap();
    tokio::time::sleep(Duration::from_secs(60 * minutes)).await;
    let browser = Browser::start().await;
    browser.prefer(Scheme::Light).await;
    browser.resize(1280).await;
    browser.visit(&format!("http://{}/", started["admin_addr"].as_str().unwrap())).await;
    browser.sees("deny requests").await;
    let picture = STANDARD.decode(browser.screenshot().await).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/img");
    fs::write(folder.join("demo.webp"), picture).unwrap();
    browser.close().await;
}
