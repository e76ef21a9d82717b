//! Trusted proxies, given as text or as values.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderName, HeaderValue};
use tidegate::Error;
use tidegate_http::{ClientIp, IpNet, ToNetwork};

use super::{key, network, request};

/// Returns the key of a request from 10.0.0.1 that names 203.0.113.7 in `X-Forwarded-For`.
fn key_behind<N: ToNetwork>(proxies: impl IntoIterator<Item = N>) -> String {
    let header = (HeaderName::from_static("x-forwarded-for"), HeaderValue::from_static("203.0.113.7"));
    let parts = request(Some("10.0.0.1".parse().unwrap()), &[header]);
    key(&ClientIp::behind(proxies).unwrap(), &parts)
}

#[test]
fn text_and_value_of_a_network_are_equivalent() {
    const CLIENT: &str = "203.0.113.7";
    let address = Ipv4Addr::new(10, 0, 0, 1);
    assert_eq!(key_behind(["10.0.0.0/8"]), CLIENT);
    assert_eq!(key_behind(["192.0.2.0/24", "10.0.0.1"]), CLIENT);
    assert_eq!(key_behind("192.0.2.0/24, 10.0.0.1".split(',')), CLIENT, "spaces around an item are ignored");
    assert_eq!(key_behind(["10.0.0.0/8".to_owned()]), CLIENT);
    assert_eq!(key_behind(&["10.0.0.0/8".to_owned()]), CLIENT);
    assert_eq!(key_behind([network("10.0.0.0/8")]), CLIENT);
    let networks = [network("10.0.0.0/8")];
    assert_eq!(key_behind(networks.iter()), CLIENT);
    assert_eq!(key_behind([address]), CLIENT);
    assert_eq!(key_behind([IpAddr::V4(address)]), CLIENT);
    for others in ["10.0.0.2", "10.1.0.0/16", "::/0"] {
        assert_eq!(key_behind([others]), "10.0.0.1", "{others}");
    }
    assert_eq!(key_behind::<IpNet>([]), "10.0.0.1");
}

#[test]
fn a_single_address_is_a_network_of_its_own() {
    let of = |text: &str| text.to_network().unwrap().to_string();
    assert_eq!(of("10.0.0.1"), "10.0.0.1/32");
    assert_eq!(of("2001:db8::1"), "2001:db8::1/128");
    assert_eq!(Ipv6Addr::LOCALHOST.to_network().unwrap().to_string(), "::1/128");
}

#[test]
fn invalid_network_text_is_a_config_error_with_the_reason() {
    for (text, reason) in [
        ("", "the text is empty"),
        ("10.0.0.0/33", "the prefix length \"33\" is not a number from 0 to 32"),
        ("10.0.0.0/", "the prefix length \"\" is not a number from 0 to 32"),
        ("10.0.0.0/255.0.0.0", "the prefix length \"255.0.0.0\" is not a number from 0 to 32"),
        ("2001:db8::/129", "the prefix length \"129\" is not a number from 0 to 128"),
        ("10.0.0.0/8,10.0.0.1", "pass each network as a separate item"),
        (
            "localhost",
            "\"localhost\" is not an IP address: use an address such as 10.0.0.1 or a network such as 10.0.0.0/8",
        ),
        (
            "10.0.0/8",
            "\"10.0.0\" is not an IP address: use an address such as 10.0.0.1 or a network such as 10.0.0.0/8",
        ),
    ] {
        let error: Error = ClientIp::behind(["10.0.0.0/8", text]).unwrap_err();
        assert!(error.is_config(), "{text}: {error}");
        assert_eq!(error.to_string(), format!("trusted proxy {text:?}: {reason}"));
    }
}
