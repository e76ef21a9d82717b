//! Rules that are valid, but probably a mistake.

use std::sync::{Arc, Mutex};

use tidegate::{Event, Limiter, ManualClock, Observer, Warning};
use tidegate_rules::{Descriptor, Loader, Rules};

use super::loading::Folder;
use crate::support::fixture::soon;
use crate::support::world::START;

/// Each text and its warnings: line, column and message, and after ` = ` the hint.
const EXPECTED: &[(&str, &[&str])] = &[
    ("{ domain: api, descriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 1 } }] }", &[]),
    (
        "domain: api\ndescriptors: []",
        &["1:9 the domain `api` has no `descriptors`: every request passes = add its rules"],
    ),
    (
        "domain: api
descriptors:
  - key: path
    value: ^/api/.*$
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: path
    value: '[a-z]+'
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: path
    value: /(login|signup)
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: path
    value: /users/{id}
    rate_limit: { unit: day, requests_per_unit: 1 }",
        &[
            "4:12 `^/api/.*$` looks like a regular expression, but is matched literally except `*` = did you mean `/api/*`?",
            "7:12 `[a-z]+` looks like a regular expression, but is matched literally except `*` = write `*` for any characters, and one descriptor for each alternative",
            "10:12 `/(login|signup)` looks like a regular expression, but is matched literally except `*` = write `*` for any characters, and one descriptor for each alternative",
            "13:12 `{id}` is matched literally = write `/users/*`, or use the action `path_template`",
        ],
    ),
    (
        "domain: api
rate_limits:
  - actions: [{ path_template: { descriptor_key: route } }]
descriptors:
  - { key: path_template, value: '/users/{id}', rate_limit: 1/d }
  - { key: route, value: '/users/{id}', rate_limit: 1/d }
  - { key: path, value: '/users/:id/x', rate_limit: 1/d }
  - { key: route, value: '/users/:id', rate_limit: 1/d }",
        &[
            "7:25 `:id` is matched literally = write `/users/*/x`, or use the action `path_template`",
            "8:26 `:id` is matched literally = write `{id}`, as the routes of axum and actix-web",
        ],
    ),
    (
        "domain: api
descriptors:
  - { key: ip, value: 10.0.0.0/8, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: ip, value: '2001:db8::1/64', rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: remote_address, value: 10.1.0.0/16, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: remote_address, value: '2001:db8::/64', rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: masked_remote_address, value: 10.1.0.0/16, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: path, value: /10, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: generic_key, value: 10.1.0.0/16, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: ip, value: 10.0.0.1, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: masked_remote_address, value: 10.1.2.3/8, rate_limit: { unit: day, requests_per_unit: 1 } }",
        &[
            "3:23 the value `10.0.0.0/8` is matched as text, so no address matches it = did you mean `networks: [10.0.0.0/8]`?",
            "4:23 the value `2001:db8::1/64` is matched as text, so no address matches it = did you mean `networks: [2001:db8::/64]`?",
            "5:35 the value `10.1.0.0/16` is matched as text, so no address matches it = did you mean `networks: [10.1.0.0/16]`?",
            "11:42 the value `10.1.2.3/8` has bits set after its prefix, so no client's network is equal to it = did you mean `10.0.0.0/8`?",
        ],
    ),
    (
        "domain: api
name: xds-resource
descriptors:
  - { key: user*, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: path, value: /api/**/x, rate_limit: { unit: day, requests_per_unit: 1, name: slow } }
  - { key: path, value: /free, rate_limit: { unlimited: true, requests_per_unit: 5 } }
  - { key: path, value: /all, rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: slw }, { name: fast }] } }",
        &[
            "4:12 a `key` is matched literally: this one matches only a key that contains `*` = put the `*` into a `value`",
            "5:25 `**` matches the same as `*`: any characters, also `/` = write `*`",
            "6:82 `requests_per_unit` has no effect beside `unlimited` = remove one of them",
            "7:97 no rule of `api` has the name `slw`, so it replaces nothing = did you mean `slow`?",
            "7:112 no rule of `api` has the name `fast`, so it replaces nothing = give a rule of this domain the `name`, or remove it",
        ],
    ),
    (
        "domain: api
descriptors:
  - key: remote_address
    networks: [10.0.0.0/8, '2001:db8::/64', '2001:db8::1']
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: server
    networks: ['2001:db8::1']
    rate_limit: { unit: day, requests_per_unit: 1 }",
        &[
            "4:45 `2001:db8::1/128` contains no client whose address is its /64 = write the /64, unless the service sets a longer `ClientIp::ipv6_prefix`",
        ],
    ),
    (
        "domain: api
descriptors:
  - key: remote_address
    networks:
      - 2002::/16
      - 64:ff9b::/96
      - 2002:cb00:7100::/40
      - 64:ff9b::cb00:7107
      - 2002:a00::/24
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: masked_remote_address
    networks: ['2002:cb00:7107::/48', '2001:db8::1']
    rate_limit: { unit: day, requests_per_unit: 1 }
  - key: server
    networks: ['2002::/16']
    rate_limit: { unit: day, requests_per_unit: 1 }",
        &[
            "5:9 `2002::/16` contains no public client: the IPv4 address inside of a 6to4 or NAT64 address is the client's = write IPv4 networks: 203.0.113.0/24 instead of 2002:cb00:7100::/40, for example",
            "6:9 `64:ff9b::/96` contains no public client: the IPv4 address inside of a 6to4 or NAT64 address is the client's = write IPv4 networks: 203.0.113.0/24 instead of 2002:cb00:7100::/40, for example",
            "7:9 `2002:cb00:7100::/40` contains no public client: the IPv4 address inside of a 6to4 or NAT64 address is the client's = write `203.0.113.0/24`",
            "8:9 `64:ff9b::cb00:7107/128` contains no public client: the IPv4 address inside of a 6to4 or NAT64 address is the client's = write `203.0.113.7/32`",
            "12:16 `2002:cb00:7107::/48` contains no public client: the IPv4 address inside of a 6to4 or NAT64 address is the client's = write `203.0.113.7/32`",
        ],
    ),
    (
        "domain: api
descriptors:
  - key: user
    value: monitor
  - key: user
    shadow_mode: true
    descriptors:
      - key: path
        descriptors: []
      - key: method
  - key: user
    value: ada
    descriptors:
      - key: path
      - key: method
        rate_limit: { unlimited: true }",
        &[
            "3:10 no limit at or below this descriptor: requests that match it pass = add a `rate_limit`, or to admit them on purpose `rate_limit: { unlimited: true }`",
            "5:10 no limit at or below this descriptor: requests that match it pass = add a `rate_limit`, or to admit them on purpose `rate_limit: { unlimited: true }`",
            "6:18 `shadow_mode` has no effect: this descriptor has no `rate_limit` = move it to the descriptors that have one",
            "14:14 no limit at or below this descriptor: requests that match it pass = add a `rate_limit`, or to admit them on purpose `rate_limit: { unlimited: true }`",
        ],
    ),
    (
        "domain: api
rate_limits:
  - actions:
      - request_headers: { header_name: x-user, descriptor_key: usr }
  - actions:
      - request_headers: { header_name: x-user, descriptor_key: user }
      - path: {}
  - actions:
      - request_headers: { header_name: x-user, descriptor_key: user, skip_if_absent: true }
      - method: {}
  - actions:
      - generic_key: { descriptor_value: slw }
  - actions:
      - generic_key: { descriptor_value: slow }
  - actions:
      - method: {}
      - path: {}
      - remote_address: {}
descriptors:
  - { key: user, rate_limit: { unit: day, requests_per_unit: 1 } }
  - key: method
    rate_limit: { unit: day, requests_per_unit: 1 }
    descriptors: [{ key: path, descriptors: [{ key: remote_address, rate_limit: { unlimited: true } }] }]
  - { key: generic_key, value: slow, rate_limit: { unit: day, requests_per_unit: 1 } }",
        &[
            "4:9 no rule matches the descriptors of these actions: no match for the key `usr`; available: `generic_key`, `method`, `user`; did you mean `user`? = add a rule for them, or remove the actions",
            "7:9 no rule matches the descriptors of these actions: no match for the key `path`: no rule continues at this level = add a rule for them, or remove the actions",
            "12:9 no rule matches the descriptors of these actions: no match for the value `slw` of `generic_key`; available: `slow`; did you mean `slow`? = add a rule for them, or remove the actions",
        ],
    ),
    (
        "domain: api
rate_limits: [{ actions: [{ method: {} }, { path: {} }] }]
descriptors:
  - key: method
    descriptors: [{ key: path, descriptors: [{ key: user, rate_limit: { unlimited: true } }] }]",
        &[
            "2:43 no rule matches the descriptors of these actions: no `rate_limit` for descriptors that end with `path` = add a rule for them, or remove the actions",
        ],
    ),
];

