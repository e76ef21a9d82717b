//! The proxy transfers, counts, and injects faults.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use tidegate_testkit::{Fault, Proxy};

/// Upper bound for events that must happen.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a test waits to show that no bytes arrive.
const SILENCE: Duration = Duration::from_millis(50);

/// Starts an echo server, and a proxy to it.
fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(&format!("redis://{}", listener.local_addr().unwrap())).unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            client.set_nodelay(true).unwrap();
            thread::spawn(move || io::copy(&mut client.try_clone().unwrap(), &mut client));
        }
    });
    proxy
}

fn client(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).unwrap();
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// Returns a proxy and a client that has received an echo.
fn connected() -> (Proxy, TcpStream) {
    let proxy = echo();
    let mut client = client(&proxy);
    echoed(&mut client, "hello").unwrap();
    (proxy, client)
}

/// Sends a text. Returns the reply.
fn echoed(client: &mut TcpStream, text: &str) -> io::Result<String> {
    client.write_all(text.as_bytes())?;
    let mut reply = vec![0; text.len()];
    client.read_exact(&mut reply)?;
    Ok(String::from_utf8(reply).unwrap())
}

fn is_silent(client: &mut TcpStream) -> bool {
    client.set_read_timeout(Some(SILENCE)).unwrap();
    let read = client.read(&mut [0]);
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    read.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
}

/// Returns whether the connection has ended, by a close or a reset.
fn has_ended(client: &mut TcpStream) -> bool {
    match client.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {condition}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn proxy_transfers_and_counts() {
    let proxy = echo();
    let mut one = client(&proxy);
    let mut other = client(&proxy);
    assert_eq!(echoed(&mut one, "hello").unwrap(), "hello");
    assert_eq!(echoed(&mut other, "you").unwrap(), "you");
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.open), (2, 2));
    assert_eq!((counts.to_server, counts.to_client), (8, 8));
    drop(one);
    wait_until("one is counted as ended", || proxy.counts().open == 1);
}

#[test]
fn black_hole_discards_bytes_and_its_connections_stay_silent() {
    let (proxy, mut before) = connected();
    proxy.set(Fault::BlackHole);
    before.write_all(b"lost").unwrap();
    let mut within = client(&proxy);
    within.write_all(b"lost").unwrap();
    wait_until("the proxy has read all bytes", || proxy.counts().to_server == 5 + 2 * 4);
    assert!(is_silent(&mut before) && is_silent(&mut within));
    proxy.set(Fault::None);
    before.write_all(b"still lost").unwrap();
    within.write_all(b"still lost").unwrap();
    assert!(is_silent(&mut before) && is_silent(&mut within));
    assert_eq!(echoed(&mut client(&proxy), "found").unwrap(), "found");
}

#[test]
fn slow_reply_is_late_and_complete_and_does_not_delay_others() {
    // Long, because a busy machine also delays the replies.
    const LATE: Duration = Duration::from_secs(1);
    let proxy = echo();
    let mut client = client(&proxy);
    proxy.set(Fault::Slow(LATE));
    let start = Instant::now();
    for word in ["one ", "two ", "three"] {
        client.write_all(word.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
    let mut received = [0; 13];
    client.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"one two three");
    assert!(start.elapsed() >= LATE);
    assert!(start.elapsed() < 3 * LATE, "{:?}", start.elapsed());
}

#[test]
fn cut_connection_ends_within_the_given_bytes() {
    const MAX_BYTES: u64 = 100;
    let proxy = echo();
    proxy.set(Fault::Cut(MAX_BYTES));
    for _ in 0..20 {
        let mut client = client(&proxy);
        let (mut sent, mut received) = (0, 0);
        // One byte at a time, so that cuts happen in both directions.
        let error = loop {
            if let Err(error) = client.write_all(b"x") {
                break error;
            }
            sent += 1;
            if let Err(error) = client.read_exact(&mut [0]) {
                break error;
            }
            received += 1;
        };
        // The connection ends instead of becoming silent.
        assert!(!matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
        assert!(sent + received <= MAX_BYTES + 1, "{sent} sent, {received} received");
    }
    proxy.set(Fault::None);
    let text = "x".repeat(2_000);
    assert_eq!(echoed(&mut client(&proxy), &text).unwrap(), text);
}

#[test]
fn cut_ends_open_connections_and_no_later_ones() {
    let (proxy, mut before) = connected();
    proxy.cut();
    assert!(has_ended(&mut before));
    assert_eq!(echoed(&mut client(&proxy), "hello").unwrap(), "hello");
}

#[test]
fn refuse_closes_the_port_until_the_fault_ends() {
    let (proxy, mut before) = connected();
    proxy.set(Fault::Refuse);
    assert!(has_ended(&mut before));
    let refused = || {
        let connected = TcpStream::connect(proxy.address());
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    wait_until("connections are refused", refused);
    assert!(refused());
    proxy.set(Fault::None);
    wait_until("connections are accepted", || TcpStream::connect(proxy.address()).is_ok());
    assert_eq!(echoed(&mut client(&proxy), "again").unwrap(), "again");
}

#[test]
fn half_close_ends_the_clients_reads_and_accepts_its_writes() {
    let (proxy, mut before) = connected();
    proxy.set(Fault::HalfClose);
    let mut within = client(&proxy);
    for client in [&mut before, &mut within] {
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        client.write_all(b"into the void").unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        client.write_all(b"and on").unwrap();
    }
    wait_until("the proxy has read all bytes", || proxy.counts().to_server == 5 + 2 * 19);
}

#[test]
fn connection_ends_at_once_without_server() {
    let proxy = Proxy::start("127.0.0.1:1").unwrap();
    assert!(has_ended(&mut client(&proxy)));
}

#[test]
fn dropping_the_proxy_ends_it() {
    let proxy = echo();
    let address = proxy.address();
    let mut before = client(&proxy);
    echoed(&mut before, "hello").unwrap();
    drop(proxy);
    assert!(has_ended(&mut before));
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test]
async fn proxy_starts_and_stops_within_a_runtime() {
    let proxy = echo();
    assert_eq!(echoed(&mut client(&proxy), "hello").unwrap(), "hello");
}
