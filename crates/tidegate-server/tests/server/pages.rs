//! Pages in a browser cannot charge units, by what their requests have: see `browser/pages.rs` for a real browser.

use std::net::SocketAddr;

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use tidegate_server::{Admin, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::admin_fixture::tokens;
use super::fixture::{ANY, Running, descriptor, in_memory, request};

const RULES: &str =
    "{ domain: d, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 9 } }] }";

/// The same check in both forms, which a script can send as any text.
fn checks(server: &Running) -> [RequestBuilder; 2] {
    let body = json!({ "domain": "d", "descriptors": [{ "entries": [{ "key": "user", "value": "ada" }] }] });
    ["/json", "/v1/check"].map(|path| {
        let request = Client::new().post(server.url(path)).body(body.to_string());
        request.header("content-type", "application/json")
    })
}

async fn remaining(server: &Running) -> Value {
    let peek = Client::new().post(server.url("/v1/peek")).header("content-type", "application/json");
    let reply = peek.body(json!({ "gate": "d.user", "key": "ada" }).to_string()).send().await.unwrap();
    serde_json::from_str::<Value>(&reply.text().await.unwrap()).unwrap()["decision"]["remaining"].take()
}

#[tokio::test]
async fn request_that_a_page_could_have_sent_charges_nothing() {
    let server = Running::start(in_memory(RULES)).await;
    let own = server.url("");
    for (name, value, expected) in [
        ("origin", "http://evil.example", (403, "sent-by-page")),
        ("origin", "null", (403, "sent-by-page")),
        // The port has no pages: one that seems to be its own has rebound its name.
        ("origin", &own, (403, "sent-by-page")),
        ("sec-fetch-site", "cross-site", (403, "sent-by-page")),
        ("sec-fetch-site", "same-origin", (403, "sent-by-page")),
        ("host", "evil.example", (421, "unknown-host")),
        ("host", "localhost.evil.example", (421, "unknown-host")),
    ] {
        for check in checks(&server) {
            let reply = check.header(name, value).send().await.unwrap();
            let status = reply.status().as_u16();
            let problem: Value = serde_json::from_str(&reply.text().await.unwrap()).unwrap();
            let kind = problem["type"].as_str().unwrap().strip_prefix("urn:tidegate:problem:");
            assert_eq!((status, kind), (expected.0, Some(expected.1)), "{name}: {value}");
        }
    }
    assert_eq!(remaining(&server).await, 9);
    // Programs name a loopback port by any of these.
    for host in ["localhost", "127.0.0.1:1", "[::1]"] {
        for check in checks(&server) {
            assert_eq!(check.header("host", host).send().await.unwrap().status(), 200, "{host}");
        }
    }
    assert_eq!(remaining(&server).await, 3);
    // Probes, and the description of the API, change nothing.
    for path in ["/livez", "/readyz", "/healthcheck", "/v1/openapi.json"] {
        let get = Client::new().get(server.url(path)).header("host", "limits.internal");
        assert_eq!(get.header("origin", "http://evil.example").send().await.unwrap().status(), 200, "{path}");
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn port_beyond_loopback_has_any_name() {
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let bound = Server::new(in_memory(RULES)).bind(ANY, any).await.unwrap();
    let url = format!("http://127.0.0.1:{}/json", bound.http_addr().port());
    let serving = tokio::spawn(bound.run(std::future::pending()));
    let check = || Client::new().post(&url).body(json!({ "domain": "d", "descriptors": [{}] }).to_string());
    let named = check().header("host", "limits.prod.svc:8080");
    assert_eq!(named.send().await.unwrap().status(), 200);
    let by_page = check().header("host", "evil.example:8080").header("origin", "http://evil.example:8080");
    assert_eq!(by_page.send().await.unwrap().status(), 403, "also a page that has rebound its name");
    serving.abort();
}

#[tokio::test]
async fn grpc_message_of_a_page_charges_nothing() {
    let server = Running::start(in_memory(RULES)).await;
    let mut client = server.client().await;
    for (name, value) in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        let mut by_page = tonic::Request::new(request([descriptor(&[("user", "ada")])]));
        by_page.metadata_mut().insert(name, value.parse().unwrap());
        let refused = client.should_rate_limit(by_page).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {value}");
    }
    assert_eq!(remaining(&server).await, 9);
    drop(client);
    assert!(server.stop().await);
}

/// Returns the first line of the response.
async fn status_line(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\n\r\n").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn request_without_exactly_one_valid_host_is_malformed() {
    let admin = Admin::new(ANY).tokens(tokens());
    let server = Running::of(Server::new(in_memory(RULES)).admin(admin)).await;
    for (head, status) in [
        ("GET /livez HTTP/1.1", "400"),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: localhost", "400"),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nHost: evil.example", "400"),
        ("GET /livez HTTP/1.0\r\nhost: localhost\r\nhost: evil.example", "400"),
        ("GET /livez HTTP/1.1\r\nhost: evil@localhost", "400"),
        ("GET /livez HTTP/1.1\r\nhost: local host", "400"),
        ("GET /livez HTTP/1.1\r\nhost: localhost", "200"),
        ("GET /livez HTTP/1.1\r\nhost:", "200"),
        // As some load balancers probe.
        ("GET /livez HTTP/1.0", "200"),
    ] {
        let line = status_line(server.http_addr, head).await;
        assert_eq!(line.split(' ').nth(1), Some(status), "{head}: {line}");
        if status == "400" {
            let line = status_line(server.admin_addr.unwrap(), head).await;
            assert_eq!(line.split(' ').nth(1), Some(status), "{head} at the admin port: {line}");
        }
    }
    assert!(server.stop().await);
}
