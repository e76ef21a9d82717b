//! The matcher finds the same rule as a naive search.

use std::fmt::Write;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_rules::{Descriptor, Loader, Rules};

use super::warnings::describe;
use crate::support::plan;

/// Number of descriptors tried with each set of rules.
const DESCRIPTORS: usize = 200;

#[derive(Clone, Debug)]
struct Node {
    key: &'static str,
    value: &'static str,
    is_limited: bool,
    below: Vec<Self>,
}

const VALUES: [&str; 18] = [
    "", "*", "x", "x*", "xy", "xy*", "xyz*", "xz*", "y", "y*", "ya*", "yz", "*x", "x*y", "*y*", "x*y*",
    "*x*y", "*yz",
];

fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let leaf = (select(vec!["a", "b", "c"]), select(VALUES.to_vec()), any::<bool>())
        .prop_map(|(key, value, is_limited)| Node { key, value, is_limited, below: Vec::new() });
    let tree = leaf.prop_recursive(4, 60, 8, move |inner| {
        (select(vec!["a", "b", "c"]), select(VALUES.to_vec()), any::<bool>(), vec(inner, 0..8))
            .prop_map(|(key, value, is_limited, below)| Node { key, value, is_limited, below: unique(below) })
    });
    vec(tree, 1..12).prop_map(unique)
}

fn unique(nodes: Vec<Node>) -> Vec<Node> {
    let mut pairs = std::collections::HashSet::new();
    nodes.into_iter().filter(|node| pairs.insert((node.key, node.value))).collect()
}

/// Writes the rules as YAML. Each limit is the number of its rule in the order of the file, starting at 1.
fn write(nodes: &[Node], depth: usize, count: &mut u64, out: &mut String) {
    let indent = "  ".repeat(depth);
    for node in nodes {
        writeln!(out, "{indent}- key: {}", node.key).unwrap();
        if !node.value.is_empty() {
            writeln!(out, "{indent}  value: \"{}\"", node.value).unwrap();
        }
        if node.is_limited {
            *count += 1;
            writeln!(out, "{indent}  rate_limit: {{ unit: day, requests_per_unit: {count} }}").unwrap();
        }
        if !node.below.is_empty() {
            writeln!(out, "{indent}  descriptors:").unwrap();
            write(&node.below, depth + 1, count, out);
        }
    }
}

/// Finds the rule by the documented order of precedence, and returns its number.
fn naive(nodes: &[Node], entries: &[(&str, &str)], before: u64) -> Option<u64> {
    let ((key, value), rest) = entries.split_first()?;
    let mut numbered = Vec::new();
    let mut number = before;
    for node in nodes {
        numbered.push((number, node));
        number += limits(node);
    }
    numbered.retain(|(_, node)| node.key == *key);
    let exact = numbered.iter().find(|(_, node)| node.value == *value && !node.value.is_empty());
    let literal = |pattern: &str| pattern.len() - pattern.matches('*').count();
    // Of several with the greatest number, `min_by_key` returns the first.
    let wild = numbered
        .iter()
        .filter(|(_, node)| node.value.contains('*') && matches(node.value.as_bytes(), value.as_bytes()))
        .min_by_key(|(_, node)| std::cmp::Reverse(literal(node.value)));
    let any = numbered.iter().find(|(_, node)| node.value.is_empty());
    let (before, node) = exact.or(wild).or(any)?;
    let own = before + u64::from(node.is_limited);
    match rest {
        [] => node.is_limited.then_some(own),
        _ => naive(&node.below, rest, own),
    }
}

/// Tries every way to match.
fn matches(pattern: &[u8], value: &[u8]) -> bool {
    match (pattern.split_first(), value.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, value) || value.split_first().is_some_and(|(_, less)| matches(pattern, less))
        }
        (Some((letter, rest)), Some((other, less))) => letter == other && matches(rest, less),
        _ => false,
    }
}

