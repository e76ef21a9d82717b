//! The examples as processes over real sockets, before a real Redis: what their first lines say is what
//! they answer.

use std::process::Command;
use std::time::Duration;

use harness::Server;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::process::Example;

/// Says nothing of the limit.
const LEFT_OUT: [&str; 3] = ["date:", "content-length:", "vary:"];

/// Runs each `$ curl …` that the example's first lines show, one after the other.
fn answers_as_it_says(name: &str) {
    let path = format!("{}/examples/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(path).unwrap();
    let docs =
        source.lines().map_while(|line| line.strip_prefix("//!")).map(|line| line.trim_start_matches(' '));
    let docs = docs.collect::<Vec<_>>().join("\n");
    let shown = docs.split("```console\n").nth(2).expect("a second block").split("```").next().unwrap();
    // Where the machine is so busy that Redis does not answer in time, the process decides by itself.
    let as_shown = |answered: &String| timeless(answered) == timeless(shown);
    let answered = answers(name, shown);
    if !as_shown(&answered) && !(0..2).any(|_| as_shown(&answers(name, shown))) {
        panic!("{name} answered:\n{answered}");
    }
}

fn answers(name: &str, shown: &str) -> String {
    let server = Server::process(&[]).unwrap();
    let example = Example::start(name, server.url());
    let mut answered = String::new();
    for command in shown.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let here = command.replace("127.0.0.1:3000", &example.address.to_string());
        let output = Command::new("sh").args(["-c", &here]).output().unwrap();
        assert!(output.status.success(), "{here}: {output:?}");
        let output = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        let lines = output.lines().filter(|line| !LEFT_OUT.iter().any(|name| line.starts_with(name)));
        let lines = lines.map(str::trim_end).collect::<Vec<_>>().join("\n");
        answered += &format!("$ {command}\n{}\n", lines.trim_end());
    }
    assert!(!answered.is_empty(), "{name} shows no curl");
    answered
}

/// Seconds that may have gone by, since the machine is busy, as `S`: what was said of up to 20 s before.
fn timeless(text: &str) -> String {
    let mut timeless = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let end = number.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(number.len());
        let is_time = [";t=", "x-ratelimit-reset: ", "retry-after: ", "again in ", "again%20in%20"];
        timeless += before;
        timeless += match is_time.iter().any(|words| before.ends_with(words)) {
            true => "S",
            false => &number[..end],
        };
        rest = &number[end..];
    }
    timeless + rest
}

#[test]
fn axum_two_tiers() {
    answers_as_it_says("axum");
}

#[test]
fn login_counts_failures_only() {
    answers_as_it_says("login");
}

#[test]
fn degraded_answers_instead_of_refusing() {
    answers_as_it_says("degraded");
}

#[test]
fn axum_in_ten_lines() {
    let source = include_str!("../../examples/ten_lines.rs");
    let lines = source.lines().filter(|line| !line.starts_with("//!") && !line.trim().is_empty());
    assert_eq!(lines.count(), 10);
    answers_as_it_says("ten_lines");
}

#[cfg(feature = "rules")]
#[test]
fn rules_from_a_folder() {
    answers_as_it_says("rules");
}

#[test]
fn grpc_over_curl() {
    answers_as_it_says("grpc");
}

#[tokio::test]
async fn grpc_over_tonic() {
    let server = harness::shared();
    let example = Example::start("grpc", server.url());
    let channel = Channel::from_shared(format!("http://{}", example.address)).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let mut check = async |name: &str| {
        let mut request = tonic::Request::new(HealthCheckRequest { service: String::new() });
        request.metadata_mut().insert("x-client", name.parse().unwrap());
        client.check(request).await
    };
    for left in ["1", "0"] {
        let response = check("tonic").await.unwrap();
        assert_eq!(response.metadata().get("x-ratelimit-remaining").unwrap(), left);
    }
    let denied = check("tonic").await.unwrap_err();
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.metadata().get("x-ratelimit-remaining").unwrap(), "0");
    let retry = denied.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!(retry > Duration::ZERO && retry <= Duration::from_secs(30), "{retry:?}");
    assert!(check("another").await.is_ok());
}
