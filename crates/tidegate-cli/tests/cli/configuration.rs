//! The settings of `tidegate serve`: flags, environment and file.

use std::process::Command;

use serde_json::{Value, json};

use super::program::{Program, Ran};
use super::rules::File;
use super::serve::{Service, get, soon};

const DOCS: &str = include_str!("../../../../docs/operate/serve.md");
const RULES: &str =
    "domain: d\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 2 } }]\n";

/// The program without a setting in its environment.
fn bare(args: &[&str]) -> Command {
    let mut command = Program::at("redis://127.0.0.1:1").command(args);
    command.env_remove("TIDEGATE_REDIS_URL").env_remove("TIDEGATE_NAMESPACE");
    command
}

fn run(command: &mut Command) -> Ran {
    Ran::of(&command.output().unwrap())
}

/// Returns the values and the origin of a setting, from the output of `--check`.
fn setting<'o>(output: &'o Value, name: &str) -> (Vec<&'o str>, &'o str) {
    let settings = output["settings"].as_array().unwrap();
    let setting = settings.iter().find(|setting| setting["name"] == name).unwrap();
    let values = setting["values"].as_array().unwrap().iter().map(|value| value.as_str().unwrap());
    (values.collect(), setting["origin"].as_str().unwrap())
}

fn checked(command: &mut Command) -> Value {
    let ran = run(command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn flag_precedes_environment_precedes_file_precedes_default() {
    let rules = File::new("config-rules", RULES);
    let text = format!(
        "# The limits of the edge.\nrules: {}\ngrpc_addr: 127.0.0.1:1001\nhttp_addr: 127.0.0.1:1002\n\
         deadline: 30ms\nmax_message: 4096\nmerge_domains: true\nredis:\n  - redis://a:1\n  - redis://b:2\ncluster: true\n",
        rules.path()
    );
    let file = File::new("config-order", &text);
    let mut command =
        bare(&["--json", "serve", "--check", "--config", file.path(), "--grpc-addr", "127.0.0.1:3001"]);
    command.env("TIDEGATE_GRPC_ADDR", "127.0.0.1:2001").env("TIDEGATE_HTTP_ADDR", "127.0.0.1:2002");
    command.env("TIDEGATE_DRAIN", "").env("TIDEGATE_GRPC_CLIENT_SAN", "");
    let output = checked(&mut command);
    let line = |line: u32, column: u32| format!("{}:{line}:{column}", file.path());
    for (name, values, origin) in [
        ("grpc_addr", &["127.0.0.1:3001"][..], "--grpc-addr".to_owned()),
        ("http_addr", &["127.0.0.1:2002"], "TIDEGATE_HTTP_ADDR".to_owned()),
        ("deadline", &["30ms"], line(5, 11)),
        ("max_message", &["4096"], line(6, 14)),
        ("merge_domains", &["true"], line(7, 16)),
        ("redis", &["redis://a:1", "redis://b:2"], line(9, 3)),
        ("drain", &["10s"], "default".to_owned()),
        ("grpc_key", &[], "default".to_owned()),
        ("shadow", &["false"], "default".to_owned()),
    ] {
        assert_eq!(setting(&output, name), (values.to_vec(), &*origin), "{name}");
    }
    // A list replaces a list, and `false` a `true`.
    let output = checked(command.env("TIDEGATE_REDIS_URL", "redis://c:3").env("TIDEGATE_CLUSTER", "false"));
    assert_eq!(setting(&output, "redis"), (vec!["redis://c:3"], "TIDEGATE_REDIS_URL"));
    assert_eq!(setting(&output, "cluster"), (vec!["false"], "TIDEGATE_CLUSTER"));
}

#[test]
fn printed_settings_are_a_valid_file_without_passwords() {
    let rules = File::new("config-printed-rules", RULES);
    let secret = "Quagga7Zebra";
    let text = format!("rules: {}\ndenied_body: \"a: #b\"\nredis: redis://:{secret}@h:1/2\n", rules.path());
    let file = File::new("config-printed", &text);
    let ran = run(bare(&["serve", "--check"])
        .env("TIDEGATE_CONFIG", file.path())
        .env("TIDEGATE_REDIS_PASSWORD", secret));
    ran.assert(
        0,
        &[
            &format!(
                "# redis: \"redis://h:1\"  # {}:3:8: the login, the database and the options of the URL are not shown",
                file.path()
            ),
            "denied_body: \"a: #b\"",
            "  # default",
        ],
    );
    assert!(!format!("{ran:?}").contains("Quagga"), "{ran:?}");
    assert!(!ran.err.contains("(`ps`)"), "a file is not visible: {ran:?}");
    #[cfg(unix)]
    {
        let set =
            |mode| std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(mode));
        let warned = |mode| {
            set(mode).unwrap();
            run(&mut bare(&["serve", "--check", "--config", file.path()])).err
        };
        let warning =
            format!("every user of this machine can read the file of --config ({}) (mode 644)", file.path());
        assert!(warned(0o644).contains(&warning) && !warned(0o640).contains("every user"), "{warning}");
    }
    let again = File::new("config-printed-again", &ran.out);
    let output = checked(&mut bare(&["--json", "serve", "--check", "--config", again.path()]));
    assert_eq!(setting(&output, "denied_body").0, ["a: #b"]);
    assert_eq!(setting(&output, "redis").1, "default", "not the server without its login and its database");
}

#[test]
fn password_of_the_environment_is_for_the_user_in_the_url_of_a_setting() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    server.cli(&["ACL", "SETUSER", "ops", "on", ">Quagga", "~*", "+@all"]).unwrap();
    server.cli(&["ACL", "SETUSER", "default", "off"]).unwrap();
    let rules = File::new("config-user-rules", RULES);
    let file = |login: &str| {
        let url = server.url().replace("://", &format!("://{login}@"));
        File::new("config-user", &format!("rules: {}\nredis: {url}\ndeadline: 10s\n", rules.path()))
    };
    let origin = "# the password of Redis is hidden: TIDEGATE_REDIS_PASSWORD";
    for (login, is_used) in [("ops", true), ("ops:other", false), (":other", false)] {
        let file = file(login);
        let mut command = bare(&["serve", "--check", "--config", file.path()]);
        let ran = run(command.env("TIDEGATE_REDIS_PASSWORD", "Quagga"));
        assert_eq!((ran.code, ran.out.contains(origin)), (Some(0), is_used), "{login}: {ran:?}");
    }
    let file = file("ops");
    let ports = ["--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"];
    let mut command =
        bare(&[&["--json", "serve", "--config", file.path(), "--ready-needs-redis"][..], &ports].concat());
    command.env("TIDEGATE_REDIS_PASSWORD", "Quagga");
    let service = Service::of(command);
    soon("Redis accepts the login", || get(&service.http, "/readyz") == 200);
    // The URL in the environment is a setting, too. The namespace is another one: the service probes Redis in its own.
    let mut command = bare(&["inspect", "--namespace", "unused"]);
    command.env("TIDEGATE_REDIS_URL", server.url().replace("://", "://ops@"));
    run(command.env("TIDEGATE_REDIS_PASSWORD", "Quagga")).assert(1, &["no state in namespace"]);
}

