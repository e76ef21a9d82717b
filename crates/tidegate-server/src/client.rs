//! The clients of a port, by their addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The address of a client; of IPv6, its network of 64 bits, all of which one client can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(IpAddr);

impl Client {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        for (address, expected) in [
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("2001:db8:0:1:ffff::1", "2001:db8:0:1::"),
            ("::1", "::"),
        ] {
            assert_eq!(Client::new(address.parse().unwrap()).to_string(), expected);
        }
    }
}
