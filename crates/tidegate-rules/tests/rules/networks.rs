//! Rules for the networks of clients.

use std::fmt::Write;

use tidegate::Limiter;
use tidegate_rules::{Descriptor, Limit, Rules};

const LISTS: &str = "
domain: api
descriptors:
  - key: remote_address
    networks: [10.0.0.0/8, '2001:db8::/32']
    rate_limit: { unlimited: true }
  - key: remote_address
    networks: [10.6.0.0/16, 203.0.113.7, 198.51.100.0/24]
    rate_limit: { unit: year, requests_per_unit: 0 }
  - key: remote_address
    value: 10.6.6.6
    rate_limit: { unit: year, requests_per_unit: 4 }
  - key: remote_address
    value: 192.0.*
    rate_limit: { unit: year, requests_per_unit: 3 }
  - key: remote_address
    networks: [192.0.2.0/24, 198.51.0.0/16]
    share_threshold: true
    descriptors:
      - key: path
        rate_limit: { unit: year, requests_per_unit: 2 }
    rate_limit: { unit: year, requests_per_unit: 2 }
  - key: remote_address
    rate_limit: { unit: year, requests_per_unit: 1 }
";

fn rules() -> Rules {
    Rules::parse("api.yaml", LISTS).unwrap()
}

/// Returns the path of the rule that matches an address.
fn path(rules: &Rules, address: &str) -> String {
    let rule = rules.find("api", &Descriptor::from([("remote_address", address)])).unwrap();
    rule.path().replace("api.remote_address", "")
}

#[test]
fn smallest_network_that_contains_the_address_matches() {
    let rules = rules();
    for (address, expected) in [
        ("10.0.0.0", "_10.0.0.0/8"),
        ("10.255.255.255", "_10.0.0.0/8"),
        ("11.0.0.0", ""),
        ("10.6.1.2", "_10.6.0.0/16"),
        ("10.6.6.6", "_10.6.6.6"),
        ("203.0.113.7", "_10.6.0.0/16"),
        ("203.0.113.8", ""),
        ("::ffff:10.1.2.3", "_10.0.0.0/8"),
        ("2001:db8:1:2::/64", "_10.0.0.0/8"),
        ("2001:db8::1", "_10.0.0.0/8"),
        ("2001:db9::/64", ""),
        // Larger than the network of the rule.
        ("2001::/16", ""),
        ("10.0.0.0/7", ""),
        // A network precedes a value with `*`.
        ("192.0.2.1", "_192.0.2.0/24"),
        ("192.0.3.1", "_192.0.*"),
        ("198.51.100.1", "_10.6.0.0/16"),
        ("198.51.7.1", "_192.0.2.0/24"),
        ("no address", ""),
        ("", ""),
    ] {
        assert_eq!(path(&rules, address), expected, "{address}");
    }
    let bytes = Descriptor::new().entry("remote_address", &[0xff_u8, 0x00][..]);
    assert_eq!(rules.find("api", &bytes).unwrap().path(), "api.remote_address");
}

#[tokio::test]
async fn networks_exempt_deny_and_share_a_count() {
    let limits = rules().bind(&Limiter::in_memory());
    let passed = async |address: &'static str, requests: usize| {
        let mut passed = 0;
        for _ in 0..requests {
            let descriptor = Descriptor::from([("remote_address", address)]);
            passed += usize::from(limits.check("api", &[descriptor]).await.unwrap().is_allowed());
        }
        passed
    };
    assert_eq!(passed("10.1.1.1", 5).await, 5);
    assert_eq!(passed("203.0.113.7", 5).await, 0);
    assert_eq!(passed("192.0.2.1", 1).await, 1);
    assert_eq!(passed("192.0.2.2", 5).await, 1, "all addresses share a count");
    assert_eq!(passed("198.51.9.9", 5).await, 0, "so do all networks of the descriptor");
    assert_eq!((passed("8.8.8.8", 5).await, passed("9.9.9.9", 5).await), (1, 1));
}

#[test]
fn rules_below_a_network_match_the_next_entry() {
    let below = Descriptor::from([("remote_address", "192.0.2.9"), ("path", "/")]);
    assert_eq!(rules().find("api", &below).unwrap().path(), "api.remote_address_192.0.2.0/24.path");
}

#[test]
fn explanation_names_the_network_and_those_that_were_passed_over() {
    let rules = rules();
    let explained = rules.explain("api", &Descriptor::from([("remote_address", "10.6.1.2")]));
    assert!(matches!(explained.limit(), Some(Limit::DenyAll(_))));
    let entry = &explained.matched()[0];
    assert_eq!(entry.by(), "the network `10.6.0.0/16`");
    assert_eq!(entry.passed_over(), ["the network `10.0.0.0/8`", "the key without a value"]);
}

#[test]
fn count_is_named_by_the_first_network_alone() {
    let name = |networks: &str| {
        let text = format!(
            "{{domain: d, descriptors: [{{key: k, networks: [{networks}], rate_limit: {{unit: day, requests_per_unit: 1}}}}]}}"
        );
        Rules::parse("d.yaml", &text).unwrap().iter().next().unwrap().gate_name()
    };
    assert_eq!(name("10.0.0.0/8"), name("10.0.0.0/8, 11.0.0.0/8"));
    assert_ne!(name("10.0.0.0/8"), name("11.0.0.0/8, 10.0.0.0/8"));
}

#[test]
fn key_has_at_most_10_000_networks_on_one_level() {
    let text = |networks: usize| {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        for part in 0..networks.div_ceil(5_000) {
            let numbers = part * 5_000..networks.min((part + 1) * 5_000);
            let list: Vec<_> = numbers.map(|at| format!("10.{}.{}.0/24", at / 256, at % 256)).collect();
            let list = list.join(", ");
            writeln!(text, "  - {{ key: k, networks: [{list}], rate_limit: {{ unlimited: true }} }}")
                .unwrap();
        }
        text
    };
    let rules = Rules::parse("d.yaml", &text(10_000)).unwrap();
    assert!(rules.find("d", &Descriptor::from([("k", "10.39.15.1")])).is_some());
    assert!(rules.find("d", &Descriptor::from([("k", "10.39.16.1")])).is_none());
    let errors = Rules::parse("d.yaml", &text(10_001)).unwrap_err();
    assert!(errors.to_string().contains("more than 10000 networks"), "{errors}");
}