#[test]
fn mistakes_in_a_file_are_errors_with_their_line() {
    let rules = File::new("config-mistakes-rules", RULES);
    for (text, messages) in [
        ("grpc_adr: 127.0.0.1:1\n", &[":1:1: unknown setting `grpc_adr`: did you mean `grpc_addr`?"][..]),
        (
            "drain: 1s\ngrpc-addr: 127.0.0.1:1\n",
            &[":2:1: unknown setting `grpc-addr`: did you mean `grpc_addr`?"],
        ),
        ("config: x\n", &[":1:1: unknown setting `config`"]),
        ("quota: 1\n", &["unknown setting `quota`: docs/operate/serve.md"]),
        ("1: 2\n", &[":1:1: unknown setting `1`"]),
        ("<script>: 1\n", &["unknown setting `<script>`"]),
        (
            "grpc_addr: 8081\n",
            &[":1:12: the setting `grpc_addr`: invalid value '8081'", "write 127.0.0.1:8081"],
        ),
        ("redis: localhost\n", &["of the setting `redis` cannot be used", "such as redis://127.0.0.1:6379"]),
        ("drain: 1s\non_failure: opn\n", &[":2:13: the setting `on_failure`: invalid value 'opn'", "open"]),
        ("deadline: [1s, 2s]\n", &[":1:11: the setting `deadline` has one value"]),
        ("deadline:\n", &[":1:9: the setting `deadline` has one value"]),
        ("redis: { url: x }\n", &["the setting `redis` has a value or a list of values"]),
        ("cluster: yes\n", &[":1:10: the setting `cluster`: invalid value 'yes': write true or false"]),
        ("drain: soon\n", &[":1:8: the setting `drain`: invalid value 'soon'", "such as 500ms"]),
        (
            "max_message: 4k\n",
            &[":1:14: the setting `max_message`: invalid value '4k'", "bytes from 1, such as 1048576"],
        ),
        (
            "max_connections: 0\n",
            &[":1:18: the setting `max_connections`: invalid value '0'", "from 1, such as 16384"],
        ),
        ("drain: 1s\ndrain: 2s\n", &[":2:1: the setting `drain` is also at", ":1:8: keep one of them"]),
        ("max_message: 1.5\n", &[":1:14: the setting `max_message`: invalid value '1.5'"]),
        ("limit_header: \"a b\"\n", &[":1:15: the setting `limit_header`: invalid value"]),
        (
            "reset_header: Content-Length\n",
            &[":1:15: the setting `reset_header`: ", "write a name such as X-RateLimit-Limit"],
        ),
        ("- drain\n", &["expected settings"]),
        ("drain: 'open\n", &["invalid YAML"]),
        ("a: &a [1]\nb: *c\n", &["invalid YAML"]),
        (
            "sentinel: m\ncluster: true\n",
            &[
                "the setting `cluster` (",
                ":2:10) cannot be used with the setting `sentinel` (",
                ":1:11): remove one",
            ],
        ),
        (
            "grpc_certificate: x.pem\n",
            &["the setting `grpc_certificate` (", ":1:19) needs the setting `grpc_key`"],
        ),
        (
            "grpc_key: x.pem\n",
            &["the setting `grpc_key` (", ":1:11) needs the setting `grpc_certificate`: add it"],
        ),
        ("grpc_client_san: [a]\n", &[":1:18) needs the setting `grpc_client_ca`"]),
        ("admin_behind_tls: true\n", &["needs the setting `admin_addr`"]),
        ("demo: true\n", &["the setting `demo` (", ":1:7) cannot be used with --rules: remove one"]),
    ] {
        let file = File::new("config-mistakes", text);
        let ran = run(&mut bare(&["serve", "--check", "--rules", rules.path(), "--config", file.path()]));
        ran.assert(2, messages);
        assert!(!ran.err.contains("Usage:"), "{text}: {ran:?}");
        let first = messages[0];
        let place = if first.starts_with(':') { format!("{}{first}", file.path()) } else { first.to_owned() };
        assert!(ran.err.contains(&place), "{text}: {ran:?}");
    }
    // Arguments after a mistake are not known, so the mistake comes first.
    let file = File::new("config-before-mistake", "grpc_certificate: x.pem\n");
    let mistake = ["--http-addr", "8080", "--grpc-key", "k.pem"];
    let ran = run(&mut bare(&[&["serve", "--demo", "--config", file.path()][..], &mistake].concat()));
    ran.assert(2, &["--http-addr", "write 127.0.0.1:8080"]);
    assert!(!ran.err.contains("needs the setting"), "{ran:?}");
    let long = "a".repeat(1_000);
    for (bytes, message) in [
        (&b"drain: \xff\n"[..], "not UTF-8"),
        (b"", "no rules"),
        (b"# nothing\n", "no rules"),
        (format!("{long}: 1\n").as_bytes(), "unknown setting"),
        (vec![b'#'; (1 << 20) + 1].as_slice(), "more than 1 MiB"),
    ] {
        let file = File::new("config-bytes", "");
        std::fs::write(file.path(), bytes).unwrap();
        run(&mut bare(&["serve", "--config", file.path()])).assert(2, &[message]);
    }
    run(&mut bare(&["serve", "--config", "/nowhere/serve.yaml"]))
        .assert(2, &["cannot read the file of --config (/nowhere/serve.yaml): No such file"]);
    run(bare(&["serve"]).env("TIDEGATE_CONFIG", "/nowhere/serve.yaml"))
        .assert(2, &["the file of TIDEGATE_CONFIG (/nowhere/serve.yaml)"]);
}

