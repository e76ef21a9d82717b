//! The proxy passes on, counts, and breaks what it is told to break.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use harness::{Fault, Proxy};

/// Long enough that only what never comes is missed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it is looked for what must not come.
const A_MOMENT: Duration = Duration::from_millis(50);

/// A proxy to a server that says what it is told.
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
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_nodelay(true).unwrap();
    client
}

/// And a client that has been answered.
fn talking() -> (Proxy, TcpStream) {
    let proxy = echo();
    let mut client = client(&proxy);
    says(&mut client, "hello").unwrap();
    (proxy, client)
}

fn says(client: &mut TcpStream, text: &str) -> io::Result<String> {
    client.write_all(text.as_bytes())?;
    let mut heard = vec![0; text.len()];
    client.read_exact(&mut heard)?;
    Ok(String::from_utf8(heard).unwrap())
}

fn is_silent(client: &mut TcpStream) -> bool {
    client.set_read_timeout(Some(A_MOMENT)).unwrap();
    let read = client.read(&mut [0]);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    read.is_err_and(|error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
}

/// Whether it has ended, one way or the other.
fn has_ended(client: &mut TcpStream) -> bool {
    match client.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

fn soon(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn it_passes_on_and_counts() {
    let proxy = echo();
    let mut one = client(&proxy);
    let mut other = client(&proxy);
    assert_eq!(says(&mut one, "hello").unwrap(), "hello");
    assert_eq!(says(&mut other, "you").unwrap(), "you");
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.open), (2, 2));
    assert_eq!((counts.to_server, counts.to_client), (8, 8));
    drop(one);
    soon("one is counted as ended", || proxy.counts().open == 1);
}

#[test]
fn what_a_black_hole_swallowed_never_comes_and_its_connection_stays_dumb() {
    let (proxy, mut before) = talking();
    proxy.set(Fault::BlackHole);
    before.write_all(b"lost").unwrap();
    let mut within = client(&proxy);
    within.write_all(b"lost").unwrap();
    assert!(is_silent(&mut before) && is_silent(&mut within));
    proxy.set(Fault::None);
    before.write_all(b"still lost").unwrap();
    within.write_all(b"still lost").unwrap();
    assert!(is_silent(&mut before) && is_silent(&mut within));
    assert_eq!(says(&mut client(&proxy), "found").unwrap(), "found");
}

#[test]
fn a_slow_reply_comes_late_and_whole_and_does_not_hold_up_others() {
    const LATE: Duration = Duration::from_millis(200);
    let proxy = echo();
    let mut client = client(&proxy);
    proxy.set(Fault::Slow(LATE));
    let start = Instant::now();
    for word in ["one ", "two ", "three"] {
        client.write_all(word.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
    let mut heard = [0; 13];
    client.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"one two three");
    assert!(start.elapsed() >= LATE);
    assert!(start.elapsed() < 3 * LATE, "{:?}", start.elapsed());
}

#[test]
fn a_cut_connection_ends_within_so_many_bytes_and_at_any_of_them() {
    const MOST: u64 = 100;
    let proxy = echo();
    proxy.set(Fault::Cut(MOST));
    for _ in 0..20 {
        let mut client = client(&proxy);
        let (mut said, mut heard) = (0, 0);
        // One byte after the other, so that each direction is cut now and then.
        let error = loop {
            if let Err(error) = client.write_all(b"x") {
                break error;
            }
            said += 1;
            if let Err(error) = client.read_exact(&mut [0]) {
                break error;
            }
            heard += 1;
        };
        // An end, not silence.
        assert!(!matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{error}");
        assert!(said + heard <= MOST + 1, "{said} said, {heard} heard");
    }
    proxy.set(Fault::None);
    let text = "x".repeat(2_000);
    assert_eq!(says(&mut client(&proxy), &text).unwrap(), text);
}

#[test]
fn cut_ends_what_is_there_and_nothing_that_comes() {
    let (proxy, mut before) = talking();
    proxy.cut();
    assert!(has_ended(&mut before));
    assert_eq!(says(&mut client(&proxy), "hello").unwrap(), "hello");
}

#[test]
fn refused_means_nobody_listens_until_it_is_over() {
    let (proxy, mut before) = talking();
    proxy.set(Fault::Refuse);
    assert!(has_ended(&mut before));
    let refused = || {
        let connected = TcpStream::connect(proxy.address());
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    soon("connections are refused", refused);
    assert!(refused());
    proxy.set(Fault::None);
    soon("connections are taken", || TcpStream::connect(proxy.address()).is_ok());
    assert_eq!(says(&mut client(&proxy), "again").unwrap(), "again");
}

#[test]
fn half_closed_means_that_the_client_reads_an_end_and_may_go_on_sending() {
    let (proxy, mut before) = talking();
    proxy.set(Fault::HalfClose);
    let mut within = client(&proxy);
    for client in [&mut before, &mut within] {
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        client.write_all(b"into the void").unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        client.write_all(b"and on").unwrap();
    }
    soon("all was taken", || proxy.counts().to_server == 5 + 2 * 19);
}

#[test]
fn where_the_server_is_not_there_a_connection_ends_at_once() {
    let proxy = Proxy::start("127.0.0.1:1").unwrap();
    assert!(has_ended(&mut client(&proxy)));
}

#[test]
fn it_ends_with_its_value() {
    let proxy = echo();
    let address = proxy.address();
    let mut before = client(&proxy);
    says(&mut before, "hello").unwrap();
    drop(proxy);
    assert!(has_ended(&mut before));
    assert!(TcpStream::connect(address).is_err());
}

#[tokio::test]
async fn it_comes_and_goes_in_a_runtime_of_the_callers() {
    let proxy = echo();
    assert_eq!(says(&mut client(&proxy), "hello").unwrap(), "hello");
}
