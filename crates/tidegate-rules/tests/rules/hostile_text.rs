//! Text of rule files that takes far more memory or time than its size, or is secret.

use std::fmt::Write;

use tidegate_rules::{ConfigErrors, Descriptor, Limit, Loader, Rules};

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
fn aliases_repeat_at_most_twice_the_text_of_a_file_and_64_kib() {
    let text = |length: usize, aliases: usize| {
        let aliases = "*a, ".repeat(aliases);
        format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{unlimited: true}}, metadata: {{a: [&a \"{}\", {aliases}]}}}}]",
            "x".repeat(length)
        )
    };
    let reasons = ": too many values for its size, too many aliases, or aliases of long texts";
    assert_eq!(message(&text(1_000_000, 30)), TOO_MUCH.to_owned() + reasons);
    for (length, aliases) in [(1_000, 60), (1_000_000, 1)] {
        let rules = Rules::parse("a.yaml", &text(length, aliases)).unwrap();
        let texts = rules.iter().next().unwrap().metadata().unwrap()["a"].as_array().unwrap();
        assert_eq!(texts.len(), 1 + aliases);
        assert!(texts.iter().all(|text| text.as_str().unwrap().len() == length));
    }
}

#[test]
fn anchor_on_a_text_that_is_not_in_the_file_as_it_is_names_the_reason() {
    let text = |value: &str| {
        format!(
            "domain: d\ndescriptors:\n  - key: k\n    value: &p {value}\n    rate_limit: {{ unlimited: true }}\n"
        )
    };
    // The text of a block begins on the line after its anchor.
    for (value, line) in [("\"caf\\u00e9\"", 4), ("one\n      two", 4), ("|\n      one\n      two", 5)] {
        let errors = errors(&text(value));
        let error = errors.iter().next().unwrap();
        assert_eq!(error.line(), line, "{value}");
        let reason = "an anchor on a text with escapes or of several lines is not supported";
        assert!(error.message().starts_with(reason), "{value}: {errors}");
    }
    assert_eq!(Rules::parse("a.yaml", &text("\"café\"")).unwrap().iter().count(), 1);
}

/// Each file alone may take much more memory than its size. Together they may not.
#[test]
fn small_files_of_a_folder_share_one_budget_for_their_aliases() {
    let load = |files: usize, rule: &str| {
        let text = |file| {
            format!(
                "domain: d{file}\ndescriptors: [{{key: k, rate_limit: {{unlimited: true}}, metadata: {rule}}}]"
            )
        };
        let texts: Vec<_> = (10..10 + files).map(|file| (file.to_string(), text(file))).collect();
        Loader::new().parse(texts.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    };
    let values = format!("{{a: &a [{}], b: [{}]}}", "1,".repeat(100), "*a,".repeat(80));
    let texts = format!("{{a: &a {}, b: [{}]}}", "x".repeat(1_000), "*a,".repeat(40));
    assert_eq!(load(1_000, "{}").unwrap().iter().count(), 1_000);
    for metadata in [values, texts] {
        assert_eq!(load(1, &metadata).unwrap().iter().count(), 1);
        let errors = load(2, &metadata).unwrap_err();
        let errors: Vec<_> = errors.iter().map(|error| (error.file(), error.message())).collect();
        assert_eq!((errors.len(), errors[0].0), (1, "11"), "{errors:?}");
        assert!(errors[0].1.starts_with(TOO_MUCH), "{errors:?}");
    }
}

/// Each bracket could begin a class or an alternative: to search the rest of the value from each would take minutes.
#[test]
fn brackets_of_a_long_value_take_linear_time() {
    let count = 1 << 20;
    for value in
        ["[".repeat(count), "(".repeat(count), "[]".repeat(count), "()".repeat(count), "\\".repeat(count)]
    {
        let text = format!(
            "domain: d\ndescriptors: [{{ key: k, value: '{value}', rate_limit: {{ unlimited: true }} }}]"
        );
        let rules = Rules::parse("a.yaml", &text).unwrap();
        assert!(rules.warnings().is_empty());
        assert!(rules.find("d", &Descriptor::new().entry("k", &value)).is_some());
    }
    let text = |value: &str| {
        format!("domain: d\ndescriptors: [{{ key: k, value: '{value}', rate_limit: {{ unlimited: true }} }}]")
    };
    let long = |bytes: usize| "[a-z]".to_owned() + &"x".repeat(bytes - 5);
    let warnings = |bytes| Rules::parse("a.yaml", &text(&long(bytes))).unwrap().warnings().len();
    assert_eq!((warnings(256), warnings(257)), (1, 0));
}

#[test]
fn value_with_more_than_16_stars_is_an_error() {
    let text = |stars: usize| {
        format!(
            "domain: d\ndescriptors: [{{ key: k, value: '{}b', rate_limit: {{ unlimited: true }} }}]",
            "*a".repeat(stars)
        )
    };
    assert_eq!(Rules::parse("a.yaml", &text(16)).unwrap().iter().count(), 1);
    assert_eq!(message(&text(17)), "a `value` has at most 16 `*`, not 17");
    // Searched for in each request, these parts would take 160 MB of memory.
    assert_eq!(message(&text(1 << 19)), "a `value` has at most 16 `*`, not 524288");
}

/// An error for each shows that none of them is compared with the others and inserted.
#[test]
fn values_with_stars_beyond_the_limit_are_only_counted() {
    let mut text =
        String::from("domain: d\ndescriptors:\n  - { key: k, rate_limit: &a { unlimited: true } }\n");
    for at in 0..3_000 {
        writeln!(text, "  - {{ key: k, value: '*{at}b', rate_limit: *a }}").unwrap();
    }
    let errors = errors(&text);
    assert_eq!((errors.iter().count(), errors.total()), (1_000, 2_000));
    let expected = "the key `k` has more than 1000 values with a `*` before their end";
    assert!(errors.iter().all(|error| error.message().starts_with(expected)));
}

/// A request compares the length of each with that of its prefix: counted anew, 8 MB of text per request.
#[test]
fn length_of_values_with_stars_is_not_counted_for_each_request() {
    let mut text = String::from(
        "domain: d\ndescriptors:\n  - { key: k, value: '*', rate_limit: { unlimited: true } }\n",
    );
    let long = "x".repeat(8_192);
    for at in 0..1_000 {
        writeln!(text, "  - {{ key: k, value: 'a*{long}{at}', rate_limit: {{ unlimited: true }} }}").unwrap();
    }
    let rules = Rules::parse("a.yaml", &text).unwrap();
    let descriptor = Descriptor::from([("k", "b")]);
    let found =
        (0..20_000).filter(|_| rules.find("d", &descriptor).is_some_and(|rule| rule.path() == "d.k_*"));
    assert_eq!(found.count(), 20_000);
}

/// A copy of the domain for each replaced name would take 20 GiB of memory.
#[test]
fn long_domain_is_not_copied_for_each_replaced_name() {
    let text = |name: &str| {
        let replaces =
            "{name: a},".repeat(20_000).replacen("{name: a}", &format!("{{name: {name}}}"), 19_000);
        let limit = |more: &str| format!("rate_limit: {{unit: day, requests_per_unit: 1, {more}}}");
        format!(
            "{{domain: \"{}\", descriptors: [{{key: a, {}}}, {{key: b, {}}}]}}",
            "d".repeat(1 << 20),
            limit("name: a"),
            limit(&format!("replaces: [{replaces}]")),
        )
    };
    assert_eq!(Rules::parse("a.yaml", &text("a")).unwrap().iter().count(), 2);
    let rules = Rules::parse("a.yaml", &text("b")).unwrap();
    let expected = format!("no rule of `{}…` has the name `b`, so it replaces nothing", "d".repeat(60));
    assert_eq!(rules.warnings().len(), 100);
    assert!(
        rules.warnings().iter().all(|warning| warning.message() == expected),
        "{:?}",
        rules.warnings()[0]
    );
}

#[test]
fn rule_with_more_than_1000_tiers_is_an_error() {
    let text = |tiers: usize| {
        let tiers: String = (0..tiers).map(|at| format!("t{at}: {{unlimited: true}}, ")).collect();
        format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: 1, tiers: {{{tiers}}}}}}}]"
        )
    };
    let rules = Rules::parse("a.yaml", &text(1_000)).unwrap();
    assert_eq!(rules.iter().next().unwrap().limit(Some("t999")), Limit::Unlimited);
    assert_eq!(message(&text(1_001)), "a rule has at most 1000 tiers, not 1001");
}

