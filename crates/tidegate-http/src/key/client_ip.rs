//! The client's address, also behind proxies.

use std::net::IpAddr;

use http::header::{FORWARDED, HeaderName, HeaderValue};
use http::request::Parts;
use ipnet::IpNet;
use tidegate::Error;

use super::header_name::header_name;
use super::network::ToNetwork;
use super::peer::peer_of;
use super::{address, forwarded};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The maximum number of entries read from a list. No real chain of proxies is as long.
const MAX_ENTRIES: usize = 32;

/// Determines the IP address of a client.
///
/// Any client can send any header. Therefore no header is read unless proxies are declared. Then only the
/// declared header is read, from its end: the nearest proxy wrote the last entry of a list.
///
/// | | trusts |
/// | --- | --- |
/// | [`peer`](Self::peer) | no proxy: the other end of the connection is the client |
/// | [`behind`](Self::behind) | proxies in these networks |
/// | [`hops`](Self::hops) | a number of proxies, wherever they are |
///
/// An entry that is not an address (garbage, `unknown`, `_hidden`, empty) and the end of the header stop the
/// search. The client is then the last address that is certain: that of the proxy that forwarded the request.
/// Thus a client that its proxy hides shares a key with all others behind that proxy, and a malformed header
/// yields no new key. The page `docs/reference/spoofing.md` of the repository
/// lists such tricks and the key that each yields.
///
/// As a [key](crate::Key::client_ip), each IPv4 address counts separately. An IPv6 address counts as
/// its [/64 network](Self::ipv6_prefix), since one customer usually has all of it. IPv4 addresses inside IPv6
/// addresses (`::ffff:0:0/96`, NAT64's `64:ff9b::/96`, 6to4's `2002::/16`) count as IPv4 addresses.
///
/// ```
/// use tidegate_http::{ClientIp, Key};
///
/// # fn main() -> Result<(), tidegate::Error> {
/// let key = Key::client_ip(ClientIp::behind(["10.0.0.0/8", "192.0.2.7"])?);
/// # let _ = key; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    trusted: Trusted,
    source: ProxyHeader,
    ipv6_prefix: u8,
}

#[derive(Clone, Debug)]
enum Trusted {
    Networks(Vec<IpNet>),
    Hops(usize),
}

/// The header in which proxies name the client.
#[derive(Clone, Debug)]
enum ProxyHeader {
    XForwardedFor,
    Forwarded,
    Single(HeaderName),
}

/// Splits a header value into the part before its last entry, if there is one, and the address in that entry.
type SplitLast = fn(&[u8]) -> (Option<&[u8]>, Option<IpAddr>);

/// # Trust
impl ClientIp {
    /// Uses the peer of the connection and reads no header.
    #[must_use]
    pub fn peer() -> Self {
        Self::trusting(Trusted::Networks(Vec::new()))
    }

    /// Trusts proxies whose addresses are in these networks. If the peer is one of them, `X-Forwarded-For` is
    /// read from its end for as long as its entries are trusted. The first entry that is not trusted is the
    /// client. If all entries are trusted, the client is the first entry of the list. At most 32 entries are
    /// read.
    ///
    /// Name the proxies, not all private networks: a client that can connect from a trusted address can claim
    /// any address.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if a text is neither a network nor an address: see [`ToNetwork`].
    pub fn behind<N: ToNetwork>(proxies: impl IntoIterator<Item = N>) -> Result<Self, Error> {
        let networks = proxies.into_iter().map(|proxy| proxy.to_network()).collect::<Result<_, _>>()?;
        Ok(Self::trusting(Trusted::Networks(networks)))
    }

    /// Trusts exactly `proxies` proxies, regardless of their addresses. The client is the entry that the
    /// outermost proxy wrote: the `proxies`-th from the end of `X-Forwarded-For`. With 0, it is the peer.
    ///
    /// Use this only if no client can bypass a proxy. If a client can, or if the number is too large, clients
    /// can claim any address. The address of the peer is not needed, so this works for proxies on a Unix
    /// socket.
    #[must_use]
    pub fn hops(proxies: usize) -> Self {
        Self::trusting(Trusted::Hops(proxies))
    }

    fn trusting(trusted: Trusted) -> Self {
        Self { trusted, source: ProxyHeader::XForwardedFor, ipv6_prefix: 64 }
    }
}