fn limits(node: &Node) -> u64 {
    u64::from(node.is_limited) + node.below.iter().map(limits).sum::<u64>()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: plan::sequences() / 5, ..ProptestConfig::default() })]

    #[test]
    fn matcher_finds_the_same_rule_as_a_naive_search(
        nodes in nodes(),
        descriptors in vec(
            vec((select(vec!["a", "b", "c", "d"]), "[xyz]{0,3}"), 0..6),
            DESCRIPTORS,
        ),
    ) {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        write(&nodes, 1, &mut 0, &mut text);
        let rules = Rules::parse("random.yaml", &text).unwrap();
        for entries in &descriptors {
            let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (*key, value.as_str())).collect();
            let descriptor = entries
                .iter()
                .fold(Descriptor::new(), |descriptor, (key, value)| descriptor.entry(key, *value));
            let found = rules.find("d", &descriptor).map(|rule| rule.quota().unwrap().limit());
            prop_assert_eq!(found, naive(&nodes, &entries, 0), "{:?} in\n{}", entries, text);
        }
    }
}

/// Returns rules of the key `path` with these values. Each limit is the number of its value, starting at 1.
fn rules_with(values: &[&str]) -> Rules {
    load_with(&Loader::new(), values)
}

fn load_with(loader: &Loader, values: &[&str]) -> Rules {
    let limit = |at| format!("rate_limit: {{ unit: day, requests_per_unit: {at} }}");
    let descriptors = values
        .iter()
        .zip(1..)
        .map(|(value, at)| format!("  - {{ key: path, value: '{value}', {} }}\n", limit(at)));
    let descriptors: String = descriptors.collect();
    loader.parse([("d.yaml", &*format!("domain: d\ndescriptors:\n{descriptors}"))]).unwrap()
}

fn matched<'v>(values: &[&'v str], value: &str) -> Option<&'v str> {
    matched_by(&rules_with(values), values, value)
}

fn matched_by<'v>(rules: &Rules, values: &[&'v str], value: &str) -> Option<&'v str> {
    let rule = rules.find("d", &Descriptor::new().entry("path", value))?;
    Some(values[rule.quota().unwrap().limit() as usize - 1])
}

#[test]
fn exact_value_precedes_patterns_then_the_most_literal_characters_then_the_first_of_the_file() {
    let values = ["/api/*", "*/action", "/api/*/action", "/api/1/action", "*api*", "/a*", ""];
    for (value, expected) in [
        ("/api/1/action", Some("/api/1/action")),
        ("/api/2/action", Some("/api/*/action")),
        ("/api/2/other", Some("/api/*")),
        ("/x/action", Some("*/action")),
        ("/xapix", Some("*api*")),
        ("/ab", Some("/a*")),
        ("/b", Some("")),
    ] {
        assert_eq!(matched(&values, value), expected, "{value}");
    }
    assert_eq!(matched(&["x*", "*y"], "xy"), Some("x*"));
    assert_eq!(matched(&["*y", "x*"], "xy"), Some("*y"));
    assert_eq!(matched(&["*x*y", "*y*x"], "xyx"), Some("*y*x"));
    assert_eq!(matched(&["*x*", "x*y"], "xay"), Some("x*y"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: plan::sequences() / 5, ..ProptestConfig::default() })]

    /// Envoy's service takes the exact value, then the first of the file that matches, then the key without a value.
    #[test]
    fn rule_that_another_one_precedes_in_envoy_has_a_warning(
        values in Just(VALUES.to_vec()).prop_shuffle(),
        number in 1..VALUES.len(),
        tried in vec("[xyz]{0,4}", DESCRIPTORS),
    ) {
        let values = &values[..number];
        let rules = load_with(&Loader::new().written_for_envoy(true), values);
        // The first value is on line 3.
        let warned: Vec<&str> = rules.warnings().iter().map(|warning| values[warning.line() - 3]).collect();
        for value in &tried {
            let exact = values.iter().find(|other| *other == value && !value.is_empty());
            let wild = values.iter().find(|other| {
                other.contains('*') && matches(other.as_bytes(), value.as_bytes())
            });
            let in_envoy = exact.or(wild).or_else(|| values.iter().find(|other| other.is_empty())).copied();
            let here = matched_by(&rules, values, value);
            prop_assert!(here == in_envoy || warned.contains(&here.unwrap()), "{value} in {values:?}: {here:?}");
        }
    }
}

