//! Tests each spelling of a path in docs/reference/spoofing.md.

use std::collections::HashSet;

use http::request::Parts;
use tidegate_http::{Descriptors, Key};
use tidegate_rules::Rules;

use super::expanded;

/// Returns the request targets of the page, with the key that each yields.
fn spellings() -> Vec<(String, &'static str)> {
    let page = include_str!("../../../../docs/reference/spoofing.md");
    let (_, page) = page.split_once("\n## Spellings of a path\n").unwrap();
    let rows = page.lines().filter_map(|row| row.strip_prefix("| `"));
    let rows = rows.map(|row| {
        let (target, rest) = row.split_once("` | `").unwrap();
        (expanded(target), rest.split_once("` | ").unwrap().0)
    });
    let rows: Vec<_> = rows.collect();
    let targets: HashSet<_> = rows.iter().map(|(target, _)| target).collect();
    assert_eq!(rows.len(), targets.len(), "a duplicate row");
    assert!(rows.len() >= 54, "only {} rows were found", rows.len());
    rows
}

fn parts(target: &str) -> Parts {
    http::Request::get(target).body(()).unwrap().into_parts().0
}

#[test]
fn each_spelling_of_a_path_yields_the_documented_key() {
    for (target, expected) in spellings() {
        let found = Key::path().of(&parts(&target)).unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), expected, "{target}");
    }
}

#[test]
fn rules_and_keys_agree_on_each_spelling() {
    let rules = "domain: d\nrate_limits:
  - actions: [{ path: {} }]
  - actions: [{ request_headers: { header_name: ':path', descriptor_key: path } }]";
    let (rules, descriptors) = (Rules::parse("d.yaml", rules).unwrap(), Descriptors::of("d"));
    for (target, _) in spellings() {
        let parts = parts(&target);
        let path = Key::path().of(&parts).unwrap();
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let read = descriptors.read(&rules, &parts).unwrap();
        let expected = [path.clone(), [&path, query.as_bytes()].concat()]
            .map(|value| tidegate_rules::Descriptor::new().entry_owned("path", value));
        assert_eq!(read, expected, "{target}");
    }
}
