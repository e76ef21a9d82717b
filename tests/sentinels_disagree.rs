//! Sentinels that name different primaries.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use redis::{Parser, Value};
use tidegate::{Limiter, OnFailure, Quota};
use tidegate_testkit::Server;

use crate::support::black_hole::black_hole;
use crate::support::fixture::{HOUR, namespace, soon};

/// Starts a sentinel that replies to each query after `delay`, on threads that end with their connections.
fn sentinel(primary: &str, delay: Duration) -> String {
    let primary: SocketAddr = primary.trim_start_matches("redis://").parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            thread::spawn(move || reply_to(client, primary, delay));
        }
    });
    url
}

fn reply_to(mut client: TcpStream, primary: SocketAddr, delay: Duration) {
    let mut commands = Parser::new();
    while let Ok(Value::Array(command)) = commands.parse_value(&mut client) {
        let is_query = matches!(&command[0], Value::BulkString(name) if name == b"SENTINEL");
        let reply = if is_query {
            thread::sleep(delay);
            let (host, port) = (primary.ip().to_string(), primary.port().to_string());
            format!("*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n", host.len(), port.len())
        } else {
            "+PONG\r\n".to_owned()
        };
        if client.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

fn limiter(sentinels: &[String]) -> Limiter {
    let builder = Limiter::builder().sentinel(sentinels.iter().map(String::as_str), "primary");
    let builder = builder.namespace(&namespace()).on_failure(OnFailure::Error).breaker(false);
    builder.deadline(Duration::from_secs(2)).stderr_warnings(false).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_that_names_a_dead_primary_does_not_hide_the_others() {
    let (server, hole) = (Server::process(&[]).unwrap(), black_hole().await);
    // The wrong address arrives first at each attempt.
    let wrong = sentinel(&hole.url, Duration::ZERO);
    let right = sentinel(server.url(), Duration::from_millis(50));
    let gate = limiter(&[wrong, right]).gate("gate", Quota::fixed_window(1_000, HOUR));
    soon("the live primary decides", async || gate.check("key").await.is_ok()).await;
    // The task that accepts connections may run late.
    soon("the dead primary was tried", async || hole.taken() > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn error_names_the_primary_that_does_not_answer() {
    let hole = black_hole().await;
    let silent = black_hole().await;
    let wrong = sentinel(&hole.url, Duration::ZERO);
    let error = limiter(&[wrong, silent.url]).ready().await.unwrap_err();
    let address = hole.url.trim_start_matches("redis://");
    assert!(error.is_unavailable() && error.to_string().contains(address), "{error}");
}
