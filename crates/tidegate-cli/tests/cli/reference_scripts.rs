//! The integration scripts of envoyproxy/ratelimit (f2fb157), as requests through a real Envoy with its rules and its
//! configuration, to `tidegate serve --from-env` in its environment.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{Envoy, Server};

use super::from_env::{Runtime, command};
use super::serve::{Service, http, soon};
use crate::support::world::START;

const RULES: &str = include_str!("reference_scripts/rules.yaml");
const OTHER_RULES: &str = "
domain: mongo_cps
descriptors:
  - { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 500 } }
  - { key: database, value: default, rate_limit: { unit: second, requests_per_unit: 500 } }
";
const ENVOY: &str = include_str!("reference_scripts/envoy.yaml");

const OK: u16 = 200;
const LIMITED: u16 = 429;

/// The longest time for which the service keeps a denial without asking Redis, and some more.
const DENIAL_IS_FORGOTTEN: Duration = Duration::from_secs(1);

/// A service behind the proxy, which replies with this text. Returns its port.
fn upstream(text: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                // A request has no body, and ends its only segment.
                while stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {
                    let length = text.len();
                    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}");
                }
            });
        }
    });
    port
}

struct Setup {
    redis: Server,
    /// The time of Redis, in seconds since 1970.
    now: Cell<u64>,
    service: Service,
    envoy: Envoy,
    _runtime: Runtime,
}

impl Setup {
    fn start() -> Self {
        // The clock of Redis ends the minutes, and stands still between them.
        let redis = Server::with_shiftable_clock().unwrap();
        let now = START.as_secs();
        redis.freeze_clock(now * 1_000_000);
        let runtime = Runtime::new("scripts");
        runtime.write("config.yaml", OTHER_RULES);
        runtime.write("example.yaml", RULES);
        let variables = [
            ("USE_STATSD", "true"),
            ("STATSD_HOST", "statsd"),
            ("STATSD_PORT", "9125"),
            ("LOG_LEVEL", "debug"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", redis.url()),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("RESPONSE_DYNAMIC_METADATA", "true"),
            // Not of their environment: free ports, the output that the test reads, and a machine that is busy.
            ("HOST", "127.0.0.1"),
            ("PORT", "0"),
            ("GRPC_HOST", "127.0.0.1"),
            ("GRPC_PORT", "0"),
            ("LOG_FORMAT", "json"),
            ("REDIS_TIMEOUT", "10s"),
        ];
        let service = Service::of(command(&runtime.0, &[], &variables));
        let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
        let config = ENVOY
            .replace("{ratelimit}", &port(&service.grpc))
            .replace("{service_1}", &upstream("Hello World from Service 1").to_string())
            .replace("{service_2}", &upstream("Hello World from Service 2").to_string());
        let envoy = Envoy::start(&config).unwrap();
        Self { redis, now: Cell::new(now), service, envoy, _runtime: runtime }
    }

    /// Sends a request with these headers. Returns the status, the head and the body of the response.
    fn curl(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.envoy.url().trim_start_matches("http://")).unwrap();
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\n{headers}\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
    }

    fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.curl(path, headers).0
    }

    fn statuses(&self, path: &str, headers: &[(&str, &str)], expected: &[u16]) {
        let got: Vec<u16> = expected.iter().map(|_| self.status(path, headers)).collect();
        assert_eq!(got, expected, "{path} {headers:?}");
    }

    /// Waits until this many units of a service are left, or `None`: until its limit is exceeded. Envoy reports the end of a
    /// response without waiting for the answer.
    fn charged(&self, service: &str, left: Option<u64>) {
        let peek = format!(
            r#"{{"domain": "rl", "descriptors": [{{"entries": [{{"key": "service", "value": "{service}"}}], "hitsAddend": 0}}]}}"#
        );
        soon(&format!("{service} has {left:?} units left"), || {
            let (status, body) = http(&self.service.http, "/json", &peek);
            let response: Value = serde_json::from_str(&body).unwrap();
            let remaining = response["statuses"][0]["limitRemaining"].as_u64().unwrap_or_default();
            (status == OK).then_some(remaining) == left
        });
    }

    fn sleep_60(&self) {
        self.now.update(|now| now + 60);
        self.redis.freeze_clock(self.now.get() * 1_000_000);
        thread::sleep(DENIAL_IS_FORGOTTEN);
    }

    fn multiservice_tokenquota(&self) {
        let steps = [
            ("Service 1", "service_1", Some(0)),
            ("Service 1", "service_1", None),
            ("Service 2", "service_2", Some(1)),
            ("Service 2", "service_2", Some(0)),
            ("Service 2", "service_2", None),
        ];
        for (expected, charged, left) in steps {
            let (status, _, body) = self.curl("/multiservice-tokenquota", &[]);
            assert_eq!((status, &*body), (OK, &*format!("Hello World from {expected}")));
            self.charged(charged, left);
        }
        self.statuses("/multiservice-tokenquota", &[], &[LIMITED]);
        self.sleep_60();
        let (status, _, body) = self.curl("/multiservice-tokenquota", &[]);
        assert_eq!((status, &*body), (OK, "Hello World from Service 1"));
        self.charged("service_1", Some(0));
    }

    fn quota(&self) {
        self.statuses("/quota", &[], &[OK, OK, LIMITED]);
        self.sleep_60();
        self.statuses("/quota", &[], &[OK]);
    }

    fn replaces(&self) {
        let two = |of_foo, of_bar, expected: &[u16]| {
            self.statuses("/twoheader", &[("foo", of_foo), ("bar", of_bar)], expected);
        };
        let four = |of_foo, of_bar, destination, expected: &[u16]| {
            let clusters = [("source_cluster", "proxy"), ("destination_cluster", destination)];
            self.statuses(
                "/fourheader",
                &[&[("foo", of_foo), ("bar", of_bar)], &clusters[..]].concat(),
                expected,
            );
        };
        let five = |expected: &[u16]| {
            let clusters = [("source_cluster", "proxy"), ("destination_cluster", "fake")];
            let headers =
                [&[("foo", "my_foo"), ("bar", "bkthomps"), ("category", "account")], &clusters[..]].concat();
            self.statuses("/fiveheader", &headers, expected);
        };
        two("bkthomps", "banned", &[LIMITED]);
        four("bkthomps", "banned", "mock", &[LIMITED]);
        four("bkthomps", "banned", "override", &[OK, OK, LIMITED]);
        four("my_foo", "bkthomps", "bkthomps", &[OK, OK, LIMITED]);
        four("my_foo", "bkthomps", "not_bkthomps", &[OK, LIMITED]);
        four("my_foo", "bkthomps", "bkthomps", &[LIMITED]);
        five(&[OK, OK, OK, OK, LIMITED]);
        two("foo_2", "bkthomps", &[OK, LIMITED]);
        four("foo_3", "bar_3", "fake", &[OK, OK, LIMITED]);
        five(&[LIMITED]);
    }

    fn simple_get(&self) {
        self.statuses("/twoheader", &[("foo", "test"), ("baz", "shady")], &[OK]);
    }

    fn token_quota(&self) {
        for left in [Some(1), Some(0), None] {
            self.statuses("/tokenquota", &[], &[OK]);
            self.charged("service_2", left);
        }
        self.statuses("/tokenquota", &[], &[LIMITED]);
        self.sleep_60();
        self.statuses("/tokenquota", &[], &[OK]);
    }

    fn trigger_ratelimit(&self) {
        let headers = [("foo", "pelle"), ("baz", "not-so-shady")];
        self.statuses("/twoheader", &headers, &[OK, OK, OK, LIMITED]);
        assert!(self.curl("/twoheader", &headers).1.starts_with("HTTP/1.1 429 Too Many Requests"));
    }

    fn trigger_shadow_mode_key(&self) {
        let headers = [("foo", "pelle"), ("baz", "shady")];
        self.statuses("/twoheader", &headers, &[OK; 5]);
        let (_, head, _) = self.curl("/twoheader", &headers);
        assert!(head.contains("\r\nx-ratelimit-remaining: 0\r\n"), "{head}");
    }

    /// Without its last line, which reads a metric of statsd.
    fn value_included_in_stats_key_when_unspecified(&self) {
        self.statuses("/unspec", &[("unspec", "unspecified_value")], &[OK, OK, LIMITED]);
    }
}

#[test]
fn integration_scripts_of_envoyproxy_ratelimit_pass_through_envoy() {
    let setup = Setup::start();
    // In their order.
    setup.multiservice_tokenquota();
    setup.quota();
    setup.replaces();
    setup.simple_get();
    // There, each script begins in a minute of its own only by chance.
    setup.sleep_60();
    setup.token_quota();
    setup.trigger_ratelimit();
    setup.trigger_shadow_mode_key();
    setup.value_included_in_stats_key_when_unspecified();
    assert!(setup.service.has_reported("no metrics are sent to statsd"));
}
