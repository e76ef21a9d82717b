//! `docs/operate/cli.md` and `--help` agree.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::program::Program;
use super::rules::File;

const DOCS: &str = include_str!("../../../../docs/operate/cli.md");
/// Documents the options of `serve` that are settings.
const SERVE_DOCS: &str = include_str!("../../../../docs/operate/serve.md");

/// Returns the commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect()
}

/// Returns the long options in a text.
fn flags(help: &str) -> BTreeSet<String> {
    let words = help.split(|character: char| !(character.is_ascii_alphanumeric() || character == '-'));
    let is_name = |word: &str| word.starts_with(|character: char| character.is_ascii_alphanumeric());
    let flags = words.filter(|word| word.strip_prefix("--").is_some_and(is_name));
    flags.map(str::to_owned).filter(|flag| flag != "--help" && flag != "--version").collect()
}

#[test]
fn each_command_and_each_option_is_documented() {
    let program = Program::at("");
    let help = |args: &[&str]| {
        let ran = program.run([args, &["--help"]].concat());
        ran.assert(0, &[]);
        ran.out
    };
    let mut expected = flags(&help(&[]));
    let mut names = Vec::new();
    for command in commands(&help(&[])) {
        let text = help(&[&command]);
        expected.extend(flags(&text));
        for inner in commands(&text) {
            expected.extend(flags(&help(&[&command, &inner])));
            names.push(format!("{command} {inner}"));
        }
        names.push(command);
    }
    assert!(names.len() >= 13 && expected.len() >= 30, "{names:?} {expected:?}");
    for word in names.iter().chain(&expected) {
        let setting = word.trim_start_matches("--").replace('-', "_");
        let is_documented = DOCS.contains(&format!("`{word}`"))
            || DOCS.contains(&format!("`{word} "))
            || SERVE_DOCS.contains(&format!("\n| `{setting}` |"));
        assert!(is_documented, "docs/operate/cli.md does not document `{word}`");
    }
    let own_lines: Vec<&str> =
        DOCS.lines().filter(|line| !line.trim_start().starts_with("cargo install ")).collect();
    let known = flags(&own_lines.join("\n"));
    let unknown: Vec<&String> = known.difference(&expected).collect();
    assert!(unknown.is_empty(), "docs/operate/cli.md documents {unknown:?}, which do not exist");
}

#[test]
fn exit_codes_are_the_same_in_help_and_docs() {
    let help = Program::at("").run(["--help"]).out;
    let codes = |line: &str| {
        let (code, meaning) = line.trim_start().split_once("  ")?;
        Some((code.parse::<u8>().ok()?, meaning.to_owned()))
    };
    let in_help: Vec<(u8, String)> =
        help.lines().skip_while(|line| *line != "Exit codes:").filter_map(codes).collect();
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        Some((cells.next()?.parse::<u8>().ok()?, cells.next()?.to_owned()))
    };
    let in_docs: Vec<(u8, String)> =
        DOCS.lines().filter(|line| line.starts_with('|')).filter_map(row).collect();
    assert_eq!(in_help.len(), 5);
    assert_eq!(in_docs, in_help);
}

/// Returns the names of an object's fields.
fn fields(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn each_field_of_a_json_object_is_documented() {
    let program = Program::shared();
    let valid = File::new(
        "docs-valid",
        "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}",
    );
    let invalid = File::new("docs-invalid", "{domain: d, descriptors: [{key: k, rate_limit: {unit: dya}}]}");
    let gate = program.json(0, &["check", "u", "--gate", "g", "--token-bucket", "2", "--rate", "1/h"]);
    let request = program.json(0, &["check", "--rules", valid.path(), "--domain", "d", "-d", "k=v"]);
    let no_rule = program.json(1, &["rules", "validate", invalid.path()]);
    for (row, object) in [
        ("`check`, `peek` of a gate", &gate),
        ("`check`, `peek` of a request", &request),
        ("`check`, `peek` of a request", &request["outcomes"][0]),
        ("`inspect`, `top` of keys", &program.json(0, &["inspect", "u"])),
        ("`inspect`, `top` of keys", &program.json(0, &["inspect", "u"])["states"][0]),
        ("`inspect`, `top` of keys", &program.json(0, &["inspect", "--gate", "g"])),
        ("`inspect`, `top` of keys", &program.json(0, &["top", "--once"])),
        ("`inspect` of a namespace", &program.json(0, &["inspect"])),
        ("`inspect` of a namespace", &program.json(0, &["inspect"])["gates"][0]),
        ("`gates`", &program.json(0, &["gates"])),
        ("`gates`", &program.json(0, &["gates"])["gates"][0]),
        ("`block`, `unblock`", &program.json(0, &["block", "u", "--gate", "g", "--for", "1h", "--yes"])),
        ("`block`, `unblock`", &program.json(0, &["unblock", "u", "--gate", "g", "--yes"])),
        ("`rules validate`", &program.json(0, &["rules", "validate", valid.path()])),
        ("`rules validate`", &no_rule),
        ("`rules validate`", &no_rule["errors"][0]),
    ] {
        // The table of the objects is the last one.
        let row = DOCS.lines().rfind(|line| line.starts_with(&format!("| {row} |"))).unwrap();
        for field in fields(object) {
            assert!(row.contains(&format!("`{field}`")), "docs/operate/cli.md omits `{field}`: {row}");
        }
    }
    // The decision of a request has no fields of a stored state.
    let of_request = fields(&request["outcomes"][0]["decision"]);
    let missing: Vec<&str> = fields(&gate).difference(&of_request).copied().collect();
    assert_eq!(missing, ["blocked_for_us", "notes", "quota", "redis_key"]);
    assert!(DOCS.contains("`decision` as above without `redis_key`, `quota`, `blocked_for_us` and `notes`;"));
    assert!(!fields(&no_rule).contains("rules"));
}

#[test]
fn completions_are_valid_shell_code() {
    let program = Program::at("");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = program.run(["completions", shell]);
        ran.assert(0, &["tidegate", "COMPLETE"]);
    }
    let script = program.run(["completions", "bash"]).out;
    let mut bash = Command::new("bash").args(["-n", "/dev/stdin"]).stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
    program.run(["completions", "csh"]).assert(2, &["possible values"]);
}
