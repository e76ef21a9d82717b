//! The sources of a key in a request.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use http::{HeaderName, HeaderValue};
use tidegate::AsKey;
use tidegate_http::{ClientIp, Key, PeerAddr};

use super::{network, request};

fn parts(uri: &str) -> Parts {
    http::Request::get(uri).body(()).unwrap().into_parts().0
}

fn with_header(name: &'static str, values: &[&'static str]) -> Parts {
    let name = HeaderName::from_static(name);
    let lines: Vec<_> = values.iter().map(|value| (name.clone(), HeaderValue::from_static(value))).collect();
    request(None, &lines)
}

#[test]
fn header_is_a_key_if_present_and_not_empty() {
    let key = Key::header("X-Api-Key");
    assert_eq!(key.of(&with_header("x-api-key", &["abc"])).unwrap(), b"abc");
    assert_eq!(key.of(&with_header("x-api-key", &["first", "second"])).unwrap(), b"first");
    assert_eq!(key.of(&with_header("x-api-key", &[""])), None);
    assert_eq!(key.of(&with_header("x-other", &["abc"])), None);
}

#[test]
#[should_panic(expected = "not a valid header name: \"X Api Key\"")]
fn invalid_header_name_panics() {
    let _ = Key::header("X Api Key");
}

#[test]
#[should_panic(expected = "an IPv6 address has 128 bits, not 129")]
fn ipv6_prefix_above_128_bits_panics() {
    let _ = ClientIp::peer().ipv6_prefix(129);
}

#[test]
fn path_key_excludes_the_query() {
    assert_eq!(Key::path().of(&parts("http://example.com/a/b?c=d")).unwrap(), b"/a/b");
}

#[test]
fn extension_and_closure_provide_the_key() {
    #[derive(Clone)]
    struct User(u64);
    let mut parts = parts("http://example.com/");
    let key = Key::extension(|user: &User| user.0.to_string());
    assert_eq!(key.of(&parts), None);
    parts.extensions.insert(User(7));
    assert_eq!(key.of(&parts).unwrap(), b"7");
    assert_eq!(Key::from_fn(|parts| Some(parts.uri.host()?.into())).of(&parts).unwrap(), b"example.com");
    assert_eq!(Key::from_fn(|_| None).of(&parts), None);
}

#[test]
fn only_trusted_addresses_put_a_client_in_a_network() {
    let offices = [network("198.51.100.0/24"), network("10.0.0.0/8")];
    let forged = [("x-forwarded-for".parse().unwrap(), HeaderValue::from_static("198.51.100.1"))];
    let is_in = |ip: ClientIp, peer: Option<&str>| {
        ip.is_in(&request(peer.map(|peer| peer.parse().unwrap()), &forged), &offices)
    };
    assert!(is_in(ClientIp::peer(), Some("198.51.100.9")));
    assert!(is_in(ClientIp::peer(), Some("::ffff:198.51.100.9")));
    assert!(!is_in(ClientIp::peer(), Some("203.0.113.7")), "the header is not trusted");
    assert!(!is_in(ClientIp::peer(), Some("2002:a00:1::1")), "a client can choose its 6to4 network");
    assert!(!is_in(ClientIp::peer(), None));
    assert!(is_in(ClientIp::behind([network("203.0.113.0/24")]).unwrap(), Some("203.0.113.7")));
}

#[test]
fn debug_of_a_constant_key_shows_its_first_two_bytes() {
    assert_eq!(format!("{:?}", Key::constant("sk-live-4711")), r#"constant("sk…" (12 bytes))"#);
}

#[test]
fn debug_lists_the_parts_of_a_key() {
    let key = Key::all([Key::header("x-api-key"), Key::path(), Key::constant("a|b"), Key::from_fn(|_| None)]);
    assert_eq!(format!("{key:?}"), r#"all([header(x-api-key), path, constant("…" (3 bytes)), from_fn(…)])"#);
}

#[tokio::test]
async fn axum_provides_the_peer_address_and_the_route() {
    use axum::extract::ConnectInfo;
    use axum::middleware::{self, Next};
    use axum::routing::get;
    use axum::{Router, extract::Request};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn show(request: Request, _: Next) -> String {
        let (parts, _) = request.into_parts();
        let key = Key::all([Key::client_ip(ClientIp::peer()), Key::path(), Key::path_template()]);
        String::from_utf8(key.of(&parts).unwrap_or_else(|| b"none".to_vec())).unwrap()
    }
    let users = Router::new().route("/{id}", get(|| async {})).layer(middleware::from_fn(show));
    let app = Router::new().nest("/users", users);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });

    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /users/42?a=b HTTP/1.0\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    server.abort();
    assert!(response.ends_with("127.0.0.1|/users/42|/users/{id}"), "{response}");

    let mut parts = parts("/");
    parts.extensions.insert(ConnectInfo(SocketAddr::from(([203, 0, 113, 7], 1))));
    parts.extensions.insert(PeerAddr(SocketAddr::from(([198, 51, 100, 1], 1))));
    assert_eq!(
        ClientIp::peer().of(&parts),
        Some(IpAddr::from([198, 51, 100, 1])),
        "PeerAddr has precedence over ConnectInfo"
    );
}

#[test]
fn tonic_provides_the_peer_address() {
    use tonic::transport::server::TcpConnectInfo;

    let mut parts = parts("/package.Service/Method");
    let remote_addr = Some(SocketAddr::from(([203, 0, 113, 7], 1)));
    parts.extensions.insert(TcpConnectInfo { local_addr: None, remote_addr });
    assert_eq!(ClientIp::peer().of(&parts), Some(IpAddr::from([203, 0, 113, 7])));
}

#[test]
fn key_of_a_request_can_be_an_integer() {
    #[derive(Clone)]
    struct User {
        id: u64,
    }

    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.extensions.insert(User { id: 42 });
    let key = Key::all([Key::constant(7), Key::extension(|user: &User| user.id), Key::constant("shop")]);
    assert_eq!(key.of(&parts).as_deref(), Some(&b"7|42|shop"[..]));
    let header = http::HeaderValue::from_static("abc");
    assert_eq!(&*header.as_key(), b"abc");
}