#[test]
fn message_shows_no_line_of_the_file() {
    let rules = File::new("config-lines-rules", RULES);
    for (text, messages) in [
        ("password hunter2: x\n", &[":1:1: unknown setting"][..]),
        ("redis://:hunter2@h: x\n", &[":1:1: unknown setting"]),
        ("? |\n  drain: 1s\n  hunter2\n: x\n", &[":2:3: unknown setting"]),
        ("drain: 10s\n  password hunter2\n", &[":1:8: the setting `drain`: invalid value '…'"]),
        ("cluster: true\n  hunter2 x\n", &[":1:10: the setting `cluster`: invalid value '…'"]),
        ("max_message: 1 hunter2\n", &[":1:14: the setting `max_message`: invalid value '…'"]),
        ("redis: a\npassword hunter2\nrules: b\n", &[":2:1: invalid YAML"]),
        ("redis: \"hunter2\nrules: b\n", &["invalid YAML"]),
    ] {
        let file = File::new("config-lines", text);
        let ran = run(&mut bare(&["serve", "--check", "--rules", rules.path(), "--config", file.path()]));
        ran.assert(2, messages);
        assert!(!format!("{}{}", ran.out, ran.err).contains("hunter2"), "{text}: {ran:?}");
    }
}

#[test]
fn no_file_makes_the_program_panic_or_use_much_memory() {
    let deep = |open: &str, count: usize| format!("drain: {}", open.repeat(count));
    let laughs: String = (1..40).map(|at| format!("a{at}: &a{at} [*a{0}, *a{0}]\n", at - 1)).collect();
    for text in [
        deep("[", 100_000),
        deep("{a: ", 100_000),
        deep("- ", 100_000),
        format!("a0: &a0 [x]\n{laughs}"),
        "drain: &a [*a]\n".to_owned(),
        "? [a, b]\n: 1\n".to_owned(),
        "drain: !!binary x\n".to_owned(),
        "max_message: 99999999999999999999999999\n".to_owned(),
        "max_message: -1\n".to_owned(),
        "drain: \u{0}\n".to_owned(),
        "drain: 1s\n---\ndrain: 2s\n".to_owned(),
        "\u{feff}\u{202e}drain: <b>1</b>\n".to_owned(),
    ] {
        let file = File::new("config-hostile", &text);
        let ran = run(&mut bare(&["serve", "--demo", "--check", "--config", file.path()]));
        let start = &text[..text.floor_char_boundary(40)];
        assert_eq!(ran.code, Some(2), "{start}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{start}: {ran:?}");
    }
}

