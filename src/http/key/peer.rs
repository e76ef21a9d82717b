//! Who is at the other end of the connection.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

/// The address at the other end of a request's connection, as an extension of the request: for servers
/// that do not say it by themselves (hyper, TLS acceptors of one's own).
///
/// With feature `axum`, `ConnectInfo<SocketAddr>` is found as well (serve with
/// `into_make_service_with_connect_info::<SocketAddr>()`), and with `tonic` its `TcpConnectInfo`; where
/// there are several, this one counts. tonic with TLS puts its information elsewhere: a layer has to put a
/// `PeerAddr` there.
///
/// ```
/// use std::net::SocketAddr;
/// use tidegate::http::PeerAddr;
///
/// # let (accepted_from, mut request) = (SocketAddr::from(([203, 0, 113, 7], 4711)), http::Request::new(()));
/// request.extensions_mut().insert(PeerAddr(accepted_from));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// In canonical form: on a socket for both, IPv4 clients have IPv6 addresses.
pub(super) fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    let said = extensions.get::<PeerAddr>().map(|peer| peer.0);
    #[cfg(feature = "axum")]
    let said = said.or_else(|| extensions.get::<axum::extract::ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    #[cfg(feature = "tonic")]
    let said = said.or_else(|| {
        extensions.get::<tonic::transport::server::TcpConnectInfo>().and_then(|peer| peer.remote_addr())
    });
    said.map(|address| address.ip().to_canonical())
}
