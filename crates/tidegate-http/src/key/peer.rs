//! The address of a connection's peer.

use std::net::{IpAddr, SocketAddr};

use http::Extensions;

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
