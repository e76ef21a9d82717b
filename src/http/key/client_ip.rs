//! The client's address, also behind proxies.

use std::net::IpAddr;

use http::header::{FORWARDED, HeaderName, HeaderValue};
use http::request::Parts;
use ipnet::IpNet;

use super::peer::peer_of;
use super::{address, forwarded, header_name};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// So many entries of a list are looked at where trust says how far (no chain of proxies is as long).
const MOST_ENTRIES: usize = 32;

/// A client's IP address, and how it is found.
///
/// Anybody can send any header. So none is read unless proxies are declared, and then only one, the
/// declared one, from its end: the last entry of a list is the one that the nearest proxy wrote.
///
/// | | trusts |
/// | --- | --- |
/// | [`peer`](Self::peer) | nobody: the other end of the connection is the client |
/// | [`behind`](Self::behind) | proxies in these networks |
/// | [`hops`](Self::hops) | so many proxies, wherever they are |
///
/// What is not an address (garbage, `unknown`, `_hidden`, an empty entry, none at all) ends the walk: the
/// client is then the last address that was known for sure, which is the proxy that passed this on. So one
/// who is hidden behind a proxy shares its key with all others behind it, and nobody gets a key by writing
/// nonsense. [docs/spoofing.md](https://docs.rs/crate/tidegate/latest/source/docs/spoofing.md) lists such
/// tricks, and the key that each yields.
///
/// As a [key](crate::http::Key::client_ip), IPv4 addresses are counted one by one and IPv6 addresses by
/// their [/64](Self::ipv6_prefix), since whoever has one has all of it. IPv4 addresses inside of IPv6 ones
/// (`::ffff:0:0/96`, NAT64's `64:ff9b::/96`, 6to4's `2002::/16`) are counted as what they are.
///
/// ```
/// use tidegate::http::{ClientIp, IpNet, Key};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let balancers: IpNet = "10.0.0.0/8".parse()?;
/// let key = Key::client_ip(ClientIp::behind([balancers]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ClientIp {
    trusted: Trusted,
    source: Source,
    ipv6_prefix: u8,
}

#[derive(Clone, Debug)]
enum Trusted {
    Networks(Vec<IpNet>),
    Hops(usize),
}

/// Where proxies write whom they were asked by.
#[derive(Clone, Debug)]
enum Source {
    XForwardedFor,
    Forwarded,
    Single(HeaderName),
}

/// What is left of a line without its last entry, if anything is, and the address in that.
type SplitLast = fn(&[u8]) -> (Option<&[u8]>, Option<IpAddr>);

/// # Whom to trust
impl ClientIp {
    /// The peer of the connection. No header is read.
    #[must_use]
    pub fn peer() -> Self {
        Self::trusting(Trusted::Networks(Vec::new()))
    }

    /// Behind proxies whose addresses are in these networks. If the peer is one of them,
    /// `X-Forwarded-For` is walked from its end as long as entries are trusted too; the first that is not
    /// is the client, and if all are, the first entry is. At most 32 are looked at.
    ///
    /// Name the proxies, not all private networks: whoever can connect from a trusted address can claim to
    /// be anybody.
    #[must_use]
    pub fn behind<N: Into<IpNet>>(proxies: impl IntoIterator<Item = N>) -> Self {
        Self::trusting(Trusted::Networks(proxies.into_iter().map(Into::into).collect()))
    }

    /// Behind exactly so many proxies, whatever their addresses are: the client is the entry that the
    /// outermost wrote, the `proxies`-th from the end of `X-Forwarded-For`. With 0 it is the peer.
    ///
    /// Only where no client can reach the service past any of them: one who can (or a number too large)
    /// can claim to be anybody. It needs no address of the peer, so it works where proxies come by a Unix
    /// socket.
    #[must_use]
    pub fn hops(proxies: usize) -> Self {
        Self::trusting(Trusted::Hops(proxies))
    }

    fn trusting(trusted: Trusted) -> Self {
        Self { trusted, source: Source::XForwardedFor, ipv6_prefix: 64 }
    }
}

