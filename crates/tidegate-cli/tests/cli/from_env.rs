//! `tidegate serve --from-env`: the environment and the files of envoyproxy/ratelimit.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::program::{Program, Ran};
use super::serve::{Service, http, soon};

const DOCS: &str = include_str!("../../../../docs/operate/migrate-from-envoyproxy-ratelimit.md");
const TABLE: &str = include_str!("../../src/serve/from_env/variables.rs");

/// A folder with rules as envoyproxy/ratelimit has them, removed on drop.
pub(super) struct Runtime(pub(super) PathBuf);

impl Runtime {
    pub(super) fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("tidegate-{}-runtime-{name}", std::process::id()));
        let this = Self(root);
        fs::create_dir_all(this.config()).unwrap();
        this.write(
            "config.yaml",
            "domain: d\ndescriptors:\n  - key: user\n    rate_limit: { unit: hour, requests_per_unit: 2 }\n",
        );
        this
    }

    fn config(&self) -> PathBuf {
        self.0.join("ratelimit/config")
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.config().join(name), text).unwrap();
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `serve --from-env` with these variables, and without those of tidegate.
pub(super) fn command(root: &Path, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Program::at("").command([&["serve", "--from-env"], args].concat());
    command.env_remove("TIDEGATE_REDIS_URL").env_remove("TIDEGATE_NAMESPACE");
    command.env("RUNTIME_ROOT", root).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    command.envs(variables.iter().copied());
    command
}

fn check(runtime: &Runtime, variables: &[(&str, &str)]) -> Ran {
    Ran::of(&command(&runtime.0, &["--json", "--check"], variables).output().unwrap())
}

/// Returns the values of a setting, and its origin.
fn setting(ran: &Ran, name: &str) -> (String, String) {
    let output: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
    let settings = output["settings"].as_array().unwrap();
    let setting = settings.iter().find(|setting| setting["name"] == name).unwrap();
    let values: Vec<&str> =
        setting["values"].as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect();
    (values.join(" "), setting["origin"].as_str().unwrap().to_owned())
}

