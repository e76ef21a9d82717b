//! Text of rule files that takes far more memory or time than its size, or is secret.

use std::fmt::Write;

use tidegate_rules::{ConfigErrors, Rules};

use super::loading::Folder;

const TOO_MUCH: &str = "this YAML would take too much memory";

fn errors(text: &str) -> ConfigErrors {
    Rules::parse("a.yaml", text).unwrap_err()
}

fn message(text: &str) -> String {
    errors(text).iter().next().unwrap().message().to_owned()
}

#[test]
fn nested_aliases_that_multiply_are_an_error() {
    let mut text = String::from("domain: d\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        writeln!(text, "a{level}: &a{level} [{below}]").unwrap();
    }
    let message = message(&text);
    assert!(message.starts_with(TOO_MUCH), "{message}");
}

#[test]
fn many_aliases_of_one_long_text_are_an_error_or_share_the_text() {
    let aliases = "*a, ".repeat(30);
    // This text is in the file as it is, so that the aliases share it.
    let shared = format!("domain: d\nlong: [&a \"{}\", {aliases}]", "x".repeat(1_000_000));
    assert!(message(&shared).contains("has no field `long`"));
    // This one is not, because of the escape.
    let message = message(&shared.replacen("xx", "\\u0078x", 1));
    assert!(message.starts_with(TOO_MUCH), "{message}");
}

#[test]
fn more_values_than_a_rule_file_of_this_size_can_hold_are_an_error() {
    let message = message(&format!("domain: d\ndescriptors: [{}]", "1,".repeat(1_000_000)));
    assert!(message.starts_with(TOO_MUCH), "{message}");
}

#[test]
fn more_stars_than_files_of_this_size_can_have_are_an_error() {
    let rule = |stars: usize| {
        let limit = "rate_limit: { unlimited: true }";
        format!("domain: d\ndescriptors: [{{ key: a, value: '{}', {limit} }}]", "*a".repeat(stars))
    };
    assert!(Rules::parse("a.yaml", &rule(10_000)).is_ok());
    let message = message(&rule(1_000_000));
    assert_eq!(message, "the values of all rules have too many `*` for the size of the files");
}

#[test]
fn number_of_any_length_is_a_text_as_written() {
    let number = format!("0.{}", "1".repeat(100_000));
    let text = format!("domain: d\ndescriptors: [{{ key: {number}, rate_limit: {{ unlimited: true }} }}]");
    let rules = Rules::parse("a.yaml", &text).unwrap();
    assert_eq!(rules.iter().next().unwrap().path(), format!("d.{number}"));
}

#[test]
fn deeply_nested_values_are_an_error() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
        let deep = format!("domain: d\ndescriptors:\n  {}1{}", open.repeat(100_000), close.repeat(100_000));
        // The parser or the budget rejects it, depending on the kind.
        let message = message(&deep);
        assert!(message.starts_with(TOO_MUCH) || message.starts_with("invalid YAML"), "{message}");
    }
}

#[test]
fn long_key_above_many_rules_is_an_error() {
    let long = "k".repeat(1_000);
    let below: String = (0..5_000)
        .map(|rule| format!("{{key: k{rule}, rate_limit: {{unit: day, requests_per_unit: 1}}}}, "))
        .collect();
    let text = format!("domain: d\ndescriptors: [{{key: {long}, descriptors: [{below}]}}]");
    let message = message(&text);
    assert!(message.starts_with("the keys and values above the rules are too long"), "{message}");
    let rules = Rules::parse("a.yaml", &text.replace(&long, &long[..100])).unwrap();
    assert_eq!(rules.iter().count(), 5_000);
}

#[test]
fn rules_with_shared_settings_by_aliases_are_valid() {
    let mut text = String::from("domain: d\ndescriptors:\n");
    writeln!(text, "  - {{ key: k, rate_limit: &shared {{ unit: day, requests_per_unit: 5 }} }}").unwrap();
    for rule in 0..20_000 {
        writeln!(text, "  - {{ key: user, value: user{rule}, rate_limit: *shared }}").unwrap();
    }
    assert_eq!(Rules::parse("a.yaml", &text).unwrap().iter().count(), 20_001);
}

