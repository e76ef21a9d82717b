//! An address as proxies write it, and as clients are told apart by it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::Ipv6Net;

/// The longest address with a port, in brackets, has 53 letters; an obfuscated port may have more.
const LONGEST: usize = 80;

/// An address as it stands in `X-Forwarded-For`: bare, with a port, in brackets.
pub(super) fn bare_or_with_port(text: &[u8]) -> Option<IpAddr> {
    let text = short(text)?;
    text.parse().ok().or_else(|| node(text))
}

/// A node of RFC 7239: as above, but IPv6 in brackets only.
pub(super) fn node_name(text: &[u8]) -> Option<IpAddr> {
    node(short(text)?)
}

fn short(text: &[u8]) -> Option<&str> {
    if text.len() > LONGEST { None } else { std::str::from_utf8(text).ok() }
}

fn node(text: &str) -> Option<IpAddr> {
    let (address, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (address, port) = bracketed.split_once(']')?;
            (IpAddr::V6(address.parse().ok()?), port)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (IpAddr::V4(text[..end].parse().ok()?), &text[end..])
        }
    };
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(address)
}

fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            !name.is_empty() && name.bytes().all(is_letter)
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// The address by which a client is counted: the IPv4 address inside of NAT64's well-known prefix
/// (RFC 6052) and of 6to4 (RFC 3056). Not for questions of trust: who has an IPv6 network can choose
/// what stands there.
fn unwrapped(address: Ipv6Addr) -> IpAddr {
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => IpAddr::V6(address),
    }
}

/// Whom an address is counted as: itself, or its IPv6 network.
pub(super) fn counted_as(address: IpAddr, ipv6_prefix: u8) -> String {
    match plain(address) {
        IpAddr::V4(address) => address.to_string(),
        // The prefix was checked where it was set.
        IpAddr::V6(address) => Ipv6Net::new_assert(address, ipv6_prefix).trunc().to_string(),
    }
}

/// Its network of so many bits, such as `192.0.2.0/24`. The bits are checked.
#[cfg(feature = "rules")]
pub(super) fn masked(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> String {
    match plain(address) {
        IpAddr::V4(address) => ipnet::Ipv4Net::new_assert(address, ipv4_prefix).trunc().to_string(),
        IpAddr::V6(address) => Ipv6Net::new_assert(address, ipv6_prefix).trunc().to_string(),
    }
}

fn plain(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => unwrapped(address),
        v4 => v4,
    }
}
