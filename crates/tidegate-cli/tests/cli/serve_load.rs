//! A service under load: its end, many connections, and its memory.
#![allow(clippy::print_stdout, reason = "prints the figures of docs/measurements/2026-11-service.md")]

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::deployment::HTTP_CONNECTION_BYTES;
use super::program::Program;
use super::rules::File;
use super::serve::{Service, soon};
use super::serve_clients::{Connection, Outcome, Protocol};

const LIMIT: u32 = 4_000_000_000;

fn rules() -> String {
    let limit = format!("unit: year, requests_per_unit: {LIMIT}");
    format!("domain: d\ndescriptors: [{{ key: user, rate_limit: {{ {limit} }} }}]\n")
}

fn address(service: &Service, protocol: Protocol) -> String {
    match protocol {
        Protocol::Grpc => service.grpc.clone(),
        Protocol::Http => service.http.clone(),
    }
}

/// Sends requests until no connection can be opened, and counts their outcomes.
async fn send_until_refused(
    protocol: Protocol,
    address: String,
    answered: Arc<AtomicUsize>,
) -> BTreeMap<Outcome, u32> {
    let mut outcomes = BTreeMap::new();
    let mut add = |outcome| *outcomes.entry(outcome).or_default() += 1;
    while let Ok(connection) = Connection::open(protocol, &address).await {
        while !connection.is_closed().await {
            let outcome = connection.ask("ada").await;
            answered.fetch_add(1, Ordering::Relaxed);
            add(outcome);
            if matches!(outcome, Outcome::Refused | Outcome::Unanswered) {
                break;
            }
        }
    }
    add(Outcome::Refused);
    outcomes
}

#[test]
fn terminated_service_loses_no_request_of_clients_that_go_on() {
    let program = Program::shared();
    let file = File::new("serve-terminated", &rules());
    let args = ["--rules", file.path(), "--deadline", "10s", "--on-failure", "error", "--drain", "60s"];
    let service = Service::start(&program, &args);
    let runtime = Runtime::new().unwrap();
    let outcomes = runtime.block_on(async {
        let answered = Arc::new(AtomicUsize::new(0));
        let mut clients = JoinSet::new();
        for protocol in [Protocol::Grpc, Protocol::Http] {
            for _ in 0..12 {
                let (address, answered) = (address(&service, protocol), answered.clone());
                clients
                    .spawn(async move { (protocol, send_until_refused(protocol, address, answered).await) });
            }
        }
        while answered.load(Ordering::Relaxed) < 500 {
            sleep(Duration::from_millis(1)).await;
        }
        service.signal("-TERM");
        clients.join_all().await
    });
    assert_eq!(service.end(), Some(0));
    let sum = |of: Protocol, outcome| -> u32 {
        let of_protocol = outcomes.iter().filter(|(protocol, _)| *protocol == of);
        of_protocol.filter_map(|(_, outcomes)| outcomes.get(&outcome)).sum()
    };
    let mut allowed = 0;
    for protocol in [Protocol::Grpc, Protocol::Http] {
        let [answered, refused, unanswered] =
            [Outcome::Allowed, Outcome::Refused, Outcome::Unanswered].map(|outcome| sum(protocol, outcome));
        println!("{protocol:?}: {answered} answered, {refused} refused, {unanswered} unanswered");
        assert_eq!((unanswered, sum(protocol, Outcome::Denied)), (0, 0), "{protocol:?}");
        allowed += answered;
    }
    let next = Service::start(&program, &args);
    let remaining = runtime.block_on(async {
        Connection::open(Protocol::Grpc, &next.grpc).await.unwrap().remaining("ada").await
    });
    assert_eq!(LIMIT - remaining, allowed, "charged are exactly the requests that were answered");
}

#[test]
fn requests_are_answered_while_many_connections_are_open() {
    many_connections(300);
}

#[test]
#[ignore = "opens 10,000 connections twice"]
fn long_form_requests_are_answered_while_10_000_connections_are_open() {
    many_connections(10_000);
}

fn many_connections(count: usize) {
    raise_limit();
    let program = Program::shared();
    let file = File::new("serve-connections", &rules());
    Runtime::new().unwrap().block_on(async {
        for protocol in [Protocol::Grpc, Protocol::Http] {
            let args = ["--rules", file.path(), "--deadline", "20s", "--max-connections", "16384"];
            let service = Service::start(&program, &args);
            let address = address(&service, protocol);
            let (memory_before, files_before) = (resident_bytes(&service), open_files(&service));
            let start = Instant::now();
            // More at once would not fit into the queue of the listener.
            let connecting = Arc::new(Semaphore::new(128));
            let opened = Arc::new(AtomicUsize::new(0));
            let (all_open, mut wait) = watch::channel(false);
            wait.mark_unchanged();
            let mut clients = JoinSet::new();
            for client in 0..count {
                let (address, connecting, opened) = (address.clone(), connecting.clone(), opened.clone());
                let wait = wait.clone();
                clients.spawn(async move {
                    let user = format!("user-{client}");
                    let permit = connecting.acquire().await.unwrap();
                    let mut connection = Connection::open(protocol, &address).await.unwrap();
                    assert_eq!(connection.ask(&user).await, Outcome::Allowed);
                    drop(permit);
                    opened.fetch_add(1, Ordering::Relaxed);
                    hold(&mut connection, protocol, &address, &user, wait).await;
                    assert_eq!(ask_again(&mut connection, protocol, &address, &user).await, Outcome::Allowed);
                });
            }
            while opened.load(Ordering::Relaxed) < count {
                // A client that ends before all are open has failed.
                if let Some(ended) = clients.try_join_next() {
                    ended.unwrap();
                }
                sleep(Duration::from_millis(5)).await;
            }
            let open = open_files(&service) - files_before;
            let bytes = resident_bytes(&service).saturating_sub(memory_before) / count as u64;
            let asked = Instant::now();
            let another = Connection::open(protocol, &address).await.unwrap();
            assert_eq!(another.ask("another").await, Outcome::Allowed);
            println!(
                "{protocol:?}: {open} connections in {:?}, {bytes} bytes each; another one was answered in {:?}",
                start.elapsed(),
                asked.elapsed()
            );
            assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
            assert!(open >= count * 9 / 10, "{open}");
            assert!(bytes < 200_000, "{bytes} bytes per connection");
            all_open.send(true).unwrap();
            clients.join_all().await;
        }
    });
}