/// A request without the header has a descriptor that only begins with the next action.
#[test]
fn action_whose_key_no_rule_has_is_no_mistake_if_its_entry_can_be_omitted() {
    let text = |more: &str| {
        format!(
            "domain: api
rate_limits:
  - actions:
      - request_headers: {{ header_name: x-debug, descriptor_key: debug{more} }}
      - method: {{}}
descriptors: [{{ key: method, rate_limit: {{ unlimited: true }} }}]"
        )
    };
    assert_eq!(describe(&Rules::parse("a.yaml", &text(", skip_if_absent: true")).unwrap()), [""; 0]);
    let warnings = describe(&Rules::parse("a.yaml", &text("")).unwrap());
    assert!(warnings.len() == 1 && warnings[0].contains("no match for the key `debug`"), "{warnings:?}");
}

pub(super) fn describe(rules: &Rules) -> Vec<String> {
    let text = rules.warnings().iter().map(|warning| {
        let hint = warning.suggestion().unwrap_or_default();
        format!("{}:{} {} = {hint}", warning.line(), warning.column(), warning.message())
    });
    text.collect()
}

/// Records the observer's notifications.
#[derive(Clone, Default)]
struct Warned(Arc<Mutex<Vec<Warning>>>);

impl Observer for Warned {
    fn on(&self, event: &Event<'_>) {
        if let Event::Warned(warning) = *event {
            self.0.lock().unwrap().push(warning.clone());
        }
    }