#[test]
fn passwords_of_a_file_are_never_printed() {
    let rules = File::new("config-secrets-rules", RULES);
    for url in [
        "redis://:QuaggaZebra@127.0.0.1:1",
        "redis://:Quagga/Zebra@127.0.0.1:1",
        "redis:/:Quagga@Zebra@127.0.0.1:1",
        "http://:QuaggaZebra@127.0.0.1:1",
        ":QuaggaZebra@127.0.0.1:1",
        "redis://127.0.0.1:1?password=QuaggaZebra",
    ] {
        for line in ["redis", "redis_url", "namespace", "sentinel", "deadline", "grpc_addr", "tls_ca"] {
            let file = File::new("config-secrets", &format!("{line}: '{url}'\n"));
            let args = ["serve", "--rules", rules.path(), "--config", file.path()];
            // Without `--check`, a valid URL would start the service.
            let ran = run(&mut bare(&[&args[..], &["--check"]].concat()));
            let printed = format!("{ran:?}");
            assert!(!printed.contains("Quagga") && !printed.contains("Zebra"), "{line}: {url}: {printed}");
        }
    }
}

#[test]
fn mistakes_in_the_environment_name_the_variable() {
    let ran = run(bare(&["serve", "--demo", "--check"]).env("TIDEGATE_DEADLINE", "soon"));
    ran.assert(
        2,
        &["TIDEGATE_DEADLINE: the setting `deadline`: invalid value 'soon'", "write such as 500ms"],
    );
    let ran = run(bare(&["serve", "--demo", "--check"]).env("TIDEGATE_SHADOW", "on"));
    ran.assert(2, &["TIDEGATE_SHADOW: the setting `shadow`: invalid value 'on': write true or false"]);
    let ran = run(bare(&["serve", "--demo", "--check"])
        .env("TIDEGATE_GRPC_ADR", "127.0.0.1:1")
        .env("TIDEGATE_SERVICE_HOST", "10.0.0.1"));
    ran.assert(0, &["unknown variable TIDEGATE_GRPC_ADR is ignored: did you mean TIDEGATE_GRPC_ADDR?"]);
    assert!(!ran.err.contains("SERVICE_HOST"), "{ran:?}");
    let ran = run(bare(&["serve", "--demo", "--check"])
        .env("TIDEGATE_SHADOW_MODE", "true")
        .env("TIDEGATE_REDIS", "redis://h")
        .env("TIDEGATE_REDIS_PORT_6379_TCP", "tcp://10.0.0.1:6379")
        .env("TIDEGATE_REDIS_SERVICE_HOST", "10.0.0.1"));
    ran.assert(
        0,
        &[
            "unknown variable TIDEGATE_SHADOW_MODE is ignored: did you mean TIDEGATE_SHADOW?",
            "unknown variable TIDEGATE_REDIS is ignored: did you mean TIDEGATE_REDIS_URL?",
        ],
    );
    assert_eq!(ran.err.matches("unknown variable").count(), 2, "{ran:?}");
    #[cfg(unix)]
    {
        let text = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff");
        run(bare(&["serve", "--demo"]).env("TIDEGATE_RULES", text))
            .assert(2, &["TIDEGATE_RULES is not text in UTF-8"]);
    }
    // Other commands have no such settings.
    run(bare(&["rules", "schema"]).env("TIDEGATE_DEADLINE", "soon")).assert(0, &[]);
}

