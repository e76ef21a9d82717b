//! Keys of requests.

mod combinations;
mod networks;
mod paths;
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

/// Repeats the text in braces: `{a, ×3}b` is `a, a, a, b`. Other braces stay.
fn expanded(text: &str) -> String {
    let Some((before, (inside, after))) =
        text.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return text.to_owned();
    };
    let Some((repeated, times)) = inside.rsplit_once('×') else { return text.to_owned() };
    format!("{before}{}{after}", repeated.repeat(times.parse().unwrap()))
}
