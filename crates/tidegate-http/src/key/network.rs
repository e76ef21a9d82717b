//! Networks of trusted proxies, as text or as values.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use tidegate::Error;

/// A network or a single address: as text (`"10.0.0.0/8"`, `"10.0.0.1"`, `"2001:db8::/32"`), or as a value of
/// [`IpNet`] or [`std::net`].
///
/// ```
/// use std::net::Ipv4Addr;
/// use tidegate_http::{ClientIp, ToNetwork};
///
/// # fn main() -> Result<(), tidegate::Error> {
/// assert_eq!("10.0.0.1".to_network()?, Ipv4Addr::new(10, 0, 0, 1).to_network()?);
///
/// let from_settings = "10.0.0.0/8, 192.0.2.7";
/// let client = ClientIp::behind(from_settings.split(','))?;
/// # let _ = client; Ok(()) }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a network nor an address",
    label = "expected text such as \"10.0.0.0/8\" or \"10.0.0.1\", an `IpNet` or an `IpAddr`"
)]
pub trait ToNetwork {
    /// Returns the network. A single address is the network of that address alone.
    ///
    /// # Errors
    ///
    /// [`Error::is_config`] if the text is neither a network nor an address. The error names the text.
    fn to_network(&self) -> Result<IpNet, Error>;
}

impl ToNetwork for str {
    fn to_network(&self) -> Result<IpNet, Error> {
        let text = self.trim();
        let network = text.parse().or_else(|_| text.parse().map(IpAddr::into));
        network.map_err(|_| Error::config(format!("trusted proxy {self:?}: {}", explain(text))))
    }
}

/// Explains why a text is not a network.
fn explain(text: &str) -> String {
    if text.is_empty() {
        return "the text is empty".to_owned();
    }
    if text.contains([',', ';', ' ']) {
        return "pass each network as a separate item".to_owned();
    }
    let (address, prefix) = text.split_once('/').unwrap_or((text, ""));
    let bits = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => {
            return format!(
                "{address:?} is not an IP address: use an address such as 10.0.0.1 \
                 or a network such as 10.0.0.0/8"
            );
        }
    };
    format!("the prefix length {prefix:?} is not a number from 0 to {bits}")
}

macro_rules! values {
    ($($type:ty: |$value:ident| $network:expr;)*) => {
        $(impl ToNetwork for $type {
            fn to_network(&self) -> Result<IpNet, Error> {
                let $value = *self;
                Ok($network)
            }
        })*
    };
}

values! {
    IpNet: |network| network;
    Ipv4Net: |network| network.into();
    Ipv6Net: |network| network.into();
    IpAddr: |address| address.into();
    Ipv4Addr: |address| IpAddr::V4(address).into();
    Ipv6Addr: |address| IpAddr::V6(address).into();
}

impl ToNetwork for String {
    fn to_network(&self) -> Result<IpNet, Error> {
        self.as_str().to_network()
    }
}

impl ToNetwork for Cow<'_, str> {
    fn to_network(&self) -> Result<IpNet, Error> {
        (**self).to_network()
    }
}

impl<T: ToNetwork + ?Sized> ToNetwork for &T {
    fn to_network(&self) -> Result<IpNet, Error> {
        (**self).to_network()
    }
}