/// # Headers
impl ClientIp {
    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.source = ProxyHeader::Forwarded;
        self
    }

    /// Reads this header, which holds one address, instead of `X-Forwarded-For`: for example `X-Real-IP` or
    /// `CF-Connecting-IP`. Use it only if the nearest proxy overwrites it in each request; otherwise clients
    /// choose its value. It is read only if the peer is trusted. If it occurs twice or holds anything but one
    /// address, the client is the peer.
    ///
    /// # Panics
    ///
    /// If `name` is not a valid header name.
    #[must_use]
    pub fn header(mut self, name: impl TryInto<HeaderName>) -> Self {
        self.source = ProxyHeader::Single(header_name(name));
        self
    }

    /// Sets how many bits of an IPv6 address distinguish clients. Many providers give each customer a /56 or
    /// a /48: such a customer has 256 or 65,536 keys.
    ///
    /// Default: 64.
    ///
    /// # Panics
    ///
    /// If it is above 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        assert!(bits <= 128, "an IPv6 address has 128 bits, not {bits}");
        self.ipv6_prefix = bits;
        self
    }
}

/// # Results
impl ClientIp {
    /// Returns the client's address, or `None` if the address of the peer is not known. IPv4 in IPv6
    /// (`::ffff:0:0/96`) is unwrapped. NAT64 and 6to4 are not, since the owner of an IPv6 network chooses
    /// those bits.
    #[must_use]
    pub fn of(&self, parts: &Parts) -> Option<IpAddr> {
        let peer = peer_of(&parts.extensions);
        if !self.is_trusted(peer, 0) {
            return peer;
        }
        match &self.source {
            ProxyHeader::Single(name) => self.only_entry(parts, name).or(peer),
            ProxyHeader::XForwardedFor => self.walk(peer, parts, &X_FORWARDED_FOR, x_forwarded_for),
            ProxyHeader::Forwarded => self.walk(peer, parts, &FORWARDED, forwarded),
        }
    }

    /// Returns whether the client's address is in one of these networks, for rules that skip some clients.
    /// Returns `false` if the address is not known.
    ///
    /// ```
    /// use tidegate_http::{ClientIp, IpNet, PeerAddr};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let monitors: [IpNet; 1] = ["192.0.2.0/24".parse()?];
    /// let (mut parts, ()) = http::Request::new(()).into_parts();
    /// parts.extensions.insert(PeerAddr("192.0.2.9:4711".parse()?));
    /// assert!(ClientIp::peer().is_in(&parts, &monitors));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_in(&self, parts: &Parts, networks: &[IpNet]) -> bool {
        self.of(parts).is_some_and(|client| contains(networks, client))
    }

    pub(crate) fn key(&self, parts: &Parts) -> Option<Vec<u8>> {
        self.of(parts).map(|client| address::key_text(client, self.ipv6_prefix).into_bytes())
    }

    /// Returns the client's network. Without `ipv6_prefix`, an IPv6 network has the [bits](Self::ipv6_prefix)
    /// that distinguish clients.
    #[cfg(feature = "rules")]
    pub(crate) fn network(&self, parts: &Parts, ipv4_prefix: u8, ipv6_prefix: Option<u8>) -> Option<String> {
        let ipv6_prefix = ipv6_prefix.unwrap_or(self.ipv6_prefix);
        self.of(parts).map(|client| address::masked(client, ipv4_prefix, ipv6_prefix))
    }

    /// Returns whether `address` is a trusted proxy, after `passed` other proxies.
    fn is_trusted(&self, address: Option<IpAddr>, passed: usize) -> bool {
        match &self.trusted {
            Trusted::Hops(proxies) => passed < *proxies,
            Trusted::Networks(networks) => {
                passed < MAX_ENTRIES && address.is_some_and(|address| contains(networks, address))
            }
        }
    }

    fn only_entry(&self, parts: &Parts, name: &HeaderName) -> Option<IpAddr> {
        let mut values = parts.headers.get_all(name).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        Some(address::bare_or_with_port(value.as_bytes().trim_ascii())?.to_canonical())
    }

    /// Follows the entries from the end, for as long as trusted proxies wrote them. Returns the last address
    /// that is certain.
    fn walk(
        &self,
        peer: Option<IpAddr>,
        parts: &Parts,
        name: &HeaderName,
        split_last: SplitLast,
    ) -> Option<IpAddr> {
        let mut client = peer;
        let mut values = parts.headers.get_all(name).iter().rev().map(HeaderValue::as_bytes);
        let mut rest = values.next();
        let mut passed = 0;
        while let Some(value) = rest
            && self.is_trusted(client, passed)
        {
            let (before, last) = split_last(value);
            let Some(address) = last else { break };
            client = Some(address.to_canonical());
            passed += 1;
            rest = before.or_else(|| values.next());
        }
        client
    }
}

fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

fn x_forwarded_for(value: &[u8]) -> (Option<&[u8]>, Option<IpAddr>) {
    let (before, last) = match value.iter().rposition(|&byte| byte == b',') {
        Some(comma) => (Some(&value[..comma]), &value[comma + 1..]),
        None => (None, value),
    };
    (before, address::bare_or_with_port(last.trim_ascii()))
}

fn forwarded(value: &[u8]) -> (Option<&[u8]>, Option<IpAddr>) {
    let (before, last) = forwarded::split_last(value);
    (before, forwarded::address_of(last))
}
