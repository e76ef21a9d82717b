//! A client cannot change its key by random headers.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_http::{ClientIp, IpNet};

use super::{key, network, request};
use crate::support::plan;

type Line = (HeaderName, HeaderValue);

const PROXIES: [&str; 3] = ["10.0.0.0/8", "fd00::/8", "192.0.2.128/25"];

fn proxies() -> Vec<IpNet> {
    PROXIES.into_iter().map(network).collect()
}

fn is_proxy(address: IpAddr) -> bool {
    proxies().iter().any(|network| network.contains(&address.to_canonical()))
}

/// Generates addresses of all kinds, many of them near the border of a network.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        any::<u8>().prop_map(|a| IpAddr::from([192, 0, 2, a])),
        any::<[u8; 4]>().prop_map(|v4| IpAddr::V6(Ipv4Addr::from(v4).to_ipv6_mapped())),
        // A proxy's address embedded in 6to4.
        any::<[u8; 3]>()
            .prop_map(|[a, b, c]| { IpAddr::from([0x20, 0x02, 10, a, b, c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]) }),
        proxy(),
    ]
}

fn proxy() -> impl Strategy<Value = IpAddr> {
    let v4 = || any::<[u8; 3]>().prop_map(|[a, b, c]| Ipv4Addr::new(10, a, b, c));
    prop_oneof![
        v4().prop_map(IpAddr::V4),
        v4().prop_map(|address| IpAddr::V6(address.to_ipv6_mapped())),
        (128..=255_u8).prop_map(|a| IpAddr::from([192, 0, 2, a])),
        any::<[u8; 14]>().prop_map(|rest| {
            let mut bytes = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes[2..].copy_from_slice(&rest);
            IpAddr::from(bytes)
        }),
    ]
}

fn client() -> impl Strategy<Value = IpAddr> {
    address().prop_filter("untrusted", |&address| !is_proxy(address))
}

/// Generates header values from pieces: whole addresses, separators, quotes, and bytes that break parsing.
fn value() -> impl Strategy<Value = HeaderValue> {
    let piece = prop_oneof![
        address().prop_map(|address| address.to_string().into_bytes()),
        select(
            &[
                ",",
                ", ",
                ";",
                "\"",
                "\\",
                "=",
                "for=",
                "For=\"[",
                "]\"",
                "[",
                "]",
                ":",
                ":80",
                "%eth0",
                "unknown",
                "_hidden",
                "\t",
                " ",
                "by=",
                "proto=https",
            ][..]
        )
        .prop_map(|text| text.as_bytes().to_vec()),
        vec(any::<u8>().prop_map(|byte| if byte < 32 || byte == 127 { b'\t' } else { byte }), 0..40),
    ];
    vec(piece, 0..12).prop_map(|pieces| HeaderValue::from_bytes(&pieces.concat()).unwrap())
}