/// Holds a connection until all are open. Over HTTP, the service closes one that is idle for 5 s, so it is used before.
async fn hold(
    connection: &mut Connection,
    protocol: Protocol,
    address: &str,
    user: &str,
    mut all_open: watch::Receiver<bool>,
) {
    let pause = Duration::from_secs(if protocol == Protocol::Http { 2 } else { 3_600 });
    while timeout(pause, all_open.changed()).await.is_err() {
        assert_eq!(ask_again(connection, protocol, address, user).await, Outcome::Allowed);
    }
}

/// Asks, on a new connection if this one was idle for too long: on a loaded machine, the pause can be longer than it should.
async fn ask_again(connection: &mut Connection, protocol: Protocol, address: &str, user: &str) -> Outcome {
    match connection.ask(user).await {
        Outcome::Refused | Outcome::Unanswered if protocol == Protocol::Http => {
            *connection = Connection::open(protocol, address).await.unwrap();
            connection.ask(user).await
        }
        outcome => outcome,
    }
}

fn open_files(service: &Service) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", service.id())).unwrap().count()
}

/// Raises the soft limit of open files, as the service itself does.
fn raise_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn resident_bytes(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn requests_that_do_not_end_take_the_memory_of_the_settings_and_give_it_back() {
    const MIB: u64 = 1 << 20;
    let unfinished = 16 * MIB;
    let (max_message, max_unfinished) = (MIB.to_string(), unfinished.to_string());
    let args = ["--demo", "--max-message", &max_message, "--max-unfinished", &max_unfinished];
    let service = Service::start(&Program::at(""), &args);
    let start = resident_bytes(&service);
    let head = format!("POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: {MIB}\r\n\r\n");
    let sent = [head.as_bytes(), &vec![b' '; usize::try_from(MIB - 1).unwrap()]].concat();
    let mut most = start;
    let clients: Vec<_> = (0..400)
        .map(|_| {
            let mut client = TcpStream::connect(&service.http).unwrap();
            // An error means that the service has answered without reading all.
            let _ = client.write_all(&sent);
            most = most.max(resident_bytes(&service));
            client
        })
        .collect();
    let limit = start + 2 * unfinished + 400 * HTTP_CONNECTION_BYTES;
    println!("{start} bytes before, {most} with 400 requests that do not end");
    assert!(most <= limit, "{most} bytes are more than {limit}");
    drop(clients);
    soon("the memory is given back", || resident_bytes(&service) <= start + 8 * MIB);
}

#[test]
fn memory_does_not_grow_under_load() {
    let second = Duration::from_secs(1);
    memory(10_000, 3 * second, 10 * second, 2 * second, 4_000_000);
}

#[test]
#[ignore = "takes 10 minutes"]
fn long_form_memory_does_not_grow_in_10_minutes_with_a_million_keys() {
    let minute = Duration::from_secs(60);
    memory(1_000_000, minute, 10 * minute, minute, 0);
}

/// Loads a service for a time. Asserts that in the last `window` it needs at most 10 % and some bytes more than in the
/// first one after the warm-up.
fn memory(keys: usize, warm_up: Duration, total: Duration, window: Duration, spare_bytes: u64) {
    let program = Program::shared();
    let file = File::new("serve-memory", &rules());
    let service = Service::start(&program, &["--rules", file.path(), "--deadline", "10s"]);
    let runtime = Runtime::new().unwrap();
    let (sent, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let samples = runtime.block_on(async {
        let mut clients = JoinSet::new();
        for protocol in [Protocol::Grpc, Protocol::Grpc, Protocol::Grpc, Protocol::Http] {
            let connection = Connection::open(protocol, &address(&service, protocol)).await.unwrap();
            for _ in 0..(if protocol == Protocol::Grpc { 32 } else { 1 }) {
                let (connection, sent, answered) = (connection.clone(), sent.clone(), answered.clone());
                clients.spawn(async move {
                    loop {
                        let user = format!("user-{}", sent.fetch_add(1, Ordering::Relaxed) % keys);
                        assert_eq!(connection.ask(&user).await, Outcome::Allowed);
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        }
        let start = Instant::now();
        let mut samples = Vec::new();
        while start.elapsed() < total {
            sleep(window / 20).await;
            samples.push((start.elapsed(), resident_bytes(&service)));
            assert!(clients.try_join_next().is_none(), "a client ended");
        }
        samples
    });
    let median = |from: Duration| {
        let within = samples.iter().filter(|(at, _)| (from..from + window).contains(at));
        let mut within: Vec<u64> = within.map(|(_, bytes)| *bytes).collect();
        within.sort_unstable();
        within[within.len() / 2]
    };
    let (first, last) = (median(warm_up), median(total - window));
    let most = samples.iter().map(|(_, bytes)| *bytes).max().unwrap();
    let requests = answered.load(Ordering::Relaxed);
    println!(
        "{requests} requests, {keys} keys: {first} bytes after the warm-up, {last} at the end, {most} at most"
    );
    assert!(last <= first + first / 10 + spare_bytes, "{first} bytes grew to {last}");
}
