//! Measures how long rules take to load, and how long a descriptor takes to find its rule:
//! `cargo run --release -p tidegate-rules --example rules_matching`.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::fmt::Write;
use std::time::{Duration, Instant};

use tidegate::Limiter;
use tidegate_rules::{ConfigErrors, Descriptor, Rules};

const KEYS: [&str; 5] = ["service", "region", "path", "method", "user"];
/// The number of values on each level: 10,000 rules.
const WIDTHS: [u64; 5] = [10, 10, 10, 2, 5];
const LOOKUPS: u64 = 200_000;

fn main() -> Result<(), ConfigErrors> {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    write_level(0, &mut text);
    let start = Instant::now();
    let rules = Rules::parse("rules.yaml", &text)?;
    let loaded = start.elapsed();
    let start = Instant::now();
    let limits = rules.bind(&Limiter::in_memory());
    let bound = start.elapsed();
    println!(
        "{} rules, {} deep: loaded in {loaded:.0?}, gates made in {bound:.0?}",
        rules.iter().count(),
        KEYS.len()
    );

    let mut times: Vec<Duration> = (0..LOOKUPS)
        .map(|lookup| {
            let values = values(lookup);
            let start = Instant::now();
            let entries = KEYS.iter().zip(&values);
            let descriptor =
                entries.fold(Descriptor::new(), |descriptor, (key, value)| descriptor.entry(key, value));
            let rule = limits.rules().find("d", &descriptor);
            let took = start.elapsed();
            assert!(rule.is_some());
            took
        })
        .collect();
    times.sort_unstable();
    let percentile = |percent: usize| times[times.len() * percent / 100];
    println!("a rule is found in {:?} (median), {:?} (p99)", percentile(50), percentile(99));
    measure_wildcards()
}

/// Measures the slowest lookup: a value of 8 KiB that nearly matches the most patterns a key can have.
fn measure_wildcards() -> Result<(), ConfigErrors> {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for at in 0..1_000 {
        let limit = "rate_limit: { unit: minute, requests_per_unit: 5 }";
        let _ = writeln!(text, "  - {{ key: path, value: 'a*aaab*aaaab*{at}*a', {limit} }}");
    }
    let rules = Rules::parse("wildcards.yaml", &text)?;
    let value = "a".repeat(8_192);
    let mut times: Vec<Duration> = (0..1_000)
        .map(|_| {
            let start = Instant::now();
            let rule = rules.find("d", &Descriptor::new().entry("path", &value));
            let took = start.elapsed();
            assert!(rule.is_none());
            took
        })
        .collect();
    times.sort_unstable();
    println!("8 KiB that match none of 1,000 patterns: {:?} (median), {:?} (p99)", times[500], times[990]);
    Ok(())
}

/// Writes one level of rules. The values on the third level are prefixes.
fn write_level(level: usize, out: &mut String) {
    let indent = "    ".repeat(level);
    let star = if level == 2 { "*" } else { "" };
    for value in 0..WIDTHS[level] {
        let _ = writeln!(out, "{indent}  - key: {}\n{indent}    value: v{value}{star}", KEYS[level]);
        if level + 1 < KEYS.len() {
            let _ = writeln!(out, "{indent}    descriptors:");
            write_level(level + 1, out);
        } else {
            let _ = writeln!(out, "{indent}    rate_limit: {{ unit: minute, requests_per_unit: 5 }}");
        }
    }
}

/// Returns values that match a pseudo-random rule.
fn values(lookup: u64) -> [String; 5] {
    let mut rest = lookup.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let mut level = 0;
    WIDTHS.map(|width| {
        let suffix = if level == 2 { "/list" } else { "" };
        let value = format!("v{}{suffix}", rest % width);
        rest /= width;
        level += 1;
        value
    })
}
