//! Requests that no client sends by design: any bytes, and valid messages with mutations. None of them ends the server, and
//! the next request is answered.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use prost::Message;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code as Decided;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tonic::Code;

use super::fixture::{Running, descriptor, given_back, in_memory, request, with_hits, with_limit};
use super::raw::{PREFACE, RawClient};
use crate::support::plan::sequences;

const RULES: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 2000000000 }
";

/// A part of a message, and the bytes that replace it.
type Mutation = (prop::sample::Index, usize, Vec<u8>);

/// Messages with each field of the protocol.
fn valid() -> impl Strategy<Value = Vec<RateLimitDescriptor>> {
    let user = || descriptor(&[("user", "ada"), ("path", "/\u{e9}?<b>")]);
    let kinds = [user(), with_hits(user(), 0), given_back(user()), with_limit(user(), 5, 1), descriptor(&[])];
    vec(prop::sample::select(kinds.to_vec()), 0..4)
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    vec((any::<prop::sample::Index>(), 0_usize..9, vec(any::<u8>(), 0..9)), 1..6)
}

fn mutated(mut bytes: Vec<u8>, mutations: Vec<Mutation>) -> Vec<u8> {
    for (at, length, replacement) in mutations {
        let at = at.index(bytes.len() + 1);
        let end = (at + length).min(bytes.len());
        bytes.splice(at..end, replacement);
    }
    bytes
}

fn runner(runtime: &Runtime, rules: &str) -> (TestRunner, Running) {
    let config = ProptestConfig { cases: sequences(), failure_persistence: None, ..Default::default() };
    (TestRunner::new(config), runtime.block_on(Running::start(in_memory(rules))))
}

async fn assert_answers(server: &Running) {
    let next = server.client().await.should_rate_limit(request([descriptor(&[("user", "next")])])).await;
    assert_eq!(next.unwrap().into_inner().overall_code(), Decided::Ok);
}

#[test]
fn grpc_message_of_any_bytes_is_decided_or_an_error() {
    let runtime = Runtime::new().unwrap();
    let (mut runner, server) = runner(&runtime, RULES);
    let valid = (valid(), mutations())
        .prop_map(|(descriptors, mutations)| mutated(request(descriptors).encode_to_vec(), mutations));
    let messages = prop_oneof![vec(any::<u8>(), 0..2_000), valid];
    let client = runtime.block_on(RawClient::connect(server.grpc_addr));
    let (client, codes) = (std::cell::RefCell::new(client), std::cell::RefCell::new(BTreeSet::new()));
    let tested = runner.run(&messages, |message| {
        let sent = runtime.block_on(client.borrow_mut().send(message));
        let code = sent.map_or_else(|error| error.code(), |()| Code::Ok);
        codes.borrow_mut().insert(format!("{code:?}"));
        prop_assert!(matches!(code, Code::Ok | Code::Internal | Code::InvalidArgument), "{code}");
        Ok(())
    });
    tested.unwrap();
    assert!(codes.borrow().len() > 1, "{codes:?}");
    runtime.block_on(assert_answers(&server));
}

#[test]
fn json_body_of_any_bytes_is_decided_or_an_error() {
    let runtime = Runtime::new().unwrap();
    let (mut runner, server) = runner(&runtime, RULES);
    let text = |value: &str| {
        format!(
            r#"{{"domain":"d","hitsAddend":1,"descriptors":[{{"entries":[{{"key":"user","value":"{value}"}}],
            "hitsAddend":"2","isNegativeHits":false,"limit":{{"requestsPerUnit":5,"unit":"HOUR"}}}}]}}"#
        )
    };
    let valid = ("\\PC{0,9}", mutations())
        .prop_map(move |(value, mutations)| mutated(text(&value).into_bytes(), mutations));
    // Deeper than any parser that recurses without a limit survives, and within the maximum of a message: the server
    // answers a longer one before it is read, and closes the connection, so a client can fail to send the rest.
    let deep = (prop::sample::select(vec!["[", "{\"descriptors\":[", "{\"domain\":"]), 1_usize..20_000)
        .prop_map(|(open, depth)| open.repeat(depth.min(64_000 / open.len())).into_bytes());
    let bodies = prop_oneof![4 => vec(any::<u8>(), 0..2_000), 4 => valid, 1 => deep];
    let (client, url) = (reqwest::Client::new(), server.url("/json"));
    let statuses = std::cell::RefCell::new(BTreeSet::new());
    let tested = runner.run(&bodies, |body| {
        let status = runtime.block_on(async { client.post(&url).body(body).send().await.unwrap().status() });
        statuses.borrow_mut().insert(status.as_u16());
        prop_assert!(matches!(status.as_u16(), 200 | 400 | 429), "{status}");
        Ok(())
    });
    tested.unwrap();
    assert!(statuses.borrow().contains(&400), "{statuses:?}");
    runtime.block_on(assert_answers(&server));
}

#[test]
fn any_bytes_on_a_port_end_at_most_their_connection() {
    let runtime = Runtime::new().unwrap();
    let (mut runner, server) = runner(&runtime, RULES);
    let head =
        b"POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec();
    let frame = (any::<u8>(), any::<u8>(), 0_u32..9, vec(any::<u8>(), 0..40)).prop_map(
        |(kind, flags, stream, payload)| {
            let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
            let mut frame = length[1..].to_vec();
            frame.extend([kind % 10, flags]);
            frame.extend(stream.to_be_bytes());
            frame.extend(payload);
            frame
        },
    );
    let frames = vec(frame, 0..9).prop_map(|frames| [PREFACE.to_vec(), frames.concat()].concat());
    let bytes = prop_oneof![
        vec(any::<u8>(), 0..500),
        frames,
        mutations().prop_map(move |mutations| mutated(head.clone(), mutations)),
    ];
    let tested = runner.run(&(bytes, any::<bool>()), |(bytes, is_grpc)| {
        let address = if is_grpc { server.grpc_addr } else { server.http_addr };
        runtime.block_on(exchange(address, &bytes));
        Ok(())
    });
    tested.unwrap();
    runtime.block_on(assert_answers(&server));
    assert!(runtime.block_on(server.stop()), "no connection is left");
}

/// Sends bytes, and reads until the server closes the connection. An error means that it has closed it already.
async fn exchange(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    if stream.write_all(bytes).await.is_ok() && stream.shutdown().await.is_ok() {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}