/// # What to read
impl ClientIp {
    /// Reads `Forwarded` (RFC 7239), and not `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(mut self) -> Self {
        self.source = Source::Forwarded;
        self
    }

    /// Reads this header, which holds one address, and not `X-Forwarded-For`: such as `X-Real-IP` or
    /// `CF-Connecting-IP`. Only where the nearest proxy sets it anew in each request, since one that passes
    /// on what it was sent lets clients choose. Read only if the peer is trusted; if it is there twice, or
    /// holds anything but one address, the client is the peer.
    ///
    /// # Panics
    ///
    /// If this can be no header's name.
    #[must_use]
    pub fn header(mut self, name: impl TryInto<HeaderName>) -> Self {
        self.source = Source::Single(header_name(name));
        self
    }

    /// How many bits of an IPv6 address tell clients apart. Default: 64, one network at a time. Many
    /// providers give each customer a /56 or a /48, who then has 256 or 65,536 keys.
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

/// # Answers
impl ClientIp {
    /// The client's address, or `None` if not even the peer's is known. IPv4 in IPv6 (`::ffff:0:0/96`) is
    /// unwrapped; NAT64 and 6to4 are not, since who has an IPv6 network can choose what stands there.
    #[must_use]
    pub fn of(&self, parts: &Parts) -> Option<IpAddr> {
        let peer = peer_of(&parts.extensions);
        if !self.is_trusted(peer, 0) {
            return peer;
        }
        match &self.source {
            Source::Single(name) => self.only_entry(parts, name).or(peer),
            Source::XForwardedFor => self.walk(peer, parts, &X_FORWARDED_FOR, x_forwarded_for),
            Source::Forwarded => self.walk(peer, parts, &FORWARDED, forwarded),
        }
    }

    /// Whether the client's address is in one of these networks: for rules that skip some clients. `false`
    /// if it is not known.
    ///
    /// ```
    /// use tidegate::http::{ClientIp, IpNet, PeerAddr};
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

    pub(in crate::http) fn key(&self, parts: &Parts) -> Option<Vec<u8>> {
        self.of(parts).map(|client| address::counted_as(client, self.ipv6_prefix).into_bytes())
    }

    /// The client's network. Of IPv6 as many bits as [are counted](Self::ipv6_prefix), unless they are said.
    #[cfg(feature = "rules")]
    pub(in crate::http) fn network(
        &self,
        parts: &Parts,
        ipv4_prefix: u8,
        ipv6_prefix: Option<u8>,
    ) -> Option<String> {
        let ipv6_prefix = ipv6_prefix.unwrap_or(self.ipv6_prefix);
        self.of(parts).map(|client| address::masked(client, ipv4_prefix, ipv6_prefix))
    }

    /// Whether `address` is a proxy, after so many others.
    fn is_trusted(&self, address: Option<IpAddr>, passed: usize) -> bool {
        match &self.trusted {
            Trusted::Hops(proxies) => passed < *proxies,
            Trusted::Networks(networks) => {
                passed < MOST_ENTRIES && address.is_some_and(|address| contains(networks, address))
            }
        }
    }

    fn only_entry(&self, parts: &Parts, name: &HeaderName) -> Option<IpAddr> {
        let mut lines = parts.headers.get_all(name).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return None };
        Some(address::bare_or_with_port(line.as_bytes().trim_ascii())?.to_canonical())
    }

    /// Goes from proxy to proxy, as long as one that is trusted says who came to it.
    fn walk(
        &self,
        peer: Option<IpAddr>,
        parts: &Parts,
        name: &HeaderName,
        split_last: SplitLast,
    ) -> Option<IpAddr> {
        let mut known = peer;
        let mut lines = parts.headers.get_all(name).iter().rev().map(HeaderValue::as_bytes);
        let mut rest = lines.next();
        let mut passed = 0;
        while let Some(line) = rest
            && self.is_trusted(known, passed)
        {
            let (left, last) = split_last(line);
            let Some(address) = last else { break };
            known = Some(address.to_canonical());
            passed += 1;
            rest = left.or_else(|| lines.next());
        }
        known
    }
}

fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

fn x_forwarded_for(line: &[u8]) -> (Option<&[u8]>, Option<IpAddr>) {
    let (left, last) = match line.iter().rposition(|&byte| byte == b',') {
        Some(comma) => (Some(&line[..comma]), &line[comma + 1..]),
        None => (None, line),
    };
    (left, address::bare_or_with_port(last.trim_ascii()))
}

fn forwarded(line: &[u8]) -> (Option<&[u8]>, Option<IpAddr>) {
    let (left, last) = forwarded::split_last(line);
    (left, forwarded::address_of(last))
}