#[test]
fn more_values_than_a_rule_file_of_this_size_can_hold_are_an_error() {
    let message = message(&format!("domain: d\ndescriptors: [{}]", "1,".repeat(1_000_000)));
    assert!(message.starts_with(TOO_MUCH), "{message}");
}

#[test]
fn more_stars_than_files_of_this_size_can_have_are_an_error() {
    let text = |rules: usize| {
        let value = "*a".repeat(16);
        let rule = |at| format!("{{ key: k{at}, value: '{value}', rate_limit: {{ unlimited: true }} }}, ");
        format!("domain: d\ndescriptors: [{}]", (0..rules).map(rule).collect::<String>())
    };
    assert!(Rules::parse("a.yaml", &text(600)).is_ok());
    let message = message(&text(2_000));
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
fn warnings_of_one_long_line_and_of_unknown_names_take_linear_time() {
    // On one line, and each warning compares its name with all names: quadratic, it would take minutes.
    let mut text = String::from("{domain: d, descriptors: [");
    for rule in 0..40_000 {
        write!(
            text,
            "{{key: k{rule}, rate_limit: {{unit: day, requests_per_unit: 1, name: name{rule}, replaces: [{{name: nane{rule}x}}]}}}}, "
        )
        .unwrap();
    }
    assert_eq!(Rules::parse("a.yaml", &(text + "]}")).unwrap().warnings().len(), 100);
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
