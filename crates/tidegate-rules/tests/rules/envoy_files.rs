//! Files that envoyproxy/ratelimit loads are loaded, with the same rules.

use std::fs;

use tidegate::Limiter;
use tidegate_rules::{Descriptor, Limit, Loader, Rules};

use super::loading::Folder;
use super::warnings::describe;
use crate::support::fixture::soon;

fn written_for_envoy(text: &str) -> Rules {
    let loader = Loader::new().charge_each(true).written_for_envoy(true);
    loader.parse([("a.yaml", text)]).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

/// Returns the limit of `user=ada`: a number of requests, 0 for none, or `None` without a limit.
fn limit(rules: &Rules) -> Option<u64> {
    match rules.find("d", &Descriptor::from([("user", "ada")]))?.limit(None) {
        Limit::Quota(quota) => Some(quota.limit()),
        Limit::DenyAll(_) => Some(0),
        Limit::Unlimited => None,
    }
}

/// All fields as a program writes them that leaves none out.
#[test]
fn explicit_defaults_load_without_warnings() {
    let flags = "shadow_mode: false, quota_mode: false, detailed_metric: false, value_to_metric: false, share_threshold: false";
    let text = format!(
        "
name: ''
domain: d
descriptors:
  - {{ key: user, value: '', rate_limit: {{ requests_per_unit: 5, unit: hour, unlimited: false, name: '', replaces: [] }}, descriptors: [], {flags}, metadata: {{}} }}
  - {{ key: user, value: root, rate_limit: {{ requests_per_unit: 0, unit: '', unlimited: true, name: '', replaces: null }}, descriptors: null, {flags}, metadata: null }}
  - {{ key: path, value: '', rate_limit: null, descriptors: [{{ key: user, rate_limit: {{ unit: DAY, requests_per_unit: 1 }} }}], {flags}, metadata: {{}} }}"
    );
    for rules in [Rules::parse("a.yaml", &text).unwrap(), written_for_envoy(&text)] {
        assert_eq!(describe(&rules), [""; 0]);
        assert_eq!((limit(&rules), rules.iter().count()), (Some(5), 3));
        let root = rules.find("d", &Descriptor::from([("user", "root")])).unwrap();
        assert_eq!(root.limit(None), Limit::Unlimited);
        assert!(rules.find("d", &Descriptor::from([("path", "/")])).is_none());
    }
}

#[test]
fn mistakes_that_envoy_accepts_load_with_its_meaning_and_a_warning() {
    for (rule, expected, warnings) in [
        (
            "rate_limit: { unit: hour }",
            Some(0),
            &[
                "4:17 a rate_limit needs `requests_per_unit`: it denies every request = 0 denies all requests; `unlimited: true` admits all of them",
            ][..],
        ),
        (
            "rate_limit: { unit: hour, requests_per_unit: 5, requests_per_unit: 7 }",
            Some(7),
            &[
                "4:53 duplicate field `requests_per_unit`: the first is on line 4: this one counts = remove one of them",
            ],
        ),
        (
            "rate_limit: { unlimited: true, requests_per_unit: 7 }",
            None,
            &["4:55 `requests_per_unit` has no effect beside `unlimited` = remove one of them"],
        ),
        (
            "rate_limit: { unit: hour, requests_per_unit: 7, shadow_mode: true }",
            Some(7),
            &["4:53 a rate_limit has no field `shadow_mode`: it has no effect = it belongs in a descriptor"],
        ),
        (
            "unit: hour",
            None,
            &[
                "3:10 no limit at or below this descriptor: requests that match it pass = add a `rate_limit`, or to admit them on purpose `rate_limit: { unlimited: true }`",
                "4:5 a descriptor has no field `unit`: it has no effect = it belongs in a rate_limit",
            ],
        ),
        (
            "rate_limit: { unit: hour, requests_per_unit: 7 }\n    shadow_mode: true\n    quota_mode: true",
            Some(7),
            &[
                "6:17 `quota_mode` cannot be combined with `shadow_mode`, which denies nothing: `quota_mode` has no effect = remove one of them",
            ],
        ),
    ] {
        let text = format!("domain: d\ndescriptors:\n  - key: user\n    {rule}\n");
        let rules = written_for_envoy(&text);
        assert_eq!(describe(&rules), warnings, "{text}");
        assert_eq!(limit(&rules), expected, "{text}");
        assert_eq!(Rules::parse("a.yaml", &text).is_ok(), rule.contains("unlimited"), "{text}");
    }
}

/// The YAML of Go has the forms of YAML 1.1.
#[test]
fn yaml_means_the_same() {
    let text = "
domain: d
descriptors:
  - &first
    key: user
    rate_limit: { unit: hour, requests_per_unit: 1_000 }
    shadow_mode: yes
  - <<: *first
    value: root";
    let rules = written_for_envoy(text);
    assert_eq!((describe(&rules), limit(&rules)), (vec![], Some(1_000)));
    assert_eq!(rules.iter().filter(|rule| rule.is_shadow()).count(), 2);
}

/// Its service rejects the fields that have these tables.
#[test]
fn tables_that_envoy_does_not_have_are_read_strictly() {
    for more in ["tiers: { gold: { requests_per_unit: 5, unit: second } }", "lease: { unit: second }"] {
        let text = format!(
            "{{ domain: d, descriptors: [{{ key: user, rate_limit: {{ unit: hour, requests_per_unit: 9, {more} }} }}] }}"
        );
        let loader = Loader::new().written_for_envoy(true);
        let errors = loader.parse([("a.yaml", &*text)]).expect_err(&text).to_string();
        assert!(errors.contains("has no field `unit`"), "{errors}");
    }
}

#[test]
fn list_of_descriptors_that_is_written_twice_counts_once() {
    let limit_of =
        |units| format!("[{{ key: user, rate_limit: {{ unit: hour, requests_per_unit: {units} }} }}]");
    let text = format!("{{ domain: d, descriptors: {}, descriptors: {} }}", limit_of(3), limit_of(4));
    assert_eq!(limit(&written_for_envoy(&text)), Some(4));
    assert!(Rules::parse("a.yaml", &text).is_err());
}

#[tokio::test]
async fn folder_of_envoy_can_be_empty_at_the_start_and_later() {
    let folder = Folder::new("envoy-empty");
    let text = "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: hour, requests_per_unit: 5 } }]";
    let loader = Loader::new().written_for_envoy(true);
    let loaded = loader.load(&folder.0).unwrap();
    let expected =
        "0:0 no file in this folder ends in .yaml or .yml = add rules: without a file, every request passes";
    assert_eq!((describe(&loaded), loaded.iter().count()), (vec![expected.to_owned()], 0));
    assert!(Rules::load(&folder.0).is_err());

    let watched = loader.watch(&folder.0, &Limiter::in_memory()).unwrap();
    let rules = || watched.limits().rules().iter().count();
    assert_eq!(rules(), 0);
    folder.write("a.yaml", text);
    soon("the rule is loaded", async || rules() == 1).await;
    fs::remove_file(folder.0.join("a.yaml")).unwrap();
    soon("the rule is removed", async || rules() == 0).await;
}