fn name() -> impl Strategy<Value = HeaderName> {
    prop_oneof![
        4 => select(&["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "host"][..])
            .prop_map(HeaderName::from_static),
        1 => "[a-z][a-z0-9-]{0,20}".prop_map(|name| name.parse().unwrap()),
    ]
}

fn lines() -> impl Strategy<Value = Vec<Line>> {
    vec((name(), value()), 0..8)
}

/// Returns each way to find the client behind trusted networks.
fn settings() -> [ClientIp; 3] {
    let behind = || ClientIp::behind(proxies()).unwrap();
    [behind(), behind().forwarded(), behind().header("x-real-ip")]
}

fn for_pair(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("for={address};host=\"a, b\""),
        IpAddr::V6(address) => format!("for=\"[{address}]:80\""),
    }
}

/// Returns the lines that the service receives: the client's lines, with one header extended by the proxies.
/// Each proxy extends the last line or adds a line.
fn passed_on(
    name: &'static str,
    mut lines: Vec<Line>,
    client: IpAddr,
    chain: &[(IpAddr, bool)],
    write: impl Fn(IpAddr) -> String,
) -> Vec<Line> {
    let name = HeaderName::from_static(name);
    let mut sender = client;
    for &(proxy, is_in_its_own_line) in chain {
        let last = lines.iter_mut().rfind(|line| line.0 == name);
        match last {
            Some((_, value)) if !is_in_its_own_line => {
                let appended = [value.as_bytes(), b", ", write(sender).as_bytes()].concat();
                *value = HeaderValue::from_bytes(&appended).unwrap();
            }
            _ => lines.push((name.clone(), HeaderValue::from_str(&write(sender)).unwrap())),
        }
        sender = proxy;
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(plan::sequences() * 4 / 5))]

    #[test]
    fn no_header_of_an_untrusted_peer_changes_its_key(
        peer in client(),
        lines in lines(),
    ) {
        for setting in settings().into_iter().chain([ClientIp::peer(), ClientIp::hops(0)]) {
            prop_assert_eq!(key(&setting, &request(Some(peer), &lines)), key(&setting, &request(Some(peer), &[])));
        }
    }

    #[test]
    fn client_headers_behind_proxies_do_not_change_its_key(
        client in client(),
        chain in vec((proxy(), any::<bool>()), 1..5),
        lines in lines(),
    ) {
        let peer = chain.last().unwrap().0;
        let own_key = key(&ClientIp::peer(), &request(Some(client), &[]));
        let [x_forwarded_for, forwarded, _] = settings();

        let sent = passed_on("x-forwarded-for", lines.clone(), client, &chain, |address| address.to_string());
        prop_assert_eq!(key(&x_forwarded_for, &request(Some(peer), &sent)), &*own_key);
        prop_assert_eq!(key(&ClientIp::hops(chain.len()), &request(Some(peer), &sent)), &*own_key);

        let sent = passed_on("forwarded", lines, client, &chain, for_pair);
        prop_assert_eq!(key(&forwarded, &request(Some(peer), &sent)), &*own_key);
        prop_assert_eq!(key(&ClientIp::hops(chain.len()).forwarded(), &request(Some(peer), &sent)), &*own_key);
    }

    /// The definition for a well-formed list: the first untrusted address from the right, else the leftmost
    /// one.
    #[test]
    fn the_key_is_the_first_untrusted_address_from_the_right(
        peer in address(),
        list in vec(address(), 0..32),
    ) {
        let mut text = String::new();
        for address in &list {
            write!(text, "{address}, ").unwrap();
        }
        let value = HeaderValue::from_str(text.trim_end_matches(", ")).unwrap();
        let lines = if list.is_empty() { vec![] } else { vec![("x-forwarded-for".parse().unwrap(), value)] };

        let mut from_the_right = [&[peer], &list[..]].concat();
        from_the_right[1..].reverse();
        let first = from_the_right.iter().find(|&&address| !is_proxy(address));
        let expected = first.or(from_the_right.last()).unwrap();
        let found = ClientIp::behind(proxies()).unwrap().of(&request(Some(peer), &lines));
        prop_assert_eq!(found, Some(expected.to_canonical()));
    }
}

/// Sends 1 MB, far more than any server accepts. The time must grow linearly with the size, not
/// quadratically.
#[test]
fn headers_of_a_million_bytes_are_parsed_in_linear_time() {
    let pieces = [
        "10.0.0.1,",
        "\"",
        "\\",
        "\\\"",
        ",",
        "for=\"",
        "for=10.0.0.1,",
        "for=_a;",
        ";",
        " ",
        "for=\"\\",
        "9",
    ];
    for piece in pieces {
        let text = piece.repeat(1_000_000 / piece.len());
        for end in ["", ", for=10.0.0.2", "\""] {
            let value = HeaderValue::from_str(&format!("{text}{end}")).unwrap();
            for setting in settings().into_iter().chain([ClientIp::hops(5).forwarded()]) {
                let lines = ["x-forwarded-for", "forwarded"]
                    .map(|name| (HeaderName::from_static(name), value.clone()));
                let request = request(Some(IpAddr::from([10, 0, 0, 1])), &lines);
                let start = Instant::now();
                key(&setting, &request);
                assert!(start.elapsed() < Duration::from_secs(2), "{piece:?} {end:?} {setting:?}");
            }
        }
    }
}
