//! The process of `tidegate serve`: its log, its signals, and the secrets in its files.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_testkit::Server;

use super::program::{Program, Ran};
use super::rules::File;
use super::serve::{Service, get, http, send, soon};
use crate::support::fixture::HANGS;

const RULES: &str =
    "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 1000 } }]\n";
const PORTS: [&str; 7] =
    ["serve", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0"];

/// A Redis that is not there.
fn away() -> Program {
    Program::at("redis://127.0.0.1:1")
}

/// Waits for the end of a process, which it kills before a failure.
fn exit_code(child: &mut Child) -> Option<i32> {
    let start = Instant::now();
    while start.elapsed() < HANGS {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    panic!("the service does not end");
}

fn signal(id: u32, name: &str) {
    assert!(Command::new("kill").args([name, &id.to_string()]).status().unwrap().success());
}

#[test]
fn stalled_reader_of_the_log_holds_up_neither_requests_nor_the_end() {
    let args = [&["--json"], &PORTS[..], &["--demo", "--drain-notice", "0s"]].concat();
    let mut child = away().command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Standard error is not read before the end.
    let mut log = child.stderr.take().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let started: Value = serde_json::from_str(&line).unwrap();
    let [http_addr, admin] = ["http_addr", "admin_addr"].map(|name| started[name].as_str().unwrap());

    let change = format!(r#"{{"gate":"demo.user","key":"zoe","for":"1h","reason":"{}"}}"#, "x".repeat(490));
    let dropped = || {
        let (_, metrics) = send(admin, "GET /metrics", "accept: */*", "");
        let mut counts = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("tidegate_server_dropped_log_entries_total "));
        counts.next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(dropped(), 0);
    // Each change is an entry. They fill the pipe, then the queue.
    soon("entries are dropped and counted", || {
        for _ in 0..100 {
            assert_eq!(send(admin, "POST /api/block", "content-type: application/json", &change).0, 200);
        }
        dropped() > 0
    });
    let unknown = r#"{"domain": "unknown", "descriptors": [{"entries": [{"key": "a"}]}]}"#;
    assert!((0..32).all(|_| http(http_addr, "/json", unknown).0 == 200));
    signal(child.id(), "-TERM");
    assert_eq!(exit_code(&mut child), Some(0));

    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    // The end may have cut off the last line.
    let entries: Vec<Value> =
        text.lines().rev().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(entries.len() > 10, "{text}");
    for entry in entries {
        assert_eq!((&entry["level"], &entry["audit"]["verb"]), (&json!("info"), &json!("block")));
        assert!(is_time(entry["time"].as_str().unwrap()), "{entry}");
    }
}

/// Returns an address that nothing listens on.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[cfg(target_os = "linux")]
#[test]
fn standard_output_that_takes_nothing_stops_neither_the_start_nor_the_end() {
    let (_reader, stalled) = {
        let (reader, mut writer) = std::io::pipe().unwrap();
        // All that a pipe holds.
        writer.write_all(&[b' '; 64 << 10]).unwrap();
        (reader, writer)
    };
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let outputs = [
        ("stalled", Stdio::from(stalled), ""),
        ("closed", Stdio::from(closed), "cannot write to standard output: Broken pipe"),
        ("full", Stdio::from(full), "cannot write to standard output: No space left on device"),
    ];
    for (name, output, expected) in outputs {
        let (grpc, http) = (free_address(), free_address());
        let ports = ["serve", "--grpc-addr", &grpc, "--http-addr", &http, "--admin-addr", "127.0.0.1:0"];
        let args = [&ports[..], &["--demo", "--drain-notice", "0s"]].concat();
        let mut child = away().command(args).stdout(output).stderr(Stdio::piped()).spawn().unwrap();
        soon("the service is ready", || TcpStream::connect(&http).is_ok() && get(&http, "/readyz") == 200);
        signal(child.id(), "-TERM");
        assert_eq!(exit_code(&mut child), Some(0), "{name}");
        let mut log = String::new();
        child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(log.contains(expected), "{name}: {log}");
    }
}

/// Starts the service with a hard limit of open files.
#[cfg(target_os = "linux")]
fn with_open_files(limit: u32, args: &[&str]) -> Service {
    let args = [&["--json"], &PORTS[..], &["--demo", "--drain-notice", "0s"], args].concat();
    let program = away();
    let command = program.command([""; 0]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")])
        .arg(command.get_program())
        .args(args);
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    Service::of(shell)
}

#[cfg(target_os = "linux")]
#[test]
fn limit_of_open_files_below_the_connections_is_reported() {
    let service = with_open_files(256, &["--max-connections", "100"]);
    let warning = "this process may have 256 files open, and --max-connections 100 needs 648";
    soon("the warning", || service.has_reported(warning));
    let service = with_open_files(648, &["--max-connections", "100"]);
    assert_eq!(get(&service.http, "/readyz"), 200);
    assert!(!service.has_reported("files open"));
}

#[cfg(target_os = "linux")]
#[test]
fn connections_that_cannot_be_accepted_are_reported_and_wait() {
    let service = with_open_files(64, &[]);
    let mut held: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&service.grpc).unwrap()).collect();
    soon("the warning", || {
        service.has_reported("the grpc port cannot accept connections: Too many open files")
    });
    held.clear();
    soon("files are free again", || {
        TcpStream::connect(&service.http).is_ok() && get(&service.http, "/readyz") == 200
    });
    let (_, metrics) = send(&service.admin, "GET /metrics", "accept: */*", "");
    let failed = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tidegate_server_failed_accepts_total{port=\"grpc\"} "));
    assert!(failed.unwrap().parse::<u64>().unwrap() > 0, "{metrics}");
    service.signal("-TERM");
    assert_eq!(service.end(), Some(0));
}

#[cfg(unix)]
#[test]
fn change_whose_audit_entry_redis_does_not_store_is_in_the_log() {
    let server = Server::process(&[]).unwrap();
    let rules = File::new("process-audit", RULES);
    let tokens = File::new("process-audit-tokens", "ada operator token:the-token-of-the-operator\n");
    std::fs::set_permissions(tokens.path(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let args = ["--rules", rules.path(), "--deadline", "10s", "--admin-tokens", tokens.path()];
    let service = Service::start(&Program::at(server.url()), &args);
    server.cli(&["ACL", "SETUSER", "default", "-xadd"]).unwrap();
    let gate = r#"{"gate":"d.user","key":"zoe","for":"1h","reason":"because"}"#;
    let headers = "content-type: application/json\r\nauthorization: Bearer the-token-of-the-operator";
    send(&service.admin, "POST /api/block", headers, gate);
    soon("the entry is in the log", || {
        service.has_reported(r#""verb":"block""#) && service.has_reported(r#""not_stored":""#)
    });
    assert!(service.has_reported(r#""level":"error""#));
}

#[test]
fn name_of_the_admin_port_that_no_browser_sends_is_refused() {
    for name in ["https://limits.example", "limits.example:8443", "limits.example/console", "*.example"] {
        let args = ["serve", "--demo", "--check", "--admin-addr", "127.0.0.1:0", "--admin-host", name];
        away()
            .run(args)
            .assert(2, &["no browser can reach the admin port by the name", "such as limits.example"]);
    }
    let args =
        ["serve", "--demo", "--check", "--admin-addr", "127.0.0.1:0", "--admin-host", "limits.example"];
    away().run(args).assert(0, &[]);
}

/// Returns whether a text is a time such as `2026-11-24T14:03:05.123Z`.
fn is_time(text: &str) -> bool {
    let form: String = text.chars().map(|it| if it.is_ascii_digit() { '0' } else { it }).collect();
    form == "0000-00-00T00:00:00.000Z"
}

#[test]
fn entries_of_the_log_have_a_time_a_level_and_as_json_the_code() {
    let rules = File::new("process-log", RULES);
    let first_entry = |json: &[&str]| {
        let args = [&PORTS[..], &["--rules", rules.path()], json].concat();
        let mut child = away().command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        line
    };
    let text = first_entry(&[]);
    let (time, entry) = text.split_once(' ').unwrap();
    assert!(is_time(time) && entry.starts_with("WARN limits are not shared: "), "{text}");
    assert!(entry.ends_with(" [redis-unreachable]\n"), "{text}");
    let entry: Value = serde_json::from_str(&first_entry(&["--json"])).unwrap();
    assert!(is_time(entry["time"].as_str().unwrap()), "{entry}");
    let warning = &entry["warning"];
    let named = (&entry["level"], &warning["code"], &warning["occurrences"]);
    assert_eq!(named, (&json!("warn"), &json!("redis-unreachable"), &json!(1)));
    assert!(warning["message"].as_str().unwrap().starts_with("limits are not shared: "), "{entry}");
}

#[test]
fn start_that_fails_for_a_port_prints_nothing_else() {
    let rules = File::new("process-port", RULES);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    // Also without Redis, and with a port for other machines.
    let args = ["serve", "--rules", rules.path(), "--grpc-addr", "0.0.0.0:0", "--http-addr", &taken];
    let ran = away().run(args);
    ran.assert(2, &[" ERROR cannot open the HTTP port at ", "the address is in use", "(--http-addr)"]);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
}

#[cfg(unix)]
#[test]
fn each_signal_that_asks_for_the_end_lets_requests_in_flight_finish() {
    for name in ["-TERM", "-INT", "-HUP", "-QUIT"] {
        let service = Service::start(&away(), &["--demo", "--drain-notice", "1s"]);
        let body = r#"{"domain": "demo", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}"#;
        let mut stream = TcpStream::connect(&service.http).unwrap();
        let length = body.len();
        let head = format!(
            "POST /json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        service.signal(name);
        soon("the service stops", || TcpStream::connect(&service.http).is_err());
        stream.write_all(body.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{name}: {response:?}");
        assert_eq!(service.end(), Some(0), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn user_signals_and_a_hangup_that_was_ignored_at_the_start_change_nothing() {
    let args = [&["--json"], &PORTS[..], &["--demo", "--drain-notice", "0s"]].concat();
    let program = away();
    let mut command = program.command([""; 0]);
    // As `nohup` does.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(command.get_program()).args(args);
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
    command = shell;
    let service = Service::of(command);
    for name in ["-USR1", "-USR2", "-HUP"] {
        service.signal(name);
        assert_eq!(get(&service.http, "/readyz"), 200, "{name}");
    }
    // A signal that ends the process has done so when the next one can no longer be sent.
    service.signal("-USR1");
    service.signal("-TERM");
    assert_eq!(service.end(), Some(0));
}

#[test]
fn changed_password_of_redis_is_used_without_a_restart() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["ACL", "SETUSER", "limits", "on", ">old", "~*", "+@all"]).unwrap();
    let (rules, password) = (File::new("process-rotated", RULES), File::new("process-password", "old\n"));
    let args = ["--rules", rules.path(), "--on-failure", "error", "--deadline", "10s"];
    let login = ["--user", "limits", "--password-file", password.path()];
    let service = Service::start(&Program::at(server.url()), &[&args[..], &login].concat());
    assert_eq!(service.ask("ada"), 200);
    std::fs::write(password.path(), "new\n").unwrap();
    server.cli(&["ACL", "SETUSER", "limits", "resetpass", ">new"]).unwrap();
    assert_ne!(server.cli(&["CLIENT", "KILL", "USER", "limits"]).unwrap(), "(integer) 0");
    soon("Redis decides with the new password", || service.ask("ada") == 200);
    // While the file is empty or away, the last password is used.
    std::fs::write(password.path(), "").unwrap();
    server.cli(&["CLIENT", "KILL", "USER", "limits"]).unwrap();
    soon("Redis decides with an empty file", || service.ask("ada") == 200);
    std::fs::remove_file(password.path()).unwrap();
    server.cli(&["CLIENT", "KILL", "USER", "limits"]).unwrap();
    soon("Redis decides without the file", || service.ask("ada") == 200);
}

#[cfg(unix)]
#[test]
fn file_of_a_secret_that_every_user_can_read_is_reported() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    let secret = File::new("process-secret", &"0123456789abcdef".repeat(2));
    let rules = File::new("process-secret-rules", RULES);
    let serve = ["serve", "--rules", rules.path(), "--check"];
    for (args, option) in [
        (&["inspect", "--password-file"][..], "--password-file"),
        (&["inspect", "--hmac-secret-file"], "--hmac-secret-file"),
        (&[&serve[..], &["--password-file"]].concat(), "--password-file"),
        (&[&serve[..], &["--reservation-secret-file"]].concat(), "--reservation-secret-file"),
    ] {
        let run = |mode: u32| -> Ran {
            set_permissions(secret.path(), Permissions::from_mode(mode)).unwrap();
            away().run([args, &[secret.path()]].concat())
        };
        let ran = run(0o644);
        let warning = format!("every user of this machine can read the file of {option} (mode 644): set 600");
        assert_eq!(ran.err.matches(&warning).count(), 1, "{ran:?}");
        for mode in [0o600, 0o640] {
            assert!(!run(mode).err.contains("every user"), "{option} {mode:o}");
        }
    }
}

#[test]
fn reservation_is_settled_only_with_the_signature_of_a_secret() {
    let program = Program::shared();
    let rules = File::new("process-reserve", RULES);
    let [old, new] =
        ["old", "new"].map(|name| File::new(name, &format!("a secret of 16 bytes or more: {name}")));
    let start = |secrets: &[&str]| {
        let secrets = secrets.iter().flat_map(|path| ["--reservation-secret-file", *path]);
        let args: Vec<&str> =
            ["--rules", rules.path(), "--deadline", "10s"].into_iter().chain(secrets).collect();
        Service::start(&program, &args)
    };
    let (unsigned, one, other) = (start(&[]), start(&[old.path()]), start(&[new.path(), old.path()]));
    let post = |service: &Service, path: &str, body: &Value| {
        let (status, text) =
            send(&service.http, &format!("POST {path}"), "content-type: application/json", &body.to_string());
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    let token = |service: &Service| {
        let descriptors = json!([{ "entries": [{ "key": "user", "value": "ada" }] }]);
        let (status, reserved) =
            post(service, "/v1/reserve", &json!({ "domain": "d", "descriptors": descriptors }));
        assert_eq!(status, 200, "{reserved}");
        json!({ "token": reserved["reservation"]["token"] })
    };
    let cancel = |service: &Service, token: &Value| post(service, "/v1/cancel", token);
    for token in [token(&unsigned), token(&other)] {
        let (status, problem) = cancel(&one, &token);
        assert_eq!(status, 400, "{problem}");
    }
    let token = token(&one);
    assert_eq!(cancel(&other, &token).1["settlements"], json!(["settled"]), "an older secret is accepted");
    let ran = program.run(["serve", "--demo", "--check", "--reservation-secret-file", "/dev/null"]);
    ran.assert(2, &["shorter than 16 bytes"]);
}
