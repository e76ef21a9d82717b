//! The networks that rules match, and finding those that contain an address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

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

#[cfg(test)]
mod tests {
    use super::*;

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
