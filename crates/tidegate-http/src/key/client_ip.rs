//! The client's address, also behind proxies.

use std::fmt;
use std::net::IpAddr;

use http::header::{FORWARDED, HeaderName, HeaderValue};
use http::request::Parts;
use ipnet::IpNet;
use tidegate::Error;

use super::address::peer_of;
use super::network::ToNetwork;
use super::{address, forwarded, header_name};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The headers by which proxies usually forward the client's address.
const FORWARDING: [HeaderName; 3] = [X_FORWARDED_FOR, FORWARDED, HeaderName::from_static("x-real-ip")];

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
    /// Whether all addresses count as those of proxies.
    trusts_all: bool,
}

/// A mistake in the declaration of trusted proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrustMistake {
    /// The trusted networks hold every address.
    TrustsAll,
    /// A peer with a private address sends a forwarding header and is not declared as a proxy.
    UndeclaredProxy,
}

/// Displays the cause and the fix.
impl fmt::Display for TrustMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TrustsAll => {
                "the trusted networks of a `ClientIp` hold every address, so each client chooses its key by a \
                 header: pass `ClientIp::behind` only the networks of the proxies, or use `ClientIp::hops`"
            }
            Self::UndeclaredProxy => {
                "a peer with a private address sends X-Forwarded-For, Forwarded or X-Real-IP, and is not a \
                 trusted proxy, so all clients behind it share one key: declare its network, as in \
                 `ClientIp::behind([\"10.1.2.0/24\"])` (with rules from files: `Descriptors::client_ip`)"
            }
        })
    }
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
        let trusts_all = match &trusted {
            // Also detects halves, such as 0.0.0.0/1 and 128.0.0.0/1.
            Trusted::Networks(networks) => {
                IpNet::aggregate(networks).iter().any(|network| network.prefix_len() == 0)
            }
            Trusted::Hops(_) => false,
        };
        Self { trusted, source: ProxyHeader::XForwardedFor, ipv6_prefix: 64, trusts_all }
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
    #[track_caller]
    pub fn header(mut self, name: impl TryInto<HeaderName> + fmt::Debug) -> Self {
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

    /// Returns the mistake in the declaration of trusted proxies that this request shows.
    pub(crate) fn trust_mistake(&self, parts: &Parts) -> Option<TrustMistake> {
        if self.trusts_all {
            return Some(TrustMistake::TrustsAll);
        }
        let peer = peer_of(&parts.extensions)?;
        let is_undeclared = is_private(peer)
            && !self.is_trusted(Some(peer), 0)
            && FORWARDING.iter().any(|name| parts.headers.contains_key(name));
        is_undeclared.then_some(TrustMistake::UndeclaredProxy)
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

/// Returns whether only machines of the same operator can have this address: those of the same machine, local
/// network or carrier-grade NAT (100.64.0.0/10), which clusters use for their nodes.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, ..] = address.octets();
            address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || (first == 100 && second & 0xc0 == 64)
        }
        IpAddr::V6(address) => {
            address.is_unique_local() || address.is_loopback() || address.is_unicast_link_local()
        }
    }
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