    fn reports_warnings(&self) -> bool {
        true
    }
}

impl Warned {
    fn recorded(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(Warning::to_string).collect()
    }
}

#[test]
fn each_warning_is_reported_with_its_line_and_column() {
    for (text, expected) in EXPECTED {
        let rules = Rules::parse("a.yaml", text).unwrap();
        assert_eq!(describe(&rules), *expected, "{text}");
    }
}

#[test]
fn warning_shows_the_line_like_an_error() {
    let text = "domain: api\ndescriptors: [{ key: path, value: ^/a$, rate_limit: { unlimited: true } }]";
    let rules = Rules::parse("a.yaml", text).unwrap();
    let shown = rules.warnings()[0].to_string();
    assert!(shown.starts_with("a.yaml:2:35: `^/a$` looks like a regular expression"), "{shown}");
    assert!(shown.contains("^^^^") && shown.ends_with("did you mean `/a`?"), "{shown}");
}

#[test]
fn actions_and_rules_in_different_files_of_one_domain_belong_together() {
    let mapping = "{ domain: d, rate_limits: [{ actions: [{ method: {} }] }] }";
    let rules = "{ domain: d, descriptors: [{ key: method, rate_limit: { unlimited: true } }] }";
    let merging = Loader::new().merge_domains(true);
    for order in [[("a", mapping), ("b", rules)], [("a", rules), ("b", mapping)]] {
        assert!(merging.parse(order).unwrap().warnings().is_empty());
    }
    let other = rules.replace("method", "path");
    let merged = merging.parse([("a", mapping), ("b", &other)]).unwrap();
    assert_eq!(merged.warnings()[0].file(), "a");
}

