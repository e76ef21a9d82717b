//! Mistakes at the admin port: requests that cannot be read, and examples that are copied.

use std::time::Duration;

use tidegate_server::{Admin, AdminTokens};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::access::{BLOCK, start};
use crate::server::admin_fixture::{OPERATOR, client, tokens};
use crate::server::fixture::ANY;

#[test]
fn example_of_the_documentation_is_no_valid_file() {
    let page = include_str!("../../../../docs/operate/console.md");
    let (_, example) = page.split_once("```text\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let mut lines = example.lines().filter(|line| !line.starts_with('#')).peekable();
    assert!(lines.peek().is_some());
    for line in lines {
        let error = AdminTokens::parse(line).unwrap_err().to_string();
        assert!(error.contains("line 1"), "an operator could copy {line}: {error}");
    }
}

#[tokio::test]
async fn each_mistake_is_a_problem_document_that_says_what_to_send() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let get = |path: &str| client().get(server.admin_url(path)).bearer_auth(OPERATOR);
    let post = |path: &str| client().post(server.admin_url(path)).bearer_auth(OPERATOR);
    for (status, expected, request) in [
        (400, "`format` is `json` or `text`", get("/config?format=json&format=text")),
        (400, "`format` is `json` or `text`", get("/config?format=%3Cb%3E")),
        (405, "GET is not a method of this page", get("/api/block")),
        (405, "GET is not a method of this page", get("/logout")),
        (405, "POST is not a method of this page", post("/config")),
        (415, "send `Content-Type: application/json`", post("/api/block").body(BLOCK)),
        (415, "send `Content-Type: application/x-www-form-urlencoded`", post("/logout")),
        (
            401,
            "send `Authorization: Bearer TOKEN`",
            client().get(server.admin_url("/config")).basic_auth("ada", Some(OPERATOR)),
        ),
    ] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status, "{expected}");
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{expected}");
        assert_eq!(response.headers().contains_key("allow"), status == 405, "{expected}");
        let problem: serde_json::Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert!(problem["detail"].as_str().unwrap().starts_with(expected), "{problem}");
    }
    let login = client().get(server.admin_url("/login?next=%2Fgates&next=x")).send().await.unwrap();
    assert_eq!(login.status(), 200);
}

#[tokio::test]
async fn body_that_is_cut_off_is_a_bad_request_and_not_too_large() {
    let server = start(Admin::new(ANY).tokens(tokens())).await;
    let mut stream = TcpStream::connect(server.admin_addr.unwrap()).await.unwrap();
    let head = format!(
        "POST /api/block HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {OPERATOR}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{{\"gat\r\nquagga\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = String::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_string(&mut response))
        .await
        .unwrap()
        .unwrap();
    assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
    assert!(response.contains("the body was cut off"), "{response}");
}
