//! The networks that rules match, and finding those that contain an address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The IPv4 networks of which no address is that of a client in the internet. Inside of an IPv6 address, they are no
/// client's address.
const NOT_PUBLIC: [Ipv4Net; 9] = [
    Ipv4Net::new_assert(Ipv4Addr::new(0, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 10),
    Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4),
    Ipv4Net::new_assert(Ipv4Addr::BROADCAST, 32),
];

/// The networks of one key on one level, each with its branch.
#[derive(Debug)]
pub(super) struct Networks<B> {
    /// The index of the branch of each network.
    indices: BTreeMap<IpNet, u32>,
    /// The prefix lengths that occur, the longest first: a lookup tries each.
    lengths: Vec<u8>,
    branches: Vec<B>,
}

impl<B> Default for Networks<B> {
    fn default() -> Self {
        Self { indices: BTreeMap::new(), lengths: Vec::new(), branches: Vec::new() }
    }
}

impl<B> Networks<B> {
    pub(super) fn len(&self) -> usize {
        self.indices.len()
    }

    pub(super) fn branches(&self) -> &[B] {
        &self.branches
    }

    pub(super) fn networks(&self) -> impl Iterator<Item = &IpNet> {
        self.indices.keys()
    }

    /// Returns the branch of exactly this network.
    pub(super) fn get(&self, network: IpNet) -> Option<&B> {
        self.branches.get(*self.indices.get(&network)? as usize)
    }

    /// Adds a branch for networks that have none yet.
    pub(super) fn insert(&mut self, networks: &[IpNet], branch: B) {
        let index = self.branches.len() as u32;
        for network in networks {
            self.indices.insert(*network, index);
            let length = network.prefix_len();
            if let Err(at) = self.lengths.binary_search_by(|other| length.cmp(other)) {
                self.lengths.insert(at, length);
            }
        }
        self.branches.push(branch);
    }

    /// Returns the networks that contain a value, which is an address or a network, each with its branch: the smallest
    /// first. Any other value is in no network.
    pub(super) fn containing(&self, value: &[u8]) -> impl Iterator<Item = (IpNet, &B)> {
        let client = std::str::from_utf8(value).ok().and_then(parse);
        client.into_iter().flat_map(move |client| {
            let lengths = self.lengths.iter().filter(move |length| **length <= client.prefix_len());
            lengths.filter_map(move |length| {
                let network = IpNet::new(client.addr(), *length).ok()?.trunc();
                Some((network, self.get(network)?))
            })
        })
    }
}

/// Parses a network, or an address as the network of that address alone. An IPv4 address in IPv6 notation is one in IPv4
/// notation, as clients' addresses are.
pub(super) fn parse(text: &str) -> Option<IpNet> {
    let network: IpNet = text.parse().or_else(|_| text.parse().map(IpAddr::into)).ok()?;
    let IpNet::V6(v6) = network else { return Some(network) };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(v4), Some(bits)) => IpNet::new(v4.into(), bits).ok(),
        _ => Some(network),
    }
}

/// Returns the IPv4 addresses inside of a network of 6to4 (`2002::/16`) or of NAT64 (`64:ff9b::/96`), if some of them
/// are public. Then the address of such a client is the IPv4 address, as `tidegate-http` determines it.
pub(super) fn public_ipv4_inside(network: Ipv6Net) -> Option<Ipv4Net> {
    let length = network.prefix_len();
    let (high, low, bits) = match network.addr().segments() {
        [0x2002, high, low, ..] if length >= 16 => (high, low, length - 16),
        // The rest of the /64 is not in use.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] if length >= 64 => (high, low, length.saturating_sub(96)),
        _ => return None,
    };
    let first = Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let inside = Ipv4Net::new(first, bits.min(32)).ok()?.trunc();
    let is_public = !NOT_PUBLIC.iter().any(|network| network.contains(&inside));
    is_public.then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_public_ipv4_addresses_in_6to4_and_nat64_are_found() {
        for (network, ipv4) in [
            ("2002::/16", Some("0.0.0.0/0")),
            ("2002:8000::/17", Some("128.0.0.0/1")),
            ("2002:cb00:7100::/40", Some("203.0.113.0/24")),
            ("2002:cb00:7107::/48", Some("203.0.113.7/32")),
            ("2002:cb00:7107:1::/64", Some("203.0.113.7/32")),
            ("64:ff9b::/64", Some("0.0.0.0/0")),
            ("64:ff9b::/96", Some("0.0.0.0/0")),
            ("64:ff9b::203.0.113.0/120", Some("203.0.113.0/24")),
            ("64:ff9b::203.0.113.7/128", Some("203.0.113.7/32")),
            // Clients without a public address in it have the IPv6 address.
            ("2002:a00::/24", None),
            ("2002:c0a8:101::/48", None),
            ("64:ff9b::10.0.0.0/104", None),
            // Others have it, too.
            ("2002::/15", None),
            ("2000::/3", None),
            ("::/0", None),
            ("64:ff9b::/32", None),
            ("64:ff9b:1::/48", None),
            ("2001:db8::/32", None),
        ] {
            let found = public_ipv4_inside(network.parse().unwrap()).map(|ipv4| ipv4.to_string());
            assert_eq!(found.as_deref(), ipv4, "{network}");
        }
    }

    #[test]
    fn address_or_network_is_parsed_as_network() {
        for (text, network) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("::ffff:10.1.2.3", "10.1.2.3/32"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(parse(text).map(|network| network.to_string()).as_deref(), Some(network));
        }
        for text in ["", "10.0.0.0/33", "10.0.0", "localhost", "10.0.0.0/", "10.0.0.1:80"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
