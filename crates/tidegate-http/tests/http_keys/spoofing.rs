//! Tests each header trick in docs/reference/spoofing.md.

use std::collections::HashSet;

use http::{HeaderName, HeaderValue};
use tidegate_http::ClientIp;

use super::{expanded, key, network, request};

/// Parses `behind 10.0.0.0/8, fd00::/8; forwarded; prefix 56`.
fn setting(text: &str) -> ClientIp {
    let words = |part: &str| part.trim().split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    let mut parts = text.split(';');
    let trust = parts.next().unwrap().trim();
    let ip = match words(trust) {
        None if trust == "peer" => ClientIp::peer(),
        Some((word, networks)) if word == "behind" => {
            ClientIp::behind(networks.split(',').map(network)).unwrap()
        }
        Some((word, proxies)) if word == "hops" => ClientIp::hops(proxies.parse().unwrap()),
        _ => panic!("{trust}"),
    };
    parts.fold(ip, |ip, part| match words(part) {
        None if part.trim() == "forwarded" => ip.forwarded(),
        Some((word, name)) if word == "header" => ip.header(name),
        Some((word, bits)) if word == "prefix" => ip.ipv6_prefix(bits.parse().unwrap()),
        _ => panic!("{part}"),
    })
}

/// Parses `` `X-Forwarded-For: {a, ×1000}\xff` ``.
fn header_line(cell: &str) -> (HeaderName, HeaderValue) {
    let line = cell.strip_prefix('`').unwrap().strip_suffix('`').unwrap();
    let (name, value) = line.split_once(": ").unwrap();
    let text = expanded(value);
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'\\', [b't', after @ ..]) => {
                bytes.push(b'\t');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) if high.is_ascii_hexdigit() => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                rest = after;
            }
            _ => bytes.push(first),
        }
    }
    (name.parse().unwrap(), HeaderValue::from_bytes(&bytes).unwrap())
}

#[test]
fn each_trick_yields_the_documented_key() {
    let page = include_str!("../../../../docs/reference/spoofing.md");
    let (table, _) = page.split_once("\n## Spellings of a path\n").unwrap();
    let mut tricks = HashSet::new();
    for row in table.lines().filter(|line| line.starts_with("| ") && !line.contains("---")) {
        let [_, text, peer, lines, expected, _, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        if text.trim() == "setting" {
            continue;
        }
        let lines = lines.trim();
        let lines: Vec<_> =
            if lines == "-" { Vec::new() } else { lines.split("<br>").map(header_line).collect() };
        let peer = peer.trim();
        let peer = (peer != "none").then(|| peer.parse().unwrap());
        let found = key(&setting(text), &request(peer, &lines));
        assert_eq!(format!("`{found}`"), expected.trim(), "{row}");
        assert!(tricks.insert(row.rsplit_once('`').unwrap().0), "duplicate row: {row}");
    }
    assert!(tricks.len() >= 100, "only {} rows were found", tricks.len());
}
