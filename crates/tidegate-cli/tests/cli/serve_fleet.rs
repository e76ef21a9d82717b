//! Several services of one namespace: a rolling restart behind Envoy, and the permits of one that was killed.
#![allow(clippy::print_stdout, reason = "prints how many requests a rolling restart loses")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testkit::Envoy;

use super::deployment::read;
use super::program::Program;
use super::rules::File;
use super::serve::{Service, send, soon};

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000000000 }
  - key: tenant
    rate_limit: { in_flight: 1 }
";

/// Returns the configuration in `deploy` with these replicas. The machine of a test can be slow, so nothing times out.
fn envoy_config(replicas: &[&Service; 2]) -> String {
    let endpoint = "- endpoint: { address: { socket_address: { address: tidegate, port_value: 8081 } } }";
    let endpoints = replicas.map(|replica| {
        let (host, port) = replica.grpc.rsplit_once(':').unwrap();
        endpoint.replace("address: tidegate", &format!("address: {host}")).replace("8081", port)
    });
    let socket = std::env::temp_dir().join(format!("tidegate-{}-fleet.sock", std::process::id()));
    let replaced = [
        (endpoint, &*endpoints.join("\n              ")),
        ("address: 0.0.0.0, port_value: 10000", "address: 127.0.0.1, port_value: {port}"),
        ("/tmp/service.sock", socket.to_str().unwrap()),
        ("timeout: 0.25s", "timeout: 30s"),
        ("timeout: 1s", "timeout: 30s"),
    ];
    replaced.into_iter().fold(read("envoy/envoy.yaml"), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

/// Returns whether a request got a decision: Envoy admits it without these headers if it got none.
fn is_decided(address: &str) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nhost: x\r\nx-user: ada\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.starts_with("HTTP/1.1 200") && response.contains("x-ratelimit-limit: ")
}

fn has_decided(replica: &Service) -> bool {
    send(&replica.admin, "GET /metrics", "accept: */*", "")
        .1
        .contains("tidegate_decisions_total{gate=\"edge / user\"")
}

#[test]
fn rolling_restart_behind_the_documented_envoy_loses_no_request() {
    let program = Program::shared();
    let file = File::new("serve-rolling", RULES);
    // A machine under load needs longer for a health check.
    let args = ["--rules", file.path(), "--deadline", "30s", "--drain-notice", "3s", "--metrics-public"];
    let start = |addresses: [&str; 2]| {
        let ports = ["--json", "serve", "--grpc-addr", addresses[0], "--http-addr", addresses[1]];
        let ports = [&ports[..], &["--admin-addr", "127.0.0.1:0"]].concat();
        Service::of(program.command([&ports[..], &args].concat()))
    };
    let replicas = [(); 2].map(|()| start(["127.0.0.1:0"; 2]));
    let envoy = Envoy::start(&envoy_config(&replicas.each_ref())).unwrap();
    let url = envoy.url();
    let address = url.strip_prefix("http://").unwrap();
    soon("Envoy limits", || is_decided(address));
    let (is_sending, sent, lost) = (AtomicBool::new(true), AtomicUsize::new(0), AtomicUsize::new(0));
    let after = thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while is_sending.load(Ordering::Relaxed) {
                    lost.fetch_add(usize::from(!is_decided(address)), Ordering::Relaxed);
                    sent.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(10));
                }
            });
        }
        soon("both replicas decide", || replicas.iter().all(has_decided));
        let after = replicas.map(|replica| {
            let (grpc, http) = (replica.grpc.clone(), replica.http.clone());
            replica.signal("-TERM");
            assert_eq!(replica.end(), Some(0));
            let next = start([&grpc, &http]);
            soon("the new replica decides", || has_decided(&next));
            next
        });
        is_sending.store(false, Ordering::Relaxed);
        after
    });
    let (sent, lost) = (sent.into_inner(), lost.into_inner());
    println!("{lost} of {sent} requests lost");
    assert_eq!(lost, 0, "of {sent}");
    drop(after);
}

#[test]
fn permit_of_a_killed_service_is_free_after_its_lease() {
    let program = Program::shared();
    let file = File::new("serve-killed", RULES);
    let args = ["--rules", file.path(), "--deadline", "30s"];
    let (one, two) = (Service::start(&program, &args), Service::start(&program, &args));
    let post = |service: &Service, endpoint: &str, body: &Value| {
        let path = format!("POST /v1/{endpoint}");
        let (status, body) = send(&service.http, &path, "content-type: application/json", &body.to_string());
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    let descriptor = json!({ "entries": [{ "key": "tenant", "value": "7" }] });
    let acquire = json!({ "domain": "edge", "descriptors": [descriptor], "ttl_ms": 3_600_000 });
    let (status, acquired) = post(&one, "acquire", &acquire);
    assert_eq!(status, 200, "{acquired}");
    let release = json!({ "permit": acquired["permit"]["id"] });
    drop(one);
    assert_eq!(post(&two, "release", &release), (200, json!({ "confirmed": false })));
    soon("free", || post(&two, "acquire", &acquire).0 == 200);
    assert_eq!(post(&two, "release", &release).0, 200);
    assert_eq!(post(&two, "acquire", &acquire).0, 429, "the release of a lost permit frees no other");
}
