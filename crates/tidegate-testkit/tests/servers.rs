//! Each kind of server starts, replies, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tidegate_testkit::{Cluster, Server, shared};

fn accepts(url: &str) -> bool {
    let address = url.trim_start_matches("redis://").parse().unwrap();
    // With a timeout: connections to the address of a removed container are not rejected.
    TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
}

fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < Duration::from_secs(30), "not within 30s: {condition}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn redis_micros(server: &Server) -> i64 {
    let reply = server.cli(&["EVAL", "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", "0"]);
    let reply = reply.unwrap();
    reply.trim_start_matches("(integer) ").parse().unwrap()
}

#[test]
fn server_replies_and_is_gone_after_drop() {
    for server in [Server::start(), Server::process(&[])] {
        let server = server.unwrap();
        assert_eq!(server.cli(&["PING"]).unwrap(), "PONG");
        assert!(server.how().contains(server.version()), "{server:?}");
        let url = server.url().to_owned();
        drop(server);
        assert!(!accepts(&url), "{url}");
    }
}

#[test]
fn cluster_of_each_kind_is_whole_and_gone_after_drop() {
    for (cluster, nodes) in [(Cluster::start(), 6), (Cluster::with_shiftable_clock(), 3)] {
        let cluster = cluster.unwrap();
        let urls = cluster.urls();
        assert_eq!(urls.len(), nodes);
        for node in cluster.nodes() {
            assert!(node.cli(&["CLUSTER", "INFO"]).unwrap().contains("cluster_slots_ok:16384"));
        }
        drop(cluster);
        assert!(!urls.iter().any(|url| accepts(url)));
    }
}

#[test]
fn options_reach_the_server() {
    let options = &["--maxmemory", "10mb"];
    for server in [Server::start_with(options), Server::process(options)] {
        let shown = server.unwrap().cli(&["CONFIG", "GET", "maxmemory"]).unwrap();
        assert_eq!(shown, "1) \"maxmemory\"\n2) \"10485760\"");
    }
}

#[test]
fn invalid_option_is_an_error_with_the_servers_message() {
    let error = Server::process(&["--no-such-option", "1"]).unwrap_err();
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

#[test]
fn server_can_be_a_program_outside_the_path() {
    let found = Command::new("sh").args(["-c", "command -v redis-server"]).output().unwrap();
    let program = String::from_utf8(found.stdout).unwrap();
    let mut server = Server::process_of(program.trim(), &["--maxmemory", "10mb"]).unwrap();
    assert!(accepts(server.url()));
    server.restart().unwrap();
    assert!(accepts(server.url()));
    let error = Server::process_of("/no/such/server", &[]).unwrap_err();
    assert!(error.to_string().contains("/no/such/server"), "{error}");
}

#[test]
fn restarted_server_is_empty_and_has_the_same_address_and_options() {
    let mut server = Server::process(&["--maxmemory", "10mb"]).unwrap();
    let url = server.url().to_owned();
    server.cli(&["SET", "key", "value"]).unwrap();
    server.restart().unwrap();
    assert_eq!(server.cli(&["EXISTS", "key"]).unwrap(), "(integer) 0");
    assert!(server.cli(&["CONFIG", "GET", "maxmemory"]).unwrap().contains("10485760"));
    drop(server);
    assert!(!accepts(&url), "{url}");
}

#[test]
fn killed_server_is_gone_until_restarted() {
    let mut server = Server::process(&[]).unwrap();
    let url = server.url().to_owned();
    server.kill();
    assert!(!accepts(&url), "{url}");
    server.restart().unwrap();
    assert_eq!(server.cli(&["PING"]).unwrap(), "PONG");
}

#[test]
fn paused_server_accepts_connections_and_replies_when_resumed() {
    let server = Server::process(&[]).unwrap();
    let paused = server.pause().unwrap();
    let mut client = TcpStream::connect(server.url().trim_start_matches("redis://")).unwrap();
    client.write_all(b"PING\r\n").unwrap();
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(client.read(&mut [0]).is_err(), "a paused server replied");
    drop(paused);
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut reply = [0; 7];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[tokio::test]
async fn server_starts_and_stops_in_a_current_thread_runtime() {
    assert_eq!(shared().cli(&["PING"]).unwrap(), "PONG");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_starts_and_stops_in_a_multi_thread_runtime() {
    assert_eq!(shared().cli(&["PING"]).unwrap(), "PONG");
}

#[test]
fn tests_share_a_server() {
    let first = shared();
    assert_eq!(first.url(), shared().url());
}

#[test]
#[cfg(target_os = "linux")]
fn time_returns_the_shifted_clock() {
    const HOUR: i64 = 3_600_000_000;
    const TOLERANCE: i64 = 10_000_000;
    let right = Server::process(&[]).unwrap();
    let shifted = Server::with_shiftable_clock().unwrap();
    for (shift, total) in [(0, 0), (HOUR, HOUR), (-2 * HOUR, -HOUR), (HOUR, 0)] {
        shifted.shift_clock(shift);
        let difference = redis_micros(&shifted) - redis_micros(&right);
        assert!((difference - total).abs() < TOLERANCE, "{difference} != {total}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn keys_expire_by_the_shifted_clock() {
    let server = Server::with_shiftable_clock().unwrap();
    // The clock also runs between the shifts, so the margins are long.
    server.cli(&["SET", "key", "value", "EX", "3600"]).unwrap();
    server.shift_clock(3_540_000_000);
    assert_eq!(server.cli(&["EXISTS", "key"]).unwrap(), "(integer) 1");
    server.shift_clock(60_000_000);
    assert_eq!(server.cli(&["EXISTS", "key"]).unwrap(), "(integer) 0");
}

/// Not a test: the entry point of the process that the tests below start and kill.
#[test]
#[ignore = "waits to be killed"]
fn victim() {
    let servers = [Server::start(), Server::process(&[])].map(Result::unwrap);
    for server in &servers {
        eprintln!("url {}", server.url());
    }
    loop {
        thread::park();
    }
}

/// Starts [`victim`]. Returns the process and the addresses of its servers. Its temporary folders go into
/// `folder`.
fn start_victim(folder: &Path) -> (Child, Vec<String>) {
    // If a background job of a shell started this process, it ignores SIGINT, and the victim would inherit
    // that.
    let mut victim = Command::new("env")
        .arg("--default-signal=INT,TERM")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored", "--nocapture"])
        .env("TMPDIR", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(victim.stderr.take().unwrap());
    let urls = output.lines().map_while(Result::ok);
    let urls = urls.filter_map(|line| Some(line.strip_prefix("url ")?.to_owned()));
    (victim, urls.take(2).collect())
}

#[test]
fn killed_process_leaves_nothing() {
    for signal in ["-KILL", "-TERM", "-INT"] {
        let folder = tempfile::tempdir().unwrap();
        let (mut victim, urls) = start_victim(folder.path());
        assert_eq!(urls.len(), 2, "the victim's servers");
        assert!(urls.iter().all(|url| accepts(url)), "{urls:?}");

        let id = victim.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        victim.wait().unwrap();
        wait_until("the servers are gone", || !urls.iter().any(|url| accepts(url)));
        wait_until("the folders are gone", || fs::read_dir(folder.path()).unwrap().next().is_none());
    }
}

#[test]
fn panic_leaves_nothing() {
    let url = thread::spawn(|| {
        let server = Server::start().unwrap();
        std::panic::panic_any(server.url().to_owned());
    });
    let url = url.join().unwrap_err().downcast::<String>().unwrap();
    assert!(!accepts(&url), "{url}");
}