#[test]
fn settings_without_effect_are_warned_about() {
    let rules = File::new("config-ineffective-rules", RULES);
    let file = File::new("config-ineffective", "deadline: 30ms\nreset_header: X-Reset\n");
    let none = "settings without effect";
    let run = |args: &[&str]| {
        let args = [&["serve", "--check", "--config", file.path()], args].concat();
        let mut command = bare(&args);
        // Set for other commands, too.
        run(command.env("TIDEGATE_REDIS_URL", "redis://a:1").env("TIDEGATE_CLUSTER", "true"))
    };
    let ran = run(&["--demo", "--on-failure", "open", "--headers", "ratelimit"]);
    ran.assert(
        0,
        &[
            "settings without effect: `cluster` (TIDEGATE_CLUSTER), `deadline` (",
            "`on_failure` (--on-failure)",
        ],
    );
    assert!(!ran.err.contains("reset_header") && !ran.err.contains("`redis`"), "{ran:?}");
    let ran = run(&["--rules", rules.path()]);
    ran.assert(
        0,
        &[
            "settings without effect: `reset_header` (",
            ":2:15); they name the headers of `headers: ratelimit`",
        ],
    );
    assert!(!ran.err.contains("deadline"), "{ran:?}");
    let ran = run(&["--rules", rules.path(), "--headers", "ratelimit"]);
    assert!(ran.code == Some(0) && !ran.err.contains(none), "{ran:?}");
}

