//! Copies the output and the source of examples into README.md and the pages of `docs/guide` and
//! `docs/operate`.
//!
//!     cargo run --all-features --example readme
//!     cargo run --all-features --example readme -- --check
//!
//! A block between `<!-- output: NAME -->` and `<!-- end -->` is the output of the example with this name. A
//! block that begins with `<!-- source: NAME -->` is the example's source, without its leading comment and up to
//! the first other comment at the start of a line. With
//! `--check`, the program writes nothing, and a block that differs is an error. In a block marked
//! `<!-- output: NAME, within 20 % -->`, numbers may differ by that much, since bytes depend on Redis's
//! version and allocator.
#![allow(clippy::print_stdout, reason = "a program for the command line")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;

type Failure = Box<dyn std::error::Error>;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const FOLDERS: [&str; 2] = ["docs/guide", "docs/operate"];
const EXAMPLES: [&str; 2] = ["examples", "crates/tidegate-http/examples"];
const UPDATE: &str = "cargo run --all-features --example readme";
const BEGINS: [&str; 2] = ["<!-- output: ", "<!-- source: "];
const END: &str = "<!-- end -->";

/// Copies the output and the source of examples into the documentation.
#[derive(Debug, Parser)]
struct Options {
    /// Only compare, and fail if a block differs
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("the documentation differs from the output of the examples. To update it: {UPDATE}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("readme: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Updates or checks all pages. Returns whether they were up to date, or `true` after an update.
fn run(options: &Options) -> Result<bool, Failure> {
    let mut are_current = true;
    for page in pages()? {
        are_current &=
            update(&page, options.check).map_err(|error| format!("{}: {error}", page.display()))?;
    }
    Ok(are_current)
}

/// Returns the paths of README.md and of the Markdown pages in the folders, in order.
fn pages() -> Result<Vec<PathBuf>, Failure> {
    let root = Path::new(ROOT);
    let mut pages = vec![root.join("README.md")];
    for folder in FOLDERS {
        for entry in fs::read_dir(root.join(folder)).map_err(|error| format!("{folder}: {error}"))? {
            pages.push(entry?.path());
        }
    }
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    Ok(pages)
}

/// Updates or checks a page. Returns whether it was up to date, or `true` after an update.
fn update(page: &Path, check: bool) -> Result<bool, Failure> {
    let text = fs::read_to_string(page)?;
    let mut new = String::new();
    let mut is_current = true;
    let mut rest = text.as_str();
    while let Some((at, begin)) = BEGINS.iter().filter_map(|begin| Some((rest.find(begin)?, begin))).min() {
        let (before, from) = (&rest[..at], &rest[at + begin.len()..]);
        let (mark, from) = from.split_once(" -->\n").ok_or("a mark without ` -->` at the end of its line")?;
        let (old, after) = from.split_once(END).ok_or_else(|| format!("{begin}{mark}: {END} is missing"))?;
        let (name, percent) = parse(mark)?;
        let block = if *begin == BEGINS[0] { block(&output_of(name)?) } else { source_of(name)? };
        if check && !alike(old, &block, percent) {
            print_difference(page, name, old, &block);
            is_current = false;
        }
        new += &format!("{before}{begin}{mark} -->\n{block}{END}");
        rest = after;
    }
    if !check {
        fs::write(page, new + rest)?;
    }
    Ok(is_current)
}

/// Parses `NAME` or `NAME, within P %`.
fn parse(mark: &str) -> Result<(&str, f64), Failure> {
    let Some((name, tolerance)) = mark.split_once(", ") else { return Ok((mark, 0.0)) };
    let percent = tolerance.strip_prefix("within ").and_then(|rest| rest.strip_suffix(" %"));
    let percent = percent.ok_or_else(|| format!("output: {mark}: expected `, within P %`"))?;
    Ok((name, percent.parse()?))
}

fn source_of(example: &str) -> Result<String, Failure> {
    let mut paths = EXAMPLES.iter().map(|folder| format!("{ROOT}/{folder}/{example}.rs"));
    let path = paths.find(|path| Path::new(path).exists()).ok_or_else(|| format!("no example {example}"))?;
    let source = fs::read_to_string(path)?;
    let code = source.lines().skip_while(|line| line.starts_with("//!"));
    let code = code.take_while(|line| !line.starts_with("// ")).collect::<Vec<_>>().join("\n");
    let code = code.trim_end();
    // `ignore`, since the source is already compiled as an example, and a doctest would need its features.
    Ok(format!("```rust,ignore\n{code}\n```\n"))
}

fn output_of(example: &str) -> Result<String, Failure> {
    // One of the examples runs the program `tidegate`. Building the whole workspace keeps the features that its
    // dependencies have; otherwise cargo would compile the dependencies again.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    output(&cargo, &["build", "--quiet", "--workspace", "--all-features", "--bins", "--examples"])?;
    // This program is an example, too.
    let program = std::env::current_exe()?.with_file_name(example);
    output(&program.to_string_lossy(), &[])
}

fn output(program: &str, args: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command
        .args(args)
        .current_dir(ROOT)
        // The pages show the output with the default Redis.
        .env_remove("TIDEGATE_REDIS_URL");
    // The cargo that runs this program sets these variables. Build scripts depend on them, so passing them on
    // would rebuild half of all crates.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&*name);
        }
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(
            format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr)).into()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Formats a block: tables unchanged, all other output as text.
fn block(output: &str) -> String {
    let output = output.trim_end();
    if output.starts_with('|') { format!("\n{output}\n\n") } else { format!("```text\n{output}\n```\n") }
}

/// Returns whether both are equal. With `percent`, compares word by word, and numbers may differ by that
/// much.
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

fn print_difference(page: &Path, name: &str, old: &str, new: &str) {
    println!("--- {}: {name}\n+++ cargo run --example {name}", page.display());
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let is_same = |(a, b): &(&&str, &&str)| a == b;
    let start = old.iter().zip(&new).take_while(is_same).count();
    let max_common = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take_while(is_same).count().min(max_common);
    old[start..old.len() - end].iter().for_each(|line| println!("-{line}"));
    new[start..new.len() - end].iter().for_each(|line| println!("+{line}"));
}
