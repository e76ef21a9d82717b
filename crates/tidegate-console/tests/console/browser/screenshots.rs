//! The screenshots of the documentation: written by an ignored test, since fonts differ between machines.
#![allow(clippy::print_stdout, reason = "prints sizes and times, which no test asserts")]

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;

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
