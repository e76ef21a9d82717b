//! The memory of hostile rule files, as a multiple of their size.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::program::Program;
use crate::support::plan;

/// The size of the files. Larger ones take a minute, and are for the long form.
const SIZE: usize = 2 << 20;
/// The kinds that take most memory, for the short form.
const LARGEST: [&str; 6] = ["shared", "nested", "alternating", "deep", "mistakes", "wildcards"];

/// The maximum resident memory per byte of a file, beyond [`SPARE_BYTES`] and that of a file with one rule.
const MAX_FACTOR: u64 = 10;
const SPARE_BYTES: u64 = 8 << 20;

/// The maximum runs until one is observed: a process can end before its memory is read.
const MAX_RUNS: usize = 100;

/// Returns the highest resident memory observed while the program validates this text, in bytes.
fn peak_bytes(name: &str, text: &str) -> u64 {
    let path = std::env::temp_dir().join(format!("tidegate-{}-{name}.yaml", std::process::id()));
    fs::write(&path, text).unwrap();
    let peak_kb = (0..MAX_RUNS).map(|_| observed_peak_kb(&path)).find(|kb| *kb > 0);
    fs::remove_file(path).unwrap();
    peak_kb.expect("no run was observed") * 1_024
}

/// Returns the highest resident memory of one run, or 0 if it was never read.
fn observed_peak_kb(path: &Path) -> u64 {
    let program = Program::at("redis://127.0.0.1:1");
    let mut command = program.command(["rules", "validate", path.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let [executable, status] = ["exe", "status"].map(|file| format!("/proc/{}/{file}", child.id()));
    let own = std::env::current_exe().unwrap();
    let mut peak_kb = 0;
    while child.try_wait().unwrap().is_none() {
        // The child of a moment has the memory of this process until it executes the program.
        let text = match fs::read_link(&executable) {
            Ok(executable) if executable != own => fs::read_to_string(&status).unwrap_or_default(),
            _ => continue,
        };
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kb: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak_kb = kb.unwrap_or(0).max(peak_kb);
        thread::sleep(Duration::from_millis(1));
    }
    peak_kb
}

fn rules(head: &str, rule: impl Fn(usize) -> String, tail: &str) -> String {
    let size = if plan::is_long_run() { 2 * SIZE } else { SIZE };
    let mut text = head.to_owned();
    for at in 0.. {
        if text.len() > size {
            break;
        }
        text.push_str(&rule(at));
    }
    text + tail
}

#[test]
fn memory_of_a_rule_file_is_bounded_by_its_size() {
    let head = "domain: d\ndescriptors:\n";
    let block = |at| {
        format!(
            "  - key: user\n    value: user-{at:06}\n    rate_limit:\n      unit: minute\n      requests_per_unit: 100\n"
        )
    };
    let shared = |at| match at {
        0 => "  - { key: k, rate_limit: &shared { unit: day, requests_per_unit: 5 } }\n".to_owned(),
        _ => format!("  - {{ key: user, value: user-{at:06}, rate_limit: *shared }}\n"),
    };
    let limit = |at| format!("rate_limit: &l{at} {{ unit: day, requests_per_unit: {} }}", at + 5);
    let nested = |at| match at {
        0 => format!("  - {{ key: k, {} }}\n", limit(0)),
        _ => format!(
            "  - {{ key: user, value: user-{at:06}, descriptors: [{{ key: ip, rate_limit: *l0 }}] }}\n"
        ),
    };
    let alternating = |at| match at {
        0..5 => format!("  - {{ key: k{at}, {} }}\n", limit(at)),
        _ => format!("  - {{ key: user, value: user-{at:06}, rate_limit: *l{} }}\n", at % 5),
    };
    let mixed = |at| match at % 2 {
        0 => format!("&a{at} [1],"),
        _ => "*a,[[[[1]]]],".to_owned(),
    };
    let stars = "*a".repeat(16);
    let wildcards =
        |at| format!("  - {{ key: a{at}, value: '{stars}', rate_limit: {{ unlimited: true }} }}\n");
    let addresses: String = (0..1_000).map(|at| format!("1.1.{}.{},", at / 250, at % 250)).collect();
    let networks =
        |at| format!("  - {{ key: a{at}, networks: [{addresses}], rate_limit: {{ unlimited: true }} }}\n");
    let candidates = |at| {
        format!(
            "  - {{ key: a, value: {at}, rate_limit: {{ unit: day, requests_per_unit: {}, candidate: {{ requests_per_unit: 1 }} }} }}\n",
            at + 2
        )
    };
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        writeln!(laughs, "a{level}: &a{level} [{below}]").unwrap();
    }
    // So short a run may be observed only at its start.
    let least = (0..10).map(|_| peak_bytes("least", &(head.to_owned() + &block(0)))).max().unwrap();
    let mut report = String::new();
    let mut is_exceeded = false;
    for (name, text) in [
        ("block", rules(head, block, "")),
        ("shared", rules(head, shared, "")),
        ("nested", rules(head, nested, "")),
        ("alternating", rules(head, alternating, "")),
        ("deep", rules("domain: d\ndescriptors: [", |_| "[[[[1]]]],".to_owned(), "]")),
        ("mixed", rules("domain: d\nx: [&a [1,1,1,1,1,1,1,1,1,1],", mixed, "]")),
        ("wildcards", rules(head, wildcards, "")),
        ("networks", rules(head, networks, "")),
        ("candidates", rules(head, candidates, "")),
        ("mistakes", rules(head, |_| "  - { key: a, rate_limit: { unit: dya } }\n".to_owned(), "")),
        ("numbers", rules("domain: d\ndescriptors: [", |_| "1,".to_owned(), "]")),
        ("lists", rules("domain: d\ndescriptors: [", |_| "[],".to_owned(), "]")),
        ("maps", rules("domain: d\ndescriptors: [", |_| "{a: 1},".to_owned(), "]")),
        ("laughs", rules(&laughs, |_| "# filler filler filler filler\n".to_owned(), "domain: d\n")),
        ("anchors", rules("domain: d\nx: [", |at| format!("&a{at} [1],"), "]")),
        ("aliases", rules("domain: d\nx: [&a [1,2,3,4,5,6,7,8],", |_| "*a,".to_owned(), "]")),
        ("comments", rules("domain: d\n", |_| "#\n".to_owned(), "")),
        ("documents", rules("domain: d\n", |_| "---\n".to_owned(), "")),
    ] {
        if !plan::is_long_run() && !LARGEST.contains(&name) {
            continue;
        }
        let size = text.len() as u64;
        let more = peak_bytes(name, &text).saturating_sub(least);
        writeln!(report, "{name}: {:.1} times", more as f64 / size as f64).unwrap();
        is_exceeded |= more > MAX_FACTOR * size + SPARE_BYTES;
    }
    eprintln!("{report}");
    assert!(!is_exceeded, "{report}");
}
