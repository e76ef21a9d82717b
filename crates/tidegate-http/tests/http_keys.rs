//! Keys of requests.

mod combinations;
mod networks;
mod random_headers;
mod sources;
mod spoofing;

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use http::{HeaderName, HeaderValue};
use tidegate_http::{ClientIp, IpNet, Key, PeerAddr};

/// Returns a request with these header lines, over a connection from `peer`.
fn request(peer: Option<IpAddr>, lines: &[(HeaderName, HeaderValue)]) -> Parts {
    let (mut parts, ()) = http::Request::new(()).into_parts();
    for (name, value) in lines {
        parts.headers.append(name, value.clone());
    }
    if let Some(peer) = peer {
        parts.extensions.insert(PeerAddr(SocketAddr::new(peer, 4711)));
    }
    parts
}

fn network(text: &str) -> IpNet {
    text.trim().parse().unwrap()
}

/// Returns the key as text, or `none`.
fn key(ip: &ClientIp, parts: &Parts) -> String {
    let key = Key::client_ip(ip.clone()).of(parts);
    key.map_or("none".to_owned(), |key| String::from_utf8(key).unwrap())
}