#[test]
fn variables_become_settings() {
    let runtime = Runtime::new("settings");
    let rules = runtime.config().display().to_string();
    let tcp = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "10.0.0.1:6379")];
    for (variables, name, value, origin) in [
        (&[][..], "rules", &*rules, "RUNTIME_ROOT"),
        (&[], "http_addr", "0.0.0.0:8080", "PORT"),
        (&[], "grpc_addr", "0.0.0.0:8081", "GRPC_PORT"),
        (&[("HOST", "localhost"), ("PORT", "80")], "http_addr", "127.0.0.1:80", "PORT"),
        (&[("GRPC_HOST", "::1"), ("GRPC_PORT", "9")], "grpc_addr", "[::1]:9", "GRPC_PORT"),
        (&[("PORT", "")], "http_addr", "0.0.0.0:8080", "PORT"),
        (&[], "redis", "unix:///var/run/nutcracker/ratelimit.sock", "REDIS_URL"),
        (&tcp, "redis", "redis://10.0.0.1:6379", "REDIS_URL"),
        (&[tcp[0], tcp[1], ("REDIS_TLS", "t")], "redis", "rediss://10.0.0.1:6379", "REDIS_URL"),
        (
            &[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2")],
            "redis",
            "redis://a:1 redis://b:2",
            "REDIS_URL",
        ),
        (&[("REDIS_TYPE", "CLUSTER"), ("REDIS_URL", "a:1,b:2")], "cluster", "true", "REDIS_TYPE"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main,a:1,b:2")], "sentinel", "main", "REDIS_URL"),
        (&[("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "main,a:1")], "redis", "redis://a:1", "REDIS_URL"),
        (&[tcp[0], tcp[1], ("REDIS_AUTH", "ada:x")], "user", "ada", "REDIS_AUTH"),
        (&[("REDIS_TIMEOUT", "50ms")], "deadline", "50ms", "REDIS_TIMEOUT"),
        (&[], "charge", "each", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"),
        (
            &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")],
            "charge",
            "all",
            "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        ),
        (&[], "charge_denied", "all", "--from-env"),
        (&[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")], "charge_denied", "all", "--from-env"),
        (&[], "on_failure", "error", "--from-env"),
        (&[("TIDEGATE_ON_FAILURE", "local")], "on_failure", "local", "TIDEGATE_ON_FAILURE"),
        (&[], "peeks_pass_at_limit", "true", "--from-env"),
        (&[], "request_metadata", "false", "default"),
        (&[("RESPONSE_DYNAMIC_METADATA", "true")], "request_metadata", "true", "RESPONSE_DYNAMIC_METADATA"),
        (
            &[("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")],
            "charge_denied",
            "uncached",
            "LOCAL_CACHE_SIZE_IN_BYTES",
        ),
        (&[("LOCAL_CACHE_SIZE_IN_BYTES", "0")], "charge_denied", "all", "--from-env"),
        (&[("SHADOW_MODE", "1")], "shadow", "true", "SHADOW_MODE"),
        (&[("SHADOW_MODE", "false")], "shadow", "false", "default"),
        (&[("MERGE_DOMAIN_CONFIG", "true")], "merge_domains", "true", "MERGE_DOMAIN_CONFIG"),
        (
            &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
            "headers",
            "ratelimit",
            "LIMIT_RESPONSE_HEADERS_ENABLED",
        ),
        (
            &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_RESET_HEADER", "X-Reset")],
            "reset_header",
            "X-Reset",
            "LIMIT_RESET_HEADER",
        ),
        (&[("LIMIT_RESET_HEADER", "X-Reset")], "headers", "none", "default"),
        (&[("GRPC_MAX_CONNECTION_AGE", "1h30m")], "max_connection_age", "1h30m", "GRPC_MAX_CONNECTION_AGE"),
        (&[("GRPC_MAX_CONNECTION_AGE", "0")], "max_connection_age", "3650d", "GRPC_MAX_CONNECTION_AGE"),
        (&[("CACHE_KEY_PREFIX", "edge_")], "namespace", "edge_", "CACHE_KEY_PREFIX"),
        (&[("CACHE_KEY_PREFIX", "edge:")], "namespace", "edge..3a", "CACHE_KEY_PREFIX"),
        (&[("LOG_FORMAT", "JSON")], "json", "true", "--json"),
        (
            &[("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true")],
            "ready_needs_redis",
            "true",
            "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        ),
        // Without the variable that switches it on, a file is not used.
        (&[("GRPC_SERVER_TLS_CERT", "/nowhere")], "grpc_certificate", "", "default"),
        (&[("REDIS_TLS_CACERT", "/nowhere")], "tls_ca", "", "default"),
        // Settings of tidegate have precedence.
        (
            &[("PORT", "80"), ("TIDEGATE_HTTP_ADDR", "127.0.0.1:1")],
            "http_addr",
            "127.0.0.1:1",
            "TIDEGATE_HTTP_ADDR",
        ),
    ] {
        let ran = check(&runtime, variables);
        ran.assert(0, &[]);
        assert_eq!(setting(&ran, name), (value.to_owned(), origin.to_owned()), "{variables:?}");
    }
}

#[test]
fn schemes_of_redis_urls_never_turn_tls_off() {
    let runtime = Runtime::new("schemes");
    for (kind, url, plain, encrypted) in [
        ("single", "10.0.0.1:6379", "redis://10.0.0.1:6379", "rediss://10.0.0.1:6379"),
        ("single", "redis://10.0.0.1:6379", "redis://10.0.0.1:6379", "rediss://10.0.0.1:6379"),
        ("single", "Redis://h:1", "redis://h:1", "rediss://h:1"),
        ("single", "rediss://h:1", "rediss://h:1", "rediss://h:1"),
        ("cluster", "redis://a:1, b:2", "redis://a:1 redis://b:2", "rediss://a:1 rediss://b:2"),
        ("cluster", "rediss://a:1,rediss://b:2", "rediss://a:1 rediss://b:2", "rediss://a:1 rediss://b:2"),
        ("sentinel", "m,redis://a:1,b:2", "redis://a:1 redis://b:2", "rediss://a:1 rediss://b:2"),
    ] {
        for (tls, expected) in [("false", plain), ("true", encrypted)] {
            let variables =
                [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_TYPE", kind), ("REDIS_URL", url), ("REDIS_TLS", tls)];
            let ran = check(&runtime, &variables);
            ran.assert(0, &[]);
            assert_eq!(setting(&ran, "redis").0, expected, "{variables:?}");
        }
    }
    let mixed = [("REDIS_TYPE", "cluster"), ("REDIS_URL", "rediss://a:1,b:2")];
    check(&runtime, &mixed).assert(2, &["the cluster nodes have different users, passwords or schemes"]);
    // Without the type of the socket, the scheme shows it.
    let ran = check(&runtime, &[("REDIS_URL", "redis://h:1"), ("REDIS_TLS", "true")]);
    assert_eq!(setting(&ran, "redis").0, "rediss://h:1");
    let ran = check(&runtime, &[("REDIS_URL", "unix:///run/redis.sock")]);
    assert_eq!(setting(&ran, "redis").0, "unix:///run/redis.sock");
}

#[test]
fn redis_urls_that_cannot_be_encrypted_are_errors_without_their_passwords() {
    let runtime = Runtime::new("unencrypted");
    for (kind, url, message) in [
        ("single", "unix:///run/redis.sock", "REDIS_TLS=true is not supported for a Unix socket"),
        ("single", "unix:/run/redis.sock", "REDIS_URL has an unknown scheme"),
        ("single", "http://:Quagga@h:1", "REDIS_URL has an unknown scheme"),
        ("single", "redis://redis://:Quagga@h:1", "REDIS_URL has an unknown scheme"),
        ("single", "redis://:Quagga@h:1#insecure", "REDIS_URL has a query or a fragment"),
        ("single", "redis://h:1?password=Quagga", "REDIS_URL has a query or a fragment"),
        ("cluster", "a:1,unix:///run/redis.sock", "REDIS_URL has an unknown scheme"),
        ("sentinel", "m,http://:Quagga@h:1", "REDIS_URL has an unknown scheme"),
    ] {
        let variables =
            [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_TYPE", kind), ("REDIS_URL", url), ("REDIS_TLS", "true")];
        let ran = check(&runtime, &variables);
        ran.assert(2, &[message]);
        assert!(!format!("{ran:?}").contains("Quagga"), "{ran:?}");
    }
    // The default is a Unix socket.
    check(&runtime, &[("REDIS_TLS", "true")])
        .assert(2, &["REDIS_TLS=true is not supported for a Unix socket"]);
}

#[test]
fn several_addresses_of_a_single_redis_are_an_error() {
    let runtime = Runtime::new("several");
    for url in ["a:1,b:2", "a,b", "redis://:Quagga,1@a:1,b:2"] {
        for socket_type in ["tcp", "unix"] {
            let ran = check(&runtime, &[("REDIS_SOCKET_TYPE", socket_type), ("REDIS_URL", url)]);
            ran.assert(
                2,
                &["REDIS_URL has several addresses, and REDIS_TYPE is SINGLE", "CLUSTER or SENTINEL"],
            );
            assert!(!format!("{ran:?}").contains("Quagga"), "{ran:?}");
        }
    }
    // A path, and a password.
    for url in ["/run/a,b.sock", "redis://:a,b@h:1"] {
        check(&runtime, &[("REDIS_URL", url)]).assert(0, &[]);
    }
}

#[test]
fn passwords_of_redis_are_not_printed() {
    let runtime = Runtime::new("passwords");
    let tcp = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "10.0.0.1:6379")];
    for variables in [
        vec![tcp[0], tcp[1], ("REDIS_AUTH", "Quagga@:Zebra")],
        vec![tcp[0], tcp[1], ("REDIS_AUTH", "ada:Quagga@:Zebra")],
        vec![("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m,a:1"), ("REDIS_SENTINEL_AUTH", "Quagga@/Zebra")],
        vec![("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "m"), ("REDIS_SENTINEL_AUTH", "QuaggaZebra")],
    ] {
        let ran = check(&runtime, &variables);
        let all = format!("{ran:?}");
        // The user of the first is the text before the colon.
        assert!(
            !all.contains("Zebra") && (variables[2].1.starts_with("Quagga@:") || !all.contains("Quagga")),
            "{all}"
        );
    }
}

#[test]
fn variables_that_cannot_be_honored_are_errors() {
    let runtime = Runtime::new("errors");
    for (variables, message) in [
        (&[("BACKEND_TYPE", "memcache")][..], "BACKEND_TYPE=memcache is not supported: limits are in Redis"),
        (&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], "CONFIG_TYPE=GRPC_XDS_SOTW is not supported"),
        (&[("GRPC_UDS", "/run/x.sock")], "GRPC_UDS=/run/x.sock is not supported"),
        (&[("QUOTA_MODE", "true")], "set `quota_mode: true` in the rules"),
        (&[("RESPONSE_DYNAMIC_METADATA", "yes")], "RESPONSE_DYNAMIC_METADATA=yes: write true or false"),
        (
            &[("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true")],
            "a host name that the certificate of Redis contains",
        ),
        (&[("LOCAL_CACHE_SIZE_IN_BYTES", "1MB")], "LOCAL_CACHE_SIZE_IN_BYTES=1MB: give a number of bytes"),
        (&[("SHADOW_MODE", "yes")], "SHADOW_MODE=yes: write true or false"),
        (&[("PORT", "65536")], "PORT=65536: give a port"),
        (
            &[("GRPC_HOST", "limits.internal")],
            "GRPC_HOST=limits.internal: give an IP address, or the setting `grpc_addr`",
        ),
        (&[("REDIS_TYPE", "PROXY")], "REDIS_TYPE=PROXY: write SINGLE, SENTINEL or CLUSTER"),
        (
            &[("REDIS_TYPE", "sentinel"), ("REDIS_URL", "a:1")],
            "needs the name of the primary and the sentinels",
        ),
        (&[("REDIS_TIMEOUT", "10")], "REDIS_TIMEOUT: the setting `deadline`: invalid value '10'"),
        (&[("CACHE_KEY_PREFIX", ":::::::::::::::::")], "this is too long for a namespace"),
        (&[("GRPC_SERVER_USE_TLS", "true")], "GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_CERT"),
        (
            &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_LIMIT_HEADER", "a b")],
            "LIMIT_LIMIT_HEADER: the setting `limit_header`",
        ),
    ] {
        check(&runtime, variables).assert(2, &[message]);
    }
    let nowhere = Path::new("/nowhere");
    Ran::of(&command(nowhere, &["--check"], &[]).output().unwrap()).assert(1, &["/nowhere/ratelimit/config"]);
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let runtime = Runtime::new("mistakes");
    let file = runtime.0.join("serve.yaml");
    fs::write(&file, "drian: 5s\ndrain: soon\nadmin_host: x\nshadwo: true\n").unwrap();
    let variables = [
        ("BACKEND_TYPE", "memcache"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("SHADOW_MODE", "yes"),
        ("PORT", "65536"),
        ("GRPC_HOST", "limits.internal"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("REDIS_TYPE", "PROXY"),
        ("REDIS_TIMEOUT", "10"),
        ("TIDEGATE_MAX_MESSAGE", "many"),
    ];
    let of_variables = [
        "BACKEND_TYPE=memcache is not supported",
        "CONFIG_TYPE=GRPC_XDS_SOTW is not supported",
        "SHADOW_MODE=yes: write true or false",
        "PORT=65536: give a port",
        "GRPC_HOST=limits.internal: give an IP address",
        "GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_CERT",
        "GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_KEY",
        "REDIS_TYPE=PROXY: write SINGLE",
        "REDIS_TIMEOUT: the setting `deadline`: invalid value '10'",
        "TIDEGATE_MAX_MESSAGE: the setting `max_message`: invalid value 'many'",
    ];
    let args = ["--check", "--config", file.to_str().unwrap()];
    let ran = Ran::of(&command(&runtime.0, &args, &variables).output().unwrap());
    let of_file = ["unknown setting `drian`: did you mean `drain`?", "unknown setting `shadwo`"];
    ran.assert(2, &[&of_variables[..], &of_file].concat());
    // Once its settings are known, the file is read.
    fs::write(&file, "drain: soon\nadmin_host: x\n").unwrap();
    let ran = Ran::of(&command(&runtime.0, &args, &variables).output().unwrap());
    let of_file = ["the setting `drain`: invalid value 'soon'", "needs the setting `admin_addr`"];
    ran.assert(2, &[&of_variables[..], &of_file].concat());
}

#[test]
fn misspelt_variables_are_reported_and_unrelated_ones_are_not() {
    let runtime = Runtime::new("misspelt");
    let ran = check(
        &runtime,
        &[
            ("REDIS_ULR", "h:1"),
            ("REDIS_TLS_CA_CERT", "/nowhere"),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVER_LIMIT", "true"),
            ("redis_type", "CLUSTER"),
            // Of Kubernetes, and of other programs.
            ("REDIS_PORT", "tcp://10.0.0.1:6379"),
            ("REDIS_SERVICE_HOST", "10.0.0.1"),
            ("RATELIMIT_PORT_8081_TCP", "tcp://10.0.0.1:8081"),
            ("HOSTS", "x"),
            ("LOG_LEVEL_X", "x"),
        ],
    );
    ran.assert(
        0,
        &[
            "unknown variable REDIS_ULR is ignored: did you mean REDIS_URL?",
            "unknown variable REDIS_TLS_CA_CERT is ignored: did you mean REDIS_TLS_CACERT?",
            "did you mean STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT?",
            "unknown variable redis_type is ignored: did you mean REDIS_TYPE?",
        ],
    );
    assert_eq!(ran.err.matches("did you mean").count(), 4, "{ran:?}");
}

#[test]
fn variables_without_effect_are_reported_unless_they_are_neutral() {
    let runtime = Runtime::new("warnings");
    runtime.write("notes.txt", "domain: e");
    fs::create_dir(runtime.config().join("more")).unwrap();
    runtime.write(".hidden.yaml", "domain: [");
    let ran = check(
        &runtime,
        &[
            ("NEAR_LIMIT_RATIO", "0.7"),
            ("LOG_LEVEL", "debug"),
            ("REDIS_POOL_SIZE", "5"),
            ("USE_STATSD", "true"),
            ("USE_PROMETHEUS", "TRUE"),
            ("DEBUG_PORT", "6070"),
            ("RUNTIME_IGNOREDOTFILES", "false"),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", "x:1"),
            ("CACHE_KEY_PREFIX", "edge:"),
        ],
    );
    ran.assert(
        0,
        &[
            "NEAR_LIMIT_RATIO has no effect: ",
            "LOG_LEVEL has no effect: ",
            "REDIS_POOL_SIZE has no effect: ",
            "USE_STATSD has no effect: no metrics are sent to statsd",
            "REDIS_PERSECOND has no effect: the Redis of REDIS_URL has all limits",
            "CACHE_KEY_PREFIX=edge: is the namespace `edge..3a`",
            "USE_PROMETHEUS has no effect: /metrics of the admin port",
            "DEBUG_PORT has no effect: the admin port has /metrics and /config: set --admin-addr",
            "RUNTIME_IGNOREDOTFILES has no effect: ",
            "not read as rules: ",
            "config/more, ",
            "config/notes.txt; move the rules",
        ],
    );
    assert!(!ran.err.contains(".hidden") && !ran.err.contains("REDIS_PERSECOND_URL"), "{ran:?}");
    // By default, that program sends metrics to statsd.
    let reports = |variables: &[_]| check(&runtime, variables).err.contains("no metrics are sent to statsd");
    assert_eq!([reports(&[]), reports(&[("DISABLE_STATS", "true")])], [true, false]);
    fs::remove_file(runtime.config().join("notes.txt")).unwrap();
    fs::remove_dir(runtime.config().join("more")).unwrap();
    let ran = check(
        &runtime,
        &[
            ("NEAR_LIMIT_RATIO", "0.8"),
            ("CONFIG_TYPE", "file"),
            ("BACKEND_TYPE", "redis"),
            ("USE_STATSD", "f"),
            ("REDIS_PERSECOND", "False"),
            ("REDIS_PERSECOND_URL", "x:1"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
            ("QUOTA_MODE", "0"),
        ],
    );
    ran.assert(0, &[]);
    assert_eq!(ran.err, "");
}

#[test]
fn another_redis_gets_nothing_of_the_variables_of_the_old_one() {
    let runtime = Runtime::new("other-redis");
    let old = [
        ("REDIS_TYPE", "SENTINEL"),
        ("REDIS_URL", "main,a:1"),
        ("REDIS_AUTH", "ada:Quagga"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", "/nowhere"),
        ("REDIS_TIMEOUT", "50ms"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
    ];
    let file = runtime.0.join("serve.yaml");
    fs::write(&file, "redis: redis://new:1\n").unwrap();
    let file = file.to_str().unwrap().to_owned();
    for (args, variable, origin) in [
        (vec!["--redis", "redis://new:1"], None, "--redis"),
        (vec![], Some(("TIDEGATE_REDIS_URL", "redis://new:1")), "TIDEGATE_REDIS_URL"),
        (vec!["--config", &*file], None, &*format!("{file}:1:8")),
    ] {
        let args = [&["--json", "--check"], &args[..]].concat();
        let variables: Vec<_> = old.into_iter().chain(variable).collect();
        let ran = Ran::of(&command(&runtime.0, &args, &variables).output().unwrap());
        let names: Vec<&str> = old.iter().map(|(name, _)| *name).collect();
        ran.assert(0, &[&format!("no effect, because {origin} sets the URL of Redis")]);
        assert!(names.iter().all(|name| ran.err.contains(name)), "{ran:?}");
        assert_eq!(setting(&ran, "redis"), ("redis://new:1".to_owned(), origin.to_owned()));
        for name in ["sentinel", "user", "tls_ca", "deadline"] {
            assert_eq!(setting(&ran, name).1, "default", "{name}: {ran:?}");
        }
    }
    // The old ones apply with the old URL, and the password is reported.
    let ran = Ran::of(&command(&runtime.0, &["--check"], &old[..3]).output().unwrap());
    ran.assert(0, &["the password of Redis is hidden: REDIS_AUTH"]);
    let args = ["--check", "--redis", "redis://new:1"];
    let ran = Ran::of(&command(&runtime.0, &args, &old[..3]).output().unwrap());
    ran.assert(0, &[]);
    assert!(!ran.out.contains("REDIS_AUTH"), "{ran:?}");
}

#[cfg(unix)]
#[test]
fn another_redis_gets_no_password_of_the_old_one() {
    let redis = tidegate_testkit::Server::process(&[]).unwrap();
    let runtime = Runtime::new("other-password");
    let url = redis.url();
    // This server has no password: it rejects a login.
    let args = ["--redis", url, "--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"];
    let variables = [
        ("REDIS_URL", "old:1"),
        ("REDIS_AUTH", "ada:Quagga"),
        ("LOG_FORMAT", "json"),
        ("TIDEGATE_DEADLINE", "10s"),
    ];
    let service = Service::of(command(&runtime.0, &args, &variables));
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "user", "value": "x"}]}]}"#;
    assert_eq!(http(&service.http, "/json", body).0, 200);
    assert!(redis.cli(&["KEYS", "*"]).unwrap().contains("tidegate"), "Redis decided");
    service.signal("-TERM");
    assert_eq!(service.end(), Some(0));
}

#[cfg(unix)]
#[test]
fn folder_of_envoyproxy_ratelimit_is_served_as_is() {
    let redis = tidegate_testkit::Server::process(&[]).unwrap();
    redis.cli(&["CONFIG", "SET", "requirepass", "Quagga@/Zebra"]).unwrap();
    let runtime = Runtime::new("served");
    // Denials of one rule charge the others, and quota mode needs no `charge`.
    runtime.write("more.yaml", "domain: e\ndescriptors:\n  - key: a\n    rate_limit: { unit: hour, requests_per_unit: 1 }\n  - key: b\n    quota_mode: true\n    rate_limit: { unit: hour, requests_per_unit: 2 }\n");
    let address = redis
        .url()
        .trim_start_matches("redis://")
        .rsplit('@')
        .next()
        .unwrap()
        .trim_end_matches('/')
        .to_owned();
    let variables = [
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &*address),
        ("REDIS_AUTH", "Quagga@/Zebra"),
        ("HOST", "127.0.0.1"),
        ("PORT", "0"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("LOG_FORMAT", "json"),
        ("REDIS_TIMEOUT", "10s"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_LIMIT_HEADER", "X-Own-Limit"),
    ];
    let link = runtime.0.join("current");
    let link_to = |version: &Runtime| {
        let new = runtime.0.join("new");
        std::os::unix::fs::symlink(&version.0, &new).unwrap();
        fs::rename(&new, &link).unwrap();
    };
    link_to(&runtime);
    let service = Service::of(command(&link, &[], &variables));
    let ask = |domain: &str, keys: &[&str]| {
        let descriptor = |key: &&str| format!(r#"{{"entries": [{{"key": "{key}", "value": "x"}}]}}"#);
        let descriptors: Vec<String> = keys.iter().map(descriptor).collect();
        http(
            &service.http,
            "/json",
            &format!(r#"{{"domain": "{domain}", "descriptors": [{}]}}"#, descriptors.join(",")),
        )
    };
    let (status, body) = ask("d", &["user"]);
    assert_eq!(status, 200, "{body}");
    for header in ["x-own-limit", "ratelimit-remaining", "ratelimit-reset"] {
        assert!(body.contains(&format!("\"key\":\"{header}\"")), "{header}: {body}");
    }
    assert_eq!([ask("d", &["user"]).0, ask("d", &["user"]).0], [200, 429]);
    assert_eq!(ask("e", &["a", "b"]).0, 200);
    assert_eq!(ask("e", &["a", "b"]).0, 429, "the rule `a` denies, and `b` is charged");
    assert_eq!(ask("e", &["b"]).0, 429, "both units of `b` are used");

    // A new version of the folder, swapped in by a link, as RUNTIME_WATCH_ROOT expects.
    let newer = Runtime::new("served-newer");
    newer.write(
        "config.yaml",
        "domain: d\ndescriptors:\n  - key: user\n    rate_limit: { unit: hour, requests_per_unit: 100 }\n",
    );
    link_to(&newer);
    soon("the new limit applies", || ask("d", &["user"]).0 == 200);
    service.signal("-TERM");
    assert_eq!(service.end(), Some(0));
}

/// Returns the names in code spans of a text that look like variables.
fn variables(text: &str) -> BTreeSet<&str> {
    let is_variable = |word: &&str| {
        word.len() > 3
            && word.starts_with(|first: char| first.is_ascii_uppercase())
            && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    text.split('`').skip(1).step_by(2).filter(is_variable).collect()
}

#[test]
fn each_variable_is_in_the_table_of_the_page_and_of_the_program() {
    let known: BTreeSet<&str> =
        TABLE.split("    variable(").skip(1).filter_map(|rest| rest.split('"').nth(1)).collect();
    let rows: Vec<&str> = DOCS.lines().filter(|line| line.starts_with("| `")).collect();
    let mut documented = BTreeSet::new();
    for row in &rows {
        let names = variables(row.split('|').nth(1).unwrap());
        for name in names {
            assert!(documented.insert(name), "{name} has two rows");
        }
    }
    assert!(known.len() > 90, "{known:?}");
    let missing: Vec<_> = known.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&known).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing {missing:?}, unknown {unknown:?}");

    // Each setting that a variable becomes is named in its row, as are an error and a warning.
    for entry in TABLE.split("    variable(").skip(1) {
        let name = entry.split('"').nth(1).unwrap();
        let row = rows.iter().find(|row| variables(row.split('|').nth(1).unwrap()).contains(name)).unwrap();
        let treatment = entry.split(',').nth(2).unwrap_or_default();
        let expected = match treatment.trim() {
            text if text.starts_with("Refused") => "error",
            text if text.starts_with("Warned") || text.starts_with("NO_") || text.starts_with("BATCHED") => {
                "warning"
            }
            _ => "|",
        };
        if treatment.contains("NO_DEBUG_PORT") || name == "USE_PROMETHEUS" {
            assert!(row.contains("`admin_addr`"), "{name}: what replaces it, in {row}");
        }
        assert!(row.contains(expected), "{name}: {expected} in {row}");
    }
}

/// Returns what a command of `rules` prints, with the variables of this folder.
fn rules(runtime: &Runtime, args: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = Program::at("").command([&["rules"], args].concat());
    command.env("RUNTIME_ROOT", &runtime.0).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    Ran::of(&command.envs(variables.iter().copied()).output().unwrap())
}

#[test]
fn rules_can_be_validated_and_explained_as_the_service_reads_them() {
    let runtime = Runtime::new("validate");
    let quota = "domain: d\ndescriptors: [{ key: team, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 2 } }]";
    runtime.write("team.yaml", quota);
    let path = runtime.config().display().to_string();
    // The domain is in two files, and quota mode needs `charge: each`.
    let merged = [("MERGE_DOMAIN_CONFIG", "true")];
    rules(&runtime, &["validate", "--from-env"], &merged).assert(0, &["valid: 2 rules in ", &*path]);
    rules(&runtime, &["validate", "--from-env"], &[]).assert(1, &["duplicate domain `d`"]);
    rules(&runtime, &["validate", &path], &merged)
        .assert(1, &["duplicate domain `d`", "needs `charge: each`"]);
    let team = format!("{path}/team.yaml");
    rules(&runtime, &["validate", "--from-env", &team], &[]).assert(0, &["valid: 1 rule in "]);
    rules(&runtime, &["explain", "--from-env", "--domain", "d", "-d", "team=a"], &merged)
        .assert(0, &["rule d.team: 2/h, quota mode"]);
    rules(&runtime, &["validate"], &merged).assert(2, &["<PATH>"]);
}

#[test]
fn wildcards_that_count_elsewhere_in_envoyproxy_ratelimit_are_reported() {
    let runtime = Runtime::new("wildcards");
    let limit = "rate_limit: { unit: hour, requests_per_unit: 1 }";
    let rule = |value: &str| format!("  - {{ key: path, value: '{value}', {limit} }}\n");
    runtime.write("config.yaml", &format!("domain: d\ndescriptors:\n{}{}", rule("/api/*"), rule("/api/*/x")));
    let expected = ["config.yaml:4:25: values that also match the `value` at ", "in envoyproxy/ratelimit"];
    rules(&runtime, &["validate", "--from-env"], &[]).assert(0, &expected);
    command(&runtime.0, &["--check"], &[])
        .output()
        .map(|output| Ran::of(&output).assert(0, &expected))
        .unwrap();
    let path = runtime.config().display().to_string();
    let native = rules(&runtime, &["validate", &path], &[]);
    native.assert(0, &["valid: 2 rules in "]);
    assert_eq!(native.err, "");
}

#[test]
fn empty_folder_of_envoyproxy_ratelimit_is_valid() {
    let runtime = Runtime::new("empty");
    fs::remove_file(runtime.config().join("config.yaml")).unwrap();
    let warning = "no file in this folder ends in .yaml or .yml";
    command(&runtime.0, &["--check"], &[])
        .output()
        .map(|output| Ran::of(&output).assert(0, &[warning, "every request passes"]))
        .unwrap();
    rules(&runtime, &["validate", &runtime.config().display().to_string()], &[]).assert(1, &[warning]);
}

#[test]
fn each_field_of_their_rules_has_a_row() {
    // The fields that their loader knows.
    for field in [
        "domain",
        "descriptors",
        "key",
        "value",
        "rate_limit",
        "unit",
        "requests_per_unit",
        "unlimited",
        "name",
        "replaces",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
    ] {
        let is_listed = DOCS.lines().any(|line| {
            let first = line.strip_prefix("| `").and_then(|line| line.split(" |").next());
            first.is_some_and(|cell| format!("`{cell}").contains(&format!("`{field}`")))
        });
        assert!(is_listed, "the page has no row for `{field}`");
    }
}
