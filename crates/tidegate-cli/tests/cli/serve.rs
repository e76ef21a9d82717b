//! `tidegate serve`: the start, decisions over HTTP, reloads, and the end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::program::Program;
use super::rules::File;
use crate::support::fixture::HANGS;

const RULES: &str =
    "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 2 } }]\n";

/// A running service. Dropping this value kills it.
pub(crate) struct Service {
    child: Child,
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) admin: String,
    errors: Arc<Mutex<String>>,
}

impl Service {
    pub(crate) fn start(program: &Program, args: &[&str]) -> Self {
        let ports = ["--json", "serve", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
        let ports = [&ports[..], &["--admin-addr", "127.0.0.1:0"]].concat();
        Self::of(program.command([&ports[..], args].concat()))
    }

    /// Starts a command with `--json` in its settings.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = Arc::<Mutex<String>>::default();
        let (lines, seen) = (BufReader::new(child.stderr.take().unwrap()).lines(), errors.clone());
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| *seen.lock().unwrap() += &line));
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        // Of a port that is closed: empty.
        let text = |name: &str| started[name].as_str().unwrap_or_default().to_owned();
        Self { http: text("http_addr"), grpc: text("grpc_addr"), admin: text("admin_addr"), child, errors }
    }

    /// Returns whether standard error contains a text.
    pub(crate) fn has_reported(&self, text: &str) -> bool {
        self.errors.lock().unwrap().contains(text)
    }

    pub(crate) fn ask(&self, user: &str) -> u16 {
        let entries = format!(r#"[{{"key": "user", "value": "{user}"}}]"#);
        http(&self.http, "/json", &format!(r#"{{"domain": "d", "descriptors": [{{"entries": {entries}}}]}}"#))
            .0
    }

    /// Returns the number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until the process has ended, and returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < HANGS, "the service does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Posts a body. Returns the status and the body of the response.
pub(crate) fn http(address: &str, path: &str, body: &str) -> (u16, String) {
    send(address, &format!("POST {path}"), "accept: */*", body)
}

/// Sends a request with one more header. Returns the status and the body of the response.
pub(crate) fn send(address: &str, method_and_path: &str, header: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method_and_path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn readyz(address: &str) -> u16 {
    get(address, "/readyz")
}

/// Returns the status of a page.
pub(crate) fn get(address: &str, path: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

pub(crate) fn soon(condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < HANGS, "not in time: {condition}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn two_services_share_the_limits_of_their_rules_in_redis() {
    let program = Program::shared();
    let file = File::new("serve-shared", RULES);
    let args = ["--rules", file.path(), "--deadline", "10s"];
    let (one, two) = (Service::start(&program, &args), Service::start(&program, &args));
    assert_eq!([one.ask("ada"), two.ask("ada"), one.ask("ada"), two.ask("ada")], [200, 200, 429, 429]);
    assert_eq!(one.ask("bob"), 200);
    TcpStream::connect(&one.grpc).unwrap();
    assert_eq!(readyz(&one.http), 200);

    std::fs::write(file.path(), RULES.replace(": 2", ": 100")).unwrap();
    soon("the new rules apply", || one.ask("ada") == 200);
    std::fs::write(file.path(), RULES.replace("year", "years")).unwrap();
    for text in ["rules reloaded: 1 in force", "rules not reloaded", "did you mean `year`"] {
        soon(text, || one.has_reported(text));
    }
    assert_eq!(one.ask("ada"), 200, "rules with errors change nothing");
    one.signal("-INT");
    assert_eq!(one.end(), Some(0));
}

#[test]
fn demo_needs_no_redis_and_its_request_works() {
    let program = Program::at("redis://127.0.0.1:1");
    let ports = ["serve", "--demo", "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
    let ports = [&ports[..], &["--admin-addr", "127.0.0.1:0"]].concat();
    let mut child = program.command(ports).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("serving 7 rules: gRPC on 127.0.0.1:"));
    let curl = lines.next().unwrap();
    let (url, body) = curl.trim().strip_prefix("curl -s http://").unwrap().split_once(" -d ").unwrap();
    let (address, path) = url.split_once('/').unwrap();
    let codes = (0..6).map(|_| http(address, &format!("/{path}"), body.trim_matches('\'')).0);
    assert_eq!(codes.collect::<Vec<_>>(), [200, 200, 200, 200, 200, 429]);
    let ada = body.trim_matches('\'').replace("bob", "ada");
    assert!((0..9).all(|_| http(address, "/json", &ada).0 == 200));
    let admin = lines.find(|line| line.starts_with("web console on ")).unwrap();
    let admin = admin.strip_prefix("web console on http://").unwrap().split_once("/ ").unwrap().0.to_owned();
    let block = r#"{"gate":"demo.user","key":"zoe","for":"1h","reason":"test"}"#;
    let (status, text) = send(&admin, "POST /api/block", "content-type: application/json", block);
    assert_eq!(status, 200, "each client of a demo is an operator: {text}");
    let zoe = body.trim_matches('\'').replace("bob", "zoe");
    assert_eq!(http(address, "/json", &zoe).0, 429);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn demo_fills_every_page_of_the_console_within_10_seconds() {
    let began = Instant::now();
    let service = Service::start(&Program::at("redis://127.0.0.1:1"), &["--demo", "--drain-notice", "0s"]);
    let page = |path: &str| send(&service.admin, &format!("GET {path}"), "accept: text/html", "");
    let shows = |path: &str, texts: &[&str]| {
        let mut shown = (0, String::new());
        soon(&format!("{path} shows {texts:?}"), || {
            shown = page(path);
            shown.0 == 200 && texts.iter().all(|text| shown.1.contains(text))
        });
    };
    shows(
        "/",
        &["deny requests", "demo.login", "demo.tenant", "demo.path-_search", "Candidate quotas of rules"],
    );
    shows("/gates", &["payments.provider", "8 in flight", "demo.outage"]);
    shows("/gate?name=demo.login", &["demo.yaml", "Decisions per second"]);
    shows("/keys", &["203.0.113.66", "Blocked: every check is denied", "acme", "near limit"]);
    shows("/key?key=203.0.113.66", &["Blocked: every check is denied", "ban"]);
    shows("/overrides", &["mallory", "60/min"]);
    shows("/rules", &["demo.yaml", "ban: { after: 20"]);
    shows("/explain?domain=demo&descriptor=login%3D203.0.113.66", &["demo.login"]);
    shows("/health", &["The fleet makes decisions."]);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    let outage = r#"{"domain": "demo", "descriptors": [{"entries": [{"key": "outage", "value": "on"}]}]}"#;
    assert_eq!(http(&service.http, "/json", outage).0, 200);
    shows("/keys", &["8 of 8 used"]);
    service.signal("-TERM");
    assert_eq!(service.end(), Some(0), "the traffic ends with the service");
}

#[test]
fn terminated_service_answers_all_requests_that_it_received() {
    let program = Program::shared();
    let file = File::new("serve-load", &RULES.replace(": 2", ": 1000000"));
    let args = ["--rules", file.path(), "--deadline", "10s", "--drain-notice", "3s"];
    let service = Service::start(&program, &args);
    let (is_sending, answered) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while is_sending.load(Ordering::Relaxed) {
                    assert_eq!(service.ask("ada"), 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        soon("load", || answered.load(Ordering::Relaxed) > 50);
        service.signal("-TERM");
        soon("not ready", || readyz(&service.http) == 503);
        is_sending.store(false, Ordering::Relaxed);
    });
    assert_eq!(service.end(), Some(0));
}

#[test]
fn mistakes_in_the_arguments_are_errors_before_the_start() {
    let program = Program::at("redis://127.0.0.1:1");
    let file = File::new("serve-right", RULES);
    let wrong = File::new("serve-wrong", &RULES.replace("year", "years"));
    for (args, code, texts) in [
        (&["--rulez", "x"][..], 2, &["--rules"][..]),
        (&[], 2, &["--rules PATH", "serve --demo"]),
        (&["--demo", "--rules", file.path()], 2, &["cannot be used with"]),
        (&["--rules", wrong.path()], 1, &["did you mean `year`"]),
        (&["--rules", file.path(), "--on-failure", "opn"], 2, &["open"]),
        (
            &["--demo", "--max-connections", "0", "--check"],
            2,
            &["--max-connections", "from 1, such as 16384"],
        ),
        (&["--demo", "--http-addr", "8080"], 2, &["--http-addr", "write 127.0.0.1:8080, or 0.0.0.0:8080"]),
        (&["--demo", "--grpc-addr", "localhost:0"], 2, &["--grpc-addr", "write 127.0.0.1:0"]),
        (&["--demo", "--admin-addr", "10.0.0.1"], 2, &["--admin-addr", "such as 127.0.0.1:8080"]),
        (
            &["--rules", file.path(), "--redis", "localhost"],
            2,
            &["--redis", "such as redis://127.0.0.1:6379"],
        ),
        (&["--rules", file.path(), "--headers", "x"], 2, &["x-ratelimit"]),
        (&["--rules", file.path(), "--deadline", "0s"], 2, &["deadline"]),
        (&["--demo", "--grpc-certificate", file.path()], 2, &["--grpc-key"]),
        (
            &["--demo", "--grpc-certificate", file.path(), "--grpc-key", file.path()],
            2,
            &["gRPC port", "--grpc-certificate (", "the file of --grpc-key"],
        ),
    ] {
        program.run([&["serve"], args].concat()).assert(code, texts);
    }
}

#[test]
fn same_address_of_two_ports_is_rejected_before_the_start() {
    let program = Program::at("redis://127.0.0.1:1");
    for (args, texts) in [
        (
            &["--grpc-addr", "127.0.0.1:8080"][..],
            &["--grpc-addr 127.0.0.1:8080 and --http-addr 127.0.0.1:8080"][..],
        ),
        (
            &["--admin-addr", "127.0.0.1:8081"],
            &["--grpc-addr 127.0.0.1:8081 and --admin-addr 127.0.0.1:8081"],
        ),
        (&["--http-addr", "0.0.0.0:8082"], &["--http-addr 0.0.0.0:8082 and --admin-addr 127.0.0.1:8082"]),
    ] {
        program.run([&["serve", "--demo", "--check"], args].concat()).assert(2, texts);
        program
            .run([&["serve", "--demo"], args].concat())
            .assert(2, &["are the same port: give each its own"]);
    }
    let any = ["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
    program.run([&["serve", "--demo", "--check"], &any[..]].concat()).assert(0, &[]);
    // Of another family.
    let loopback = ["--grpc-addr", "0.0.0.0:8081", "--http-addr", "[::1]:8081"];
    program.run([&["serve", "--demo", "--check"], &loopback[..]].concat()).assert(0, &[]);
}

#[test]
fn port_that_cannot_be_opened_is_named_with_its_option() {
    let program = Program::at("redis://127.0.0.1:1");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (port, option) in [("gRPC", "--grpc-addr"), ("HTTP", "--http-addr"), ("admin", "--admin-addr")] {
        for (address, reason) in [
            (&*taken, "the address is in use; choose another"),
            // Reserved for documentation.
            ("192.0.2.1:0", "this machine does not have the address; choose one of its own"),
        ] {
            let mut args = vec!["serve", "--demo"];
            for other in ["--grpc-addr", "--http-addr", "--admin-addr"] {
                args.extend([other, if other == option { address } else { "127.0.0.1:0" }]);
            }
            // Without a token, the admin port has an address of this machine only.
            let expected = match (port, address) {
                ("admin", "192.0.2.1:0") => "would be open to other machines".to_owned(),
                _ => format!("cannot open the {port} port at {address}: {reason}"),
            };
            program.run(args).assert(2, &[&expected, option.trim_end_matches("-addr")]);
        }
    }
}

#[test]
fn service_starts_without_redis_and_says_what_decides() {
    let program = Program::at("redis://127.0.0.1:1");
    let file = File::new("serve-away", RULES);
    for (policy, decided, ready) in
        [("local", 200, 200), ("open", 200, 200), ("closed", 429, 200), ("error", 500, 503)]
    {
        let service = Service::start(
            &program,
            &["--rules", file.path(), "--on-failure", policy, "--drain-notice", "0s"],
        );
        assert_eq!((service.ask("ada"), readyz(&service.http)), (decided, ready), "{policy}");
        for text in ["127.0.0.1:1", "Until Redis answers", &format!("(on_failure: {policy})")] {
            soon(text, || service.has_reported(text));
        }
        let errors = service.errors.lock().unwrap().clone();
        let count = |text: &str| errors.matches(text).count();
        assert_eq!(count("Connection refused"), count("redis-unreachable"), "no second report: {errors}");
        assert!(
            errors.contains(r#""warning":{"code":"redis-unreachable","message":"limits are not shared"#),
            "{errors}"
        );
        service.signal("-TERM");
        assert_eq!(service.end(), Some(0));
    }
}

/// Returns a certificate and its key, in PEM.
fn certificate() -> [String; 2] {
    let signed = rcgen::generate_simple_self_signed(["limits".to_owned()]).unwrap();
    [signed.cert.pem(), signed.signing_key.serialize_pem()]
}

#[test]
fn changed_certificates_are_reloaded_and_wrong_ones_are_reported() {
    let [old, old_key] = certificate();
    let [new, new_key] = certificate();
    let (file, key) = (File::new("serve-certificate", &old), File::new("serve-key", &old_key));
    let service = Service::start(
        &Program::at("redis://127.0.0.1:1"),
        &["--demo", "--grpc-certificate", file.path(), "--grpc-key", key.path()],
    );
    std::fs::write(file.path(), new).unwrap();
    std::fs::write(key.path(), new_key).unwrap();
    soon("reloaded", || service.has_reported("certificates reloaded"));
    assert!(!service.has_reported("not reloaded"), "both files are read before either is used");
    std::fs::write(key.path(), old_key).unwrap();
    soon("reported", || service.has_reported("certificates not reloaded, the previous ones remain: "));
    std::fs::remove_file(key.path()).unwrap();
    soon("reported", || service.has_reported("cannot read the file of --grpc-key"));
}

#[cfg(unix)]
#[test]
fn admin_port_has_the_tokens_of_its_file_and_reports_changes() {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    let program = Program::shared();
    let (rules, tokens) = (File::new("serve-admin", RULES), File::new("serve-tokens", TOKENS));
    let args = ["--rules", rules.path(), "--deadline", "10s", "--admin-tokens", tokens.path()];
    set_permissions(tokens.path(), Permissions::from_mode(0o604)).unwrap();
    let (addr, any) = ("--admin-addr", "127.0.0.1:0");
    program.run([&["serve", addr, any], &args[..]].concat()).assert(2, &["mode 604", "set 600"]);
    set_permissions(tokens.path(), Permissions::from_mode(0o600)).unwrap();

    let service = Service::start(&program, &args);
    let (viewer, operator) =
        ("authorization: Bearer the-token-of-the-viewer", "authorization: Bearer the-token-of-the-operator");
    assert_eq!(send(&service.admin, "GET /config", "accept: */*", "").0, 401);
    let (status, config) = send(&service.admin, "GET /config", viewer, "");
    assert_eq!(status, 200);
    assert!(config.contains(r#""on_failure":"local""#) && config.contains(rules.path()), "{config}");
    assert!(!config.contains("the-token-of"), "{config}");
    let config: Value = serde_json::from_str(&config).unwrap();
    let settings = &config["settings"];
    for (name, expected) in [
        ("deadline", json!("10s")),
        ("admin_tokens", json!(tokens.path())),
        ("grpc_addr", json!("127.0.0.1:0")),
        ("demo", json!(false)),
        ("admin_host", json!([])),
        ("grpc_certificate", Value::Null),
    ] {
        assert_eq!(settings[name], expected, "{name}: {settings}");
    }
    assert_eq!(config["listening"]["grpc_addr"], service.grpc);
    assert_eq!(config["listening"]["admin_addr"], service.admin);
    assert_eq!(service.ask("ada"), 200);
    let (status, metrics) = send(&service.admin, "GET /metrics", viewer, "");
    assert_eq!(status, 200);
    let counted = r#"tidegate_decisions_total{gate="d / user",outcome="allowed",source="redis"} 1"#;
    assert!(metrics.contains(counted), "{metrics}");

    let json = format!("{operator}\r\ncontent-type: application/json");
    let block = r#"{"gate":"d.user","key":"ada","for":"1h","reason":"scraping"}"#;
    let (status, text) = send(&service.admin, "POST /api/block", &json, block);
    assert_eq!(status, 200, "{text}");
    assert_eq!(service.ask("ada"), 429);
    soon("the change is reported", || service.has_reported(r#""reason":"scraping""#));
    assert!(!service.has_reported("the-token-of"));
}

const TOKENS: &str =
    "vic viewer token:the-token-of-the-viewer\nada operator token:the-token-of-the-operator\n";

#[test]
fn admin_port_for_other_machines_needs_tokens() {
    let program = Program::shared();
    let rules = File::new("serve-open", RULES);
    let ports =
        ["serve", "--rules", rules.path(), "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
    for (args, texts) in [
        (&["--admin-addr", "0.0.0.0:0"][..], &["--admin-tokens FILE", "127.0.0.1:8082"][..]),
        (&["--admin-tokens", rules.path()], &["--admin-addr"]),
        (&["--metrics-public"], &["--admin-addr"]),
        (&["--admin-addr", "127.0.0.1:0", "--admin-tokens", "/dev/null"], &["regular file"]),
        (&["--admin-addr", "127.0.0.1:0", "--admin-tokens", "/nowhere"], &["cannot read", "--admin-tokens"]),
    ] {
        program.run([&ports[..], args].concat()).assert(2, texts);
        program.run([&ports[..], args, &["--check"]].concat()).assert(2, texts);
    }
    let demo = ["serve", "--demo", "--check", "--admin-addr"];
    program.run([&demo[..], &["0.0.0.0:18999"]].concat()).assert(2, &["--admin-tokens FILE"]);
    program.run([&demo[..], &["127.0.0.1:18999"]].concat()).assert(0, &[]);
}