#[test]
fn only_values_that_some_text_matches_both_of_have_a_warning() {
    let warnings = |values: &[&str]| describe(&load_with(&Loader::new().written_for_envoy(true), values));
    assert_eq!(
        warnings(&["/api/*", "/api/*/action"]),
        [
            "4:25 values that also match the `value` at d.yaml:3 count here, since this one has more characters besides `*`; in envoyproxy/ratelimit they count there, since it is the first = move this descriptor before that one, so that both decide as here"
        ]
    );
    for disjoint in [
        &["/api/*/action", "/api/*"][..],
        &["/a/*", "/bcd/*"],
        &["*x", "*yyy"],
        &["*", "exact"],
        &["a*b", "a*c"],
        &["", "a*"],
    ] {
        assert_eq!(warnings(disjoint), [""; 0], "{disjoint:?}");
        assert_eq!(describe(&rules_with(disjoint)), [""; 0]);
    }
    assert_eq!(describe(&rules_with(&["/api/*", "/api/*/action"])), [""; 0], "the files are for tidegate");
}

/// A matcher that backtracks would need more than 10^60 steps.
#[test]
fn hostile_value_does_not_make_matching_backtrack() {
    let value = "a".repeat(100_000);
    let pattern = "*a".repeat(15) + "*b";
    assert_eq!(matched(&[&pattern], &value), None);
    assert_eq!(matched(&[&pattern], &(value + "b")), Some(&*pattern));
}

#[test]
fn explanation_names_the_pattern_and_the_less_specific_ones() {
    let rules = rules_with(&["/api/*", "/api/*/action", "*"]);
    let explained = rules.explain("d", &Descriptor::from([("path", "/api/1/action")]));
    let [entry] = explained.matched() else { panic!("{explained:?}") };
    assert_eq!(entry.by(), "the pattern `/api/*/action`");
    assert_eq!(entry.passed_over(), ["the prefix `/api/*`", "the prefix `*`"]);
    let unmatched = rules_with(&["/api/*/action"]);
    let unmatched = unmatched.explain("d", &Descriptor::from([("path", "/api/1/actio")]));
    assert_eq!(
        unmatched.why_not(),
        Some(
            "no match for the value `/api/1/actio` of `path`; available: `/api/*/action`; did you mean `/api/*/action`?"
        )
    );
}

#[test]
fn value_of_a_descriptor_can_be_an_integer() {
    let by_id = Descriptor::new().entry("user", &42);
    assert_eq!(by_id, Descriptor::new().entry("user", "42"));
    assert_eq!(by_id.to_string(), "user=42");
}

#[tokio::test]
async fn debug_shows_at_most_two_bytes_of_a_value() {
    let text = "domain: d\ndescriptors:\n  - { key: user, detailed_metric: true, rate_limit: { unit: day, requests_per_unit: 5 } }\n";
    let limits = Rules::parse("a.yaml", text).unwrap().bind(&tidegate::Limiter::in_memory());
    let descriptor = Descriptor::new().entry("user", "ann:secret:token").tier("secret tier");
    let decision = limits.check("d", std::slice::from_ref(&descriptor)).await.unwrap();
    assert!(decision.outcomes()[0].metric().unwrap().contains("secret"), "{decision:?}");
    let plan = limits.plan("d", std::slice::from_ref(&descriptor));
    assert_eq!(plan.checks()[0].key(), b"ann:secret:token");
    let limited =
        Descriptor::new().entry("user", "bob:secret:token").limit(7, Duration::from_secs(60)).unwrap();
    let limited_plan = limits.plan("d", std::slice::from_ref(&limited));
    let explained = limits.rules().explain("d", &descriptor);
    assert_eq!(explained.matched()[0].entry(), "user=ann:secret:token");
    let unmatched = Descriptor::new().entry("user", "x").entry("secret token", "secret token");
    let unmatched = limits.rules().explain("d", &unmatched);
    assert!(unmatched.why_not().unwrap().contains("secret token"));
    let shown = format!(
        "{descriptor:?} {decision:?} {:?} {plan:?} {limited:?} {limited_plan:?} {explained:?} {unmatched:?}",
        decision.outcomes()
    );
    assert!(shown.contains("limit: Some(Quota("), "{shown}");
    assert!(shown.contains("\"us…\" (21 bytes)"), "{shown}");
    assert!(shown.contains("\"an…\" (16 bytes)") && shown.contains("d.user"), "{shown}");
    assert!(!shown.contains("secret") && !shown.contains("token"), "{shown}");
}