#[test]
fn service_runs_by_its_file_alone() {
    let program = Program::shared();
    let rules = File::new("config-run-rules", RULES);
    let text = format!(
        "rules: {}\nredis: {}\nnamespace: {}\ngrpc_addr: 127.0.0.1:0\nhttp_addr: 127.0.0.1:0\njson: true\ndeadline: 10s\n",
        rules.path(),
        program.url,
        program.namespace
    );
    let file = File::new("config-run", &text);
    let service = Service::of(bare(&["serve", "--config", file.path()]));
    assert_eq!([service.ask("ada"), service.ask("ada"), service.ask("ada")], [200, 200, 429]);
    service.signal("-TERM");
    assert_eq!(service.end(), Some(0));
    let shadow = Service::of({
        let mut command = bare(&["serve", "--config", file.path()]);
        command.env("TIDEGATE_SHADOW", "true");
        command
    });
    assert_eq!(shadow.ask("ada"), 200, "in shadow mode, over the limit");
}

#[test]
fn ports_that_other_machines_reach_without_certificates_are_reported() {
    let service = Service::of({
        let mut command = bare(&["--json", "serve", "--demo"]);
        command.env("TIDEGATE_GRPC_ADDR", "0.0.0.0:0").env("TIDEGATE_HTTP_ADDR", "127.0.0.1:0");
        command
    });
    soon("reported", || service.has_reported("the gRPC port listens on 0.0.0.0:0 and has no TLS"));
    assert!(!service.has_reported("the HTTP port listens"));
}

#[test]
fn each_setting_is_in_the_table_of_the_docs() {
    let output = checked(&mut bare(&["--json", "serve", "--demo", "--check"]));
    let rows: Vec<&str> =
        DOCS.lines().filter(|line| line.starts_with("| `") && line.contains("`TIDEGATE_")).collect();
    let settings = output["settings"].as_array().unwrap();
    for setting in settings {
        let text = |name: &str| setting[name].as_str().unwrap().to_owned();
        let name = text("name");
        let default = match (setting["values"].as_array().unwrap().as_slice(), &*name) {
            // Set by the command above.
            (_, "demo" | "json") => "`false`".to_owned(),
            ([], _) => String::new(),
            ([value], _) if *value == json!("") => String::new(),
            ([value], _) => format!("`{}`", value.as_str().unwrap()),
            (values, _) => panic!("several defaults of {name}: {values:?}"),
        };
        let start = format!(
            "| `{name}` | `{}` | {default}{}| ",
            text("variable"),
            if default.is_empty() { "" } else { " " }
        );
        let is_listed = rows.iter().any(|row| row.starts_with(&start));
        assert!(is_listed, "docs/operate/serve.md needs the row `{start}MEANING |`");
    }
    assert_eq!(
        rows.len(),
        settings.len(),
        "docs/operate/serve.md lists settings that do not exist: {rows:#?}"
    );
}

#[test]
fn error_of_the_start_names_the_place_of_its_settings() {
    let rules = File::new("config-places-rules", RULES);
    let start = format!("rules: {}\nredis: redis://127.0.0.1:1\n", rules.path());
    for (text, message, places) in [
        (
            "grpc_addr: 127.0.0.1:1081\nhttp_addr: 127.0.0.1:1081\n",
            "are the same port",
            &[":3:12: the setting `grpc_addr`", ":4:12: the setting `http_addr`"][..],
        ),
        ("namespace: my ns\n", "use 1 to 64 letters", &[":3:12: the setting `namespace`"]),
        ("deadline: 0s\n", "must be above zero", &[":3:11: the setting `deadline`"]),
    ] {
        let file = File::new("config-places", &format!("{start}{text}"));
        let ran = run(&mut bare(&["serve", "--config", file.path()]));
        ran.assert(2, &[message]);
        for place in places {
            assert!(ran.err.contains(&format!("{}{place}", file.path())), "{place}: {ran:?}");
        }
        assert_eq!(ran.err.matches("the setting `").count(), places.len(), "{ran:?}");
    }
}