#[test]
fn smallest_rules_are_within_the_budget_of_values() {
    let rule = |at: usize| {
        format!("{{key: a{at}, descriptors: [{{key: b, rate_limit: {{unit: day, requests_per_unit: 1}}}}]}}")
    };
    let rules: Vec<String> = (0..50_000).map(rule).collect();
    let text = format!("{{domain: d, descriptors: [{}]}}", rules.join(","));
    assert_eq!(Rules::parse("a.yaml", &text).unwrap().iter().count(), 50_000);
}

#[test]
fn first_1000_of_100_000_errors_are_kept_and_all_are_counted() {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for _ in 0..100_000 {
        text += "  - { key: a, rate_limit: { unit: dya, requests_per_unit: 1 } }\n";
    }
    // Each descriptor has a wrong unit, and all but the first are duplicates.
    let errors = errors(&text);
    assert_eq!((errors.iter().count(), errors.total()), (1_000, 199_999));
    let suggestions = errors.iter().filter(|error| error.suggestion() == Some("did you mean `day`?"));
    assert!((40..=100).contains(&suggestions.count()));
    let shown = errors.to_string();
    assert!(shown.ends_with("\n\n... and 199899 more"), "{}", &shown[shown.len() - 100..]);
    assert!(shown.len() < 50_000);
}

#[test]
fn errors_of_one_long_line_and_of_unknown_names_take_linear_time() {
    // On one line, and each error compares its name with all names: quadratic, it would take minutes.
    let mut text = String::from("{domain: d, descriptors: [");
    for rule in 0..40_000 {
        write!(
            text,
            "{{key: k{rule}, rate_limit: {{unit: day, requests_per_unit: 1, name: name{rule}, replaces: [{{name: nane{rule}x}}]}}}}, "
        )
        .unwrap();
    }
    let errors = errors(&(text + "]}"));
    assert_eq!((errors.iter().count(), errors.total()), (1_000, 40_000));
}

#[test]
fn message_does_not_repeat_a_huge_value() {
    let huge = "x".repeat(1_000_000);
    for text in [
        format!("domain: d\ndescriptors: [{{ key: a, rate_limit: {{ unit: {huge} }} }}]"),
        format!("domain: d\n{huge}: 1"),
        format!("domain: d\n? {huge}\n: 1"),
        format!("domain: d\ndescriptors: {huge}"),
        format!("domain: {huge}\n---\ndomain: {huge}"),
    ] {
        let text = errors(&text).to_string();
        assert!(text.len() < 5_000, "{} bytes", text.len());
    }
}

#[test]
fn text_of_a_file_that_is_no_rule_file_is_not_shown() {
    let folder = Folder::new("secret");
    for secret in [
        "root:$6$SECRET:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
        "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n",
        "password: SECRET\n",
        "[client]\npassword = SECRET\n",
        "\tSECRET: [\n",
        "SECRET",
        "- SECRET\n- 2",
        "? SECRET\n: *unknown",
    ] {
        folder.write("shadow", secret);
        #[cfg(unix)]
        let _ = std::os::unix::fs::symlink(folder.0.join("shadow"), folder.0.join("a.yaml"));
        #[cfg(not(unix))]
        folder.write("a.yaml", secret);
        let errors = Rules::load(&folder.0).unwrap_err();
        assert!(!format!("{errors} {errors:?}").contains("SECRET"), "{errors}");
        let message = "not a rule file: it has none of the fields domain, descriptors and rate_limits";
        assert_eq!(errors.iter().next().unwrap().message(), message);
        assert_eq!(errors.total(), 1);
    }
    let text = "domain: d\n# SECRET\ndescriptors: [{ kee: 1 }]\n# SECRET\n";
    assert!(!errors(text).to_string().contains("SECRET"), "only the line of the error is shown");
}

#[test]
fn snippet_of_a_file_with_a_byte_order_mark_shows_the_word() {
    let text = errors("\u{feff}domain: d\ndescriptors: [{ key: a, kee: 1 }]").to_string();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines[3].find('^').unwrap();
    assert_eq!(&lines[2][at..at + 3], "kee", "{text}");
}