#[test]
fn warnings_of_a_file_are_bounded() {
    let descriptors: String = (0..500).map(|at| format!("  - key: k{at}\n")).collect();
    let rules = Rules::parse("a.yaml", &format!("domain: d\ndescriptors:\n{descriptors}")).unwrap();
    assert_eq!(rules.warnings().len(), 100);
}

#[tokio::test]
async fn load_and_each_reload_report_the_warnings_to_the_limiter() {
    let folder = Folder::new("warnings");
    let text = |key: &str| format!("domain: d\ndescriptors:\n  - key: {key}\n  - key: other\n");
    folder.write("a.yaml", text("first"));
    let warned = Warned::default();
    let limiter = Limiter::builder().in_memory().observer(warned.clone()).build().unwrap();
    let _watched = Loader::new().watch(&folder.0, &limiter).unwrap();
    let expected = "/a.yaml:3:10: no limit at or below this descriptor: requests that match it pass; add a `rate_limit`, or to admit them on purpose `rate_limit: { unlimited: true }` (and 1 more: `tidegate rules validate` lists them) [rules-file]";
    assert_eq!(warned.recorded().len(), 1);
    assert!(warned.recorded()[0].ends_with(expected), "{:?}", warned.recorded());
    folder.write("a.yaml", text("second"));
    soon("the reload is reported", async || warned.recorded().len() == 2).await;
    assert!(warned.recorded()[1].ends_with(expected), "{:?}", warned.recorded());
}

#[test]
fn tiers_and_changed_rules_redefine_no_gate() {
    let warned = Warned::default();
    let limiter = Limiter::builder().in_memory().observer(warned.clone()).build().unwrap();
    for units in [5, 9] {
        let limit = format!(
            "{{ unit: day, requests_per_unit: {units}, tiers: {{ pro: {{ requests_per_unit: 50 }} }} }}"
        );
        let text = format!("{{ domain: d, descriptors: [{{ key: k, rate_limit: {limit} }}] }}");
        let _ = Rules::parse("d.yaml", &text).unwrap().bind(&limiter);
    }
    assert_eq!(warned.recorded(), [""; 0]);
}

#[tokio::test]
async fn unknown_domain_is_counted_and_its_name_is_cut_and_escaped() {
    let clock = ManualClock::at(START);
    let warned = Warned::default();
    let builder = Limiter::builder().in_memory().manual_clock(clock.clone()).observer(warned.clone());
    let text = "{ domain: auth, descriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 1 } }] }";
    let limits = Rules::parse("auth.yaml", text).unwrap().bind(&builder.build().unwrap());
    let descriptor = [Descriptor::from([("k", "v")])];
    assert!(limits.check("auth", &descriptor).await.unwrap().is_domain_known());
    assert!(warned.recorded().is_empty());

    let unknown = limits.check("atuh", &descriptor).await.unwrap();
    assert!(unknown.is_allowed() && !unknown.is_domain_known());
    assert_eq!(
        warned.recorded(),
        [
            "a request names the domain `atuh`, which no rule file has, so no rule applies; available: `auth`; did you mean `auth`? [rules-domain-unknown]"
        ]
    );
    // Many names of clients make one warning a second.
    let long = "\n\u{1b}".to_owned() + &"x".repeat(10_000);
    for _ in 0..5 {
        assert!(!limits.check(&long, &descriptor).await.unwrap().is_domain_known());
    }
    assert_eq!(warned.recorded().len(), 1);
    clock.advance(std::time::Duration::from_secs(1));
    assert!(!limits.check(&long, &descriptor).await.unwrap().is_domain_known());
    assert_eq!(warned.0.lock().unwrap()[1].occurrences(), 6);
    let shown = &warned.recorded()[1];
    assert!(shown.contains("`\\n\\u{1b}xxx") && shown.len() < 300, "{shown}");
}
