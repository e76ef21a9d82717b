//! Parses addresses as proxies write them, and formats addresses as keys.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::Extensions;
use ipnet::Ipv6Net;

/// The longest text that is parsed, in bytes. An IPv6 address in brackets with a port has at most 53; an
/// obfuscated port may be longer.
const MAX_TEXT_BYTES: usize = 80;

/// Parses an address of `X-Forwarded-For`: bare, with a port, or in brackets.
pub(super) fn bare_or_with_port(text: &[u8]) -> Option<IpAddr> {
    let text = short_text(text)?;
    text.parse().ok().or_else(|| node(text))
}

/// Parses a node of RFC 7239: as [`bare_or_with_port`], but IPv6 only in brackets.
pub(super) fn node_name(text: &[u8]) -> Option<IpAddr> {
    node(short_text(text)?)
}

fn short_text(text: &[u8]) -> Option<&str> {
    if text.len() > MAX_TEXT_BYTES { None } else { std::str::from_utf8(text).ok() }
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
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            !name.is_empty() && name.bytes().all(is_allowed)
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// Returns the public IPv4 address embedded in NAT64's well-known prefix (RFC 6052) or in 6to4 (RFC 3056); otherwise
/// the address unchanged. Not suitable for deciding trust: the owner of an IPv6 network chooses these bits.
fn unwrap_ipv4(address: Ipv6Addr) -> IpAddr {
    let embedded = match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
        }
        _ => return IpAddr::V6(address),
    };
    match is_public(embedded) {
        true => IpAddr::V4(embedded),
        false => IpAddr::V6(address),
    }
}

/// Returns whether an address can be that of a client in the internet. Neither prefix may contain others, so they
/// must not count as clients of the own network.
fn is_public(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    let is_shared = first == 100 && (64..128).contains(&second);
    let is_local = address.is_private() || address.is_loopback() || address.is_link_local() || is_shared;
    !is_local && first != 0 && !address.is_multicast() && !address.is_broadcast()
}

/// Formats an address as a key: the IPv4 address, or its IPv6 network.
pub(super) fn key_text(address: IpAddr, ipv6_prefix: u8) -> String {
    match client_address(address) {
        IpAddr::V4(address) => address.to_string(),
        // `ClientIp::ipv6_prefix` has validated the prefix.
        IpAddr::V6(address) => Ipv6Net::new_assert(address, ipv6_prefix).trunc().to_string(),
    }
}

/// Formats the network of an address, such as `192.0.2.0/24`. The caller has validated the prefixes.
#[cfg(feature = "rules")]
pub(super) fn masked(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> String {
    match client_address(address) {
        IpAddr::V4(address) => ipnet::Ipv4Net::new_assert(address, ipv4_prefix).trunc().to_string(),
        IpAddr::V6(address) => Ipv6Net::new_assert(address, ipv6_prefix).trunc().to_string(),
    }
}

/// Returns the address that identifies a client, with embedded IPv4 addresses unwrapped.
fn client_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => unwrap_ipv4(address),
        v4 => v4,
    }
}

/// A request extension with the address of the connection's peer, for servers that do not provide the address
/// (hyper, custom TLS acceptors).
///
/// With the feature `axum`, `ConnectInfo<SocketAddr>` is read as well: serve with
/// `into_make_service_with_connect_info::<SocketAddr>()`. With the feature `tonic`, `TcpConnectInfo` is read.
/// If a request has several of these extensions, `PeerAddr` takes precedence. tonic with TLS uses another
/// extension, which is not read: add a layer that inserts a `PeerAddr`.
///
/// ```
/// use std::net::SocketAddr;
/// use tidegate_http::PeerAddr;
///
/// # let (accepted_from, mut request) = (SocketAddr::from(([203, 0, 113, 7], 4711)), http::Request::new(()));
/// request.extensions_mut().insert(PeerAddr(accepted_from));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Returns the peer's address in canonical form: on a dual-stack socket, IPv4 clients have IPv6 addresses.
pub(super) fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    let peer = extensions.get::<PeerAddr>().map(|peer| peer.0);
    #[cfg(feature = "axum")]
    let peer = peer.or_else(|| extensions.get::<axum::extract::ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    #[cfg(feature = "tonic")]
    let peer = peer.or_else(|| {
        extensions.get::<tonic::transport::server::TcpConnectInfo>().and_then(|peer| peer.remote_addr())
    });
    peer.map(|address| address.ip().to_canonical())
}
