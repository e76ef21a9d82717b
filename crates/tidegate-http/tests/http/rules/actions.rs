//! The descriptors that `rate_limits` builds from a request.

use std::net::{Ipv4Addr, SocketAddr};

use http::Request;
use http::request::Parts;
use tidegate_http::{ClientIp, Descriptors, IpNet, Key, PeerAddr};
use tidegate_rules::{Descriptor, Rules};

#[derive(Clone)]
struct User(&'static str);

/// Returns the request's parts: `GET /users/42?plan=a%20b&plan=c&empty=` from 203.0.113.7.
fn parts(headers: &[(&str, &str)]) -> Parts {
    let request = Request::get("https://example.org/users/42?plan=a%20b&plan=c&empty=");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let mut parts = request.body(()).unwrap().into_parts().0;
    parts.extensions.insert(PeerAddr(SocketAddr::from(([203, 0, 113, 7], 4711))));
    parts.extensions.insert(User("ada"));
    parts
}

fn descriptors() -> Descriptors {
    Descriptors::of("d").extension("user", Key::extension(|user: &User| user.0))
}

fn rules(actions: &str) -> Rules {
    Rules::parse("d.yaml", &format!("domain: d\nrate_limits:\n  - actions: {actions}\n")).unwrap()
}

/// Asserts that the actions build these keys and values, or none.
#[track_caller]
fn assert_descriptors(actions: &str, headers: &[(&str, &str)], expected: &[(&str, &str)]) {
    let (rules, parts, descriptors) = (rules(actions), parts(headers), descriptors());
    let read = descriptors.read(&rules, &parts).unwrap();
    let expected =
        expected.iter().fold(Descriptor::new(), |descriptor, (key, value)| descriptor.entry(key, *value));
    let expected = if expected == Descriptor::new() { vec![] } else { vec![expected] };
    assert_eq!(read, expected, "{actions} of {headers:?}");
}

#[test]
fn each_action_builds_its_entry() {
    let headers = [("x-key", "k1"), ("x-key", "k2"), ("x-empty", "")];
    for (action, key, value) in [
        ("remote_address: {}", "remote_address", "203.0.113.7"),
        ("masked_remote_address: {}", "masked_remote_address", "203.0.113.7/32"),
        ("masked_remote_address: { v4_prefix_mask_len: 24 }", "masked_remote_address", "203.0.113.0/24"),
        ("request_headers: { header_name: X-Key, descriptor_key: key }", "key", "k1"),
        ("request_headers: { header_name: ':method', descriptor_key: m }", "m", "GET"),
        (
            "request_headers: { header_name: ':path', descriptor_key: p }",
            "p",
            "/users/42?plan=a%20b&plan=c&empty=",
        ),
        ("request_headers: { header_name: ':authority', descriptor_key: a }", "a", "example.org"),
        ("query_parameters: { query_parameter_name: plan, descriptor_key: plan }", "plan", "a b"),
        ("generic_key: { descriptor_value: all }", "generic_key", "all"),
        ("generic_key: { descriptor_value: all, descriptor_key: who }", "who", "all"),
        ("method: {}", "method", "GET"),
        ("path: {}", "path", "/users/42"),
        ("path: { descriptor_key: where }", "where", "/users/42"),
        ("extension: { name: user }", "user", "ada"),
        ("extension: { name: user, descriptor_key: who }", "who", "ada"),
    ] {
        assert_descriptors(&format!("[{{ {action} }}]"), &headers, &[(key, value)]);
    }
}

#[test]
fn ipv6_is_counted_by_its_network() {
    let mut parts = parts(&[]);
    parts.extensions.insert(PeerAddr("[2001:db8:1:2:3:4:5:6]:4711".parse().unwrap()));
    for (action, key, value) in [
        ("remote_address: {}", "remote_address", "2001:db8:1:2::/64"),
        ("masked_remote_address: {}", "masked_remote_address", "2001:db8:1:2::/64"),
        ("masked_remote_address: { v6_prefix_mask_len: 48 }", "masked_remote_address", "2001:db8:1::/48"),
        ("masked_remote_address: { v6_prefix_mask_len: 0 }", "masked_remote_address", "::/0"),
    ] {
        let (rules, descriptors) = (rules(&format!("[{{ {action} }}]")), descriptors());
        assert_eq!(descriptors.read(&rules, &parts).unwrap(), [Descriptor::from([(key, value)])], "{action}");
    }
}

#[test]
fn entry_with_methods_applies_to_these_alone() {
    let text = "domain: d
rate_limits:
  - { methods: [POST, PUT], actions: [{ path: {} }] }
  - { methods: [GET], actions: [{ generic_key: { descriptor_value: read } }] }
  - { actions: [{ method: {} }] }
";
    let rules = Rules::parse("d.yaml", text).unwrap();
    let (written, read) = (Some(("path", "/users/42")), Some(("generic_key", "read")));
    for (method, first) in
        [("GET", read), ("HEAD", read), ("POST", written), ("PUT", written), ("post", None), ("PATCH", None)]
    {
        let (descriptors, mut parts) = (descriptors(), parts(&[]));
        parts.method = method.parse().unwrap();
        let expected = first.into_iter().chain([("method", method)]).map(|entry| Descriptor::from([entry]));
        let expected: Vec<_> = expected.collect();
        assert_eq!(descriptors.read(&rules, &parts).unwrap(), expected, "{method}");
    }
}

#[test]
fn address_of_a_client_matches_the_networks_of_a_rule() {
    let text = "domain: d
descriptors:
  - { key: remote_address, networks: [203.0.113.0/24, '2001:db8:1::/48'], rate_limit: { unlimited: true } }
  - { key: remote_address, rate_limit: { unit: day, requests_per_unit: 1 } }
rate_limits: [{ actions: [{ remote_address: {} }] }]
";
    let rules = Rules::parse("d.yaml", text).unwrap();
    for (peer, is_listed) in [
        ("203.0.113.7:1", true),
        ("203.0.114.7:1", false),
        ("[::ffff:203.0.113.7]:1", true),
        ("[2001:db8:1:2:3:4:5:6]:1", true),
        ("[2001:db8:2::1]:1", false),
        ("[2002:cb00:7107::1]:1", true),
        ("[2002:a00:1::1]:1", false),
    ] {
        let mut parts = parts(&[]);
        parts.extensions.insert(PeerAddr(peer.parse().unwrap()));
        let descriptors = descriptors();
        let read = descriptors.read(&rules, &parts).unwrap();
        assert_eq!(rules.find("d", &read[0]).unwrap().is_unlimited(), is_listed, "{peer}");
    }
}

/// A rule for an IPv6 network matches the clients in it whose address stays the IPv6 address.
#[test]
fn loader_warns_of_the_6to4_and_nat64_addresses_that_count_as_ipv4() {
    for ipv4 in [
        [203, 0, 113, 7],
        [0, 1, 2, 3],
        [10, 1, 2, 3],
        [100, 63, 255, 255],
        [100, 64, 0, 0],
        [100, 127, 255, 255],
        [100, 128, 0, 0],
        [127, 0, 0, 1],
        [169, 254, 0, 1],
        [172, 15, 255, 255],
        [172, 16, 0, 0],
        [172, 31, 255, 255],
        [172, 32, 0, 0],
        [192, 168, 0, 1],
        [192, 169, 0, 0],
        [223, 255, 255, 255],
        [224, 0, 0, 1],
        [239, 255, 255, 255],
        [240, 0, 0, 1],
        [255, 255, 255, 254],
        [255, 255, 255, 255],
    ] {
        let [high, low] = [0, 2].map(|at| u16::from_be_bytes([ipv4[at], ipv4[at + 1]]));
        for address in [format!("2002:{high:x}:{low:x}::1"), format!("64:ff9b::{high:x}:{low:x}")] {
            let text = format!(
                "{{domain: d, descriptors: [{{key: remote_address, networks: ['{address}'], \
                 rate_limit: {{unlimited: true}}}}], rate_limits: [{{actions: [{{remote_address: {{}}}}]}}]}}"
            );
            let rules = Rules::parse("d.yaml", &text).unwrap();
            let warns = rules.warnings().iter().any(|it| it.message().contains("no public client"));
            let mut parts = parts(&[]);
            parts.extensions.insert(PeerAddr(format!("[{address}]:1").parse().unwrap()));
            let (ipv4, descriptors) = (Ipv4Addr::from(ipv4).to_string(), descriptors());
            let as_ipv4 = Descriptor::from([("remote_address", &*ipv4)]);
            let read = descriptors.read(&rules, &parts).unwrap();
            assert_eq!(warns, read == [as_ipv4], "{address}: {read:?}");
        }
    }
}

#[test]
fn only_trusted_proxies_are_believed() {
    let rules = rules("[{ remote_address: {} }]");
    let parts = parts(&[("x-forwarded-for", "198.51.100.1, 198.51.100.2")]);
    let read = |client_ip| {
        let descriptors = descriptors().client_ip(client_ip);
        let read = descriptors.read(&rules, &parts).unwrap();
        format!("{read:?}")
    };
    let networks: [IpNet; 1] = ["203.0.113.0/24".parse().unwrap()];
    let descriptors = [ClientIp::peer(), ClientIp::behind(networks).unwrap(), ClientIp::hops(2)].map(read);
    let expected = ["203.0.113.7", "198.51.100.2", "198.51.100.1"]
        .map(|address| format!("{:?}", [Descriptor::from([("remote_address", address)])]));
    assert_eq!(descriptors, expected);
}

#[test]
fn an_action_that_yields_nothing_yields_no_descriptor() {
    let absent = "request_headers: { header_name: x-absent, descriptor_key: a }";
    let kept = "generic_key: { descriptor_value: v }";
    let skipped = "request_headers: { header_name: x-absent, descriptor_key: a, skip_if_absent: true }";
    assert_descriptors(&format!("[{{ {kept} }}, {{ {absent} }}]"), &[], &[]);
    assert_descriptors(&format!("[{{ {kept} }}, {{ {skipped} }}]"), &[], &[("generic_key", "v")]);
    assert_descriptors(
        &format!("[{{ {kept} }}, {{ {skipped} }}]"),
        &[("x-absent", "x")],
        &[("generic_key", "v"), ("a", "x")],
    );
    assert_descriptors(&format!("[{{ {skipped} }}]"), &[], &[]);
    // An empty header value yields no descriptor.
    assert_descriptors(&format!("[{{ {kept} }}, {{ {absent} }}]"), &[("x-absent", "")], &[]);
    let parameter =
        |more: &str| format!("query_parameters: {{ query_parameter_name: {more}, descriptor_key: q }}");
    assert_descriptors(&format!("[{{ {} }}]", parameter("absent")), &[], &[]);
    assert_descriptors(&format!("[{{ {} }}]", parameter("empty")), &[], &[]);
    assert_descriptors(
        &format!("[{{ {kept} }}, {{ {} }}]", parameter("absent, skip_if_absent: true")),
        &[],
        &[("generic_key", "v")],
    );
}

#[test]
fn headers_and_parameters_are_matched_as_envoy_does() {
    let beta = [("x-beta", "Yes, please")];
    let more = [("x-beta", "no"), ("x-beta", "yes")];
    for (condition, beta_matches, more_matches, none_matches) in [
        ("name: x-beta", true, true, false),
        ("name: x-beta, present_match: false", false, false, true),
        ("name: x-beta, present_match: true, invert_match: true", false, false, true),
        ("name: x-beta, string_match: { exact: 'Yes, please' }", true, false, false),
        ("name: x-beta, string_match: { exact: 'yes, PLEASE' }", false, false, false),
        ("name: x-beta, string_match: { exact: 'yes, PLEASE', ignore_case: true }", true, false, false),
        // Several values are joined.
        ("name: x-beta, string_match: { exact: 'no,yes' }", false, true, false),
        ("name: x-beta, string_match: { prefix: 'Yes' }", true, false, false),
        ("name: x-beta, string_match: { prefix: 'longer than any of these' }", false, false, false),
        ("name: x-beta, string_match: { suffix: 'yes' }", false, true, false),
        ("name: x-beta, string_match: { contains: 's,' }", true, false, false),
        ("name: x-beta, string_match: { contains: 's,' }, invert_match: true", false, true, false),
        ("name: ':method', string_match: { exact: GET }", true, true, true),
    ] {
        for (headers, expected) in
            [(&beta[..], beta_matches), (&more[..], more_matches), (&[][..], none_matches)]
        {
            let action = |more: &str| {
                format!(
                    "[{{ header_value_match: {{ descriptor_value: v, headers: [{{ {condition} }}]{more} }} }}]"
                )
            };
            let entries: &[(&str, &str)] = if expected { &[("header_match", "v")] } else { &[] };
            assert_descriptors(&action(""), headers, entries);
            let entries: &[(&str, &str)] = if expected { &[] } else { &[("k", "v")] };
            assert_descriptors(&action(", expect_match: false, descriptor_key: k"), headers, entries);
        }
    }
    let both =
        "[{ header_value_match: { descriptor_value: v, headers: [{ name: x-beta }, { name: x-other }] } }]";
    assert_descriptors(both, &beta, &[]);
    assert_descriptors(both, &[("x-beta", "1"), ("x-other", "1")], &[("header_match", "v")]);
    for (condition, matches) in [
        ("name: plan, string_match: { exact: 'a b' }", true),
        ("name: plan, string_match: { exact: c }", false),
        ("name: empty", true),
        ("name: absent", false),
    ] {
        let action = format!(
            "[{{ query_parameter_value_match: {{ descriptor_value: v, query_parameters: [{{ {condition} }}] }} }}]"
        );
        assert_descriptors(&action, &[], if matches { &[("query_match", "v")] } else { &[] });
    }
}

#[test]
fn unknown_client_address_yields_none_instead_of_no_descriptors() {
    let (rules, descriptors) = (rules("[{ remote_address: {} }]"), descriptors());
    let mut parts = parts(&[]);
    parts.extensions.remove::<PeerAddr>();
    assert_eq!(descriptors.read(&rules, &parts), None);
}
