//! Puts what the examples print, and what they are, into the README.
//!
//!     cargo run --all-features --example readme
//!     cargo run --all-features --example readme -- --check
//!
//! A block between `<!-- output: NAME -->` and `<!-- end -->` is what
//! `cargo run --example NAME` prints; one that begins with `<!-- source: NAME -->` is the
//! example itself, without the comment at its head. With `--check` nothing is written, and a
//! block that differs is an error. In a block marked `<!-- output: NAME, within
//! 20 % -->` numbers may differ by so much, since bytes depend on Redis's
//! version and allocator.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::process::{Command, ExitCode};

use clap::Parser;

type Failure = Box<dyn std::error::Error>;

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const MEND: &str = "cargo run --all-features --example readme";
const BEGINS: [&str; 2] = ["<!-- output: ", "<!-- source: "];
const END: &str = "<!-- end -->";

/// Puts what the examples print into the README.
#[derive(Debug, Parser)]
struct Options {
    /// Only compare
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("README.md is not what the examples print. To mend it: {MEND}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("readme: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the README is right now.
fn run(options: &Options) -> Result<bool, Failure> {
    let readme = std::fs::read_to_string(README).map_err(|error| format!("{README}: {error}"))?;
    let mut new = String::new();
    let mut is_right = true;
    let mut rest = readme.as_str();
    while let Some((at, begin)) = BEGINS.iter().filter_map(|begin| Some((rest.find(begin)?, begin))).min() {
        let (before, from) = (&rest[..at], &rest[at + begin.len()..]);
        let (mark, from) = from.split_once(" -->\n").ok_or("a mark of output that does not end its line")?;
        let (old, after) = from.split_once(END).ok_or_else(|| format!("{begin}{mark}: without {END}"))?;
        let (name, percent) = parse(mark)?;
        let block = if *begin == BEGINS[0] { block(&output_of(name)?) } else { source_of(name)? };
        if options.check && !alike(old, &block, percent) {
            print_difference(name, old, &block);
            is_right = false;
        }
        new += &format!("{before}{begin}{mark} -->\n{block}{END}");
        rest = after;
    }
    if !options.check {
        std::fs::write(README, new + rest)?;
    }
    Ok(is_right)
}

/// `NAME` or `NAME, within P %`.
fn parse(mark: &str) -> Result<(&str, f64), Failure> {
    let Some((name, tolerance)) = mark.split_once(", ") else { return Ok((mark, 0.0)) };
    let percent = tolerance.strip_prefix("within ").and_then(|it| it.strip_suffix(" %"));
    let percent = percent.ok_or_else(|| format!("output: {mark}: expected `, within P %`"))?;
    Ok((name, percent.parse()?))
}

fn source_of(example: &str) -> Result<String, Failure> {
    let path = format!("{}/examples/{example}.rs", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let code = source.lines().skip_while(|line| line.starts_with("//!")).collect::<Vec<_>>().join("\n");
    // Compiled and run as an example; here it would need features.
    Ok(format!("```rust,ignore\n{code}\n```\n"))
}

fn output_of(example: &str) -> Result<String, Failure> {
    // One of them runs the program `tidegate`. With the examples, whose dependencies have more features: else cargo
    // would build all dependencies once more.
    cargo(&["build", "--quiet", "--all-features", "--bins", "--examples"])?;
    cargo(&["run", "--quiet", "--all-features", "--example", example])
}

fn cargo(args: &[&str]) -> Result<String, Failure> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // What they use by themselves is what the README shows.
        .env_remove("TIDEGATE_REDIS_URL");
    // Set for us by the cargo that runs us. Build scripts look at them, so that
    // with them half of all crates would be built anew.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("cargo {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Tables as they are, all else as text.
fn block(output: &str) -> String {
    let output = output.trim_end();
    if output.starts_with('|') { format!("\n{output}\n\n") } else { format!("```text\n{output}\n```\n") }
}

/// The same; or word by word the same, but for numbers, which may differ by so much.
fn alike(old: &str, new: &str, percent: f64) -> bool {
    if percent == 0.0 {
        return old == new;
    }
    let number = |word: &str| word.trim_matches(['(', ')']).parse::<f64>().ok();
    let same = |(old, new): (&str, &str)| match (number(old), number(new)) {
        (Some(a), Some(b)) => (a - b).abs() * 100.0 <= percent * a.abs(),
        _ => old == new,
    };
    let (old, new) = (old.split_whitespace(), new.split_whitespace());
    old.clone().count() == new.clone().count() && old.zip(new).all(same)
}

fn print_difference(name: &str, old: &str, new: &str) {
    println!("--- README.md: {name}\n+++ cargo run --example {name}");
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let is_same = |(a, b): &(&&str, &&str)| a == b;
    let start = old.iter().zip(&new).take_while(is_same).count();
    let most = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count().min(most);
    old[start..old.len() - end].iter().for_each(|line| println!("-{line}"));
    new[start..new.len() - end].iter().for_each(|line| println!("+{line}"));
}
