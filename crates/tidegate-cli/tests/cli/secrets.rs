//! Passwords are never printed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tidegate_testkit::Server;

use super::program::{Program, Ran};

/// The ends of each password. Neither end may be printed, so that no part of a password is.
const ENDS: [&str; 2] = ["Quagga", "Zebra"];
/// The passwords, as written in URLs. Some should have been percent-encoded.
const PASSWORDS: [&str; 7] = [
    "Quagga7Zebra",
    "Quagga%2FZebra",
    "Quagga%zZebra",
    "Quagga/Zebra",
    "Quagga?Zebra",
    "Quagga#Zebra",
    "Quagga@Zebra",
];
/// The forms of URLs: of servers, of sockets, with a password in the wrong place, and invalid ones.
const FORMS: [&str; 22] = [
    "redis://:PASSWORD@HOST",
    "redis://default:PASSWORD@HOST/0",
    "redis://PASSWORD@HOST",
    "redis://:PASSWORD@HOST?protocol=resp3",
    "rediss://:PASSWORD@HOST#insecure",
    "redis://HOST?password=PASSWORD",
    "redis://HOST/0?pass=PASSWORD",
    "redis://HOST#PASSWORD",
    "redis://HOST/PASSWORD",
    "unix:///nowhere.sock?pass=PASSWORD",
    "redis+unix:///nowhere.sock?db=0&user=default&pass=PASSWORD",
    "unix:///nowhere.sock#PASSWORD",
    "unix:///nowhere.sock%3Fpass=PASSWORD",
    "unix://default:PASSWORD@/nowhere.sock",
    "redis://:PASSWORD",
    "redis://:PASSWORD@",
    "redis://:PASSWORD@HOST:port",
    "redis:///:PASSWORD@HOST",
    "redis:/:PASSWORD@HOST",
    "http://:PASSWORD@HOST",
    ":PASSWORD@HOST",
    "default:PASSWORD@HOST",
];
const COMMANDS: [&[&str]; 8] = [
    &["inspect"],
    &["inspect", "user:42"],
    &["top", "--once"],
    &["check", "user:42", "--gate", "login", "--token-bucket", "1", "--rate", "1/h"],
    &["peek", "user:42", "--gate", "login"],
    &["switch", "login", "closed", "--yes"],
    &["forget", "user:42", "--yes"],
    &["overrides", "--json"],
];

/// The ways to pass a URL, some of them by mistake. Returns the arguments, and the URL for the environment.
fn ways<'a>(url: &'a str, command: &[&'a str]) -> Vec<(Vec<String>, Option<&'a str>)> {
    let args = |before: &[&str], after: &[&str]| -> Vec<String> {
        [before, command, after, &["--timeout", "300ms"]].concat().into_iter().map(str::to_owned).collect()
    };
    vec![
        (args(&["--redis", url], &[]), None),
        (args(&[], &[&format!("--redis={url}"), "--cluster"]), None),
        (args(&[], &["--redis", url, "--redis", url, "--sentinel", "primary"]), None),
        (args(&[], &[]), Some(url)),
        (args(&[], &["--password-file", "/nowhere"]), Some(url)),
        // Mistakes.
        (args(&[url], &[]), None),
        (args(&[], &[url]), None),
        (args(&[], &["--namespace", url]), None),
        (args(&[], &[&format!("--url={url}")]), None),
        (vec!["inspect".to_owned(), url.to_owned()], None),
        (vec!["inspect".to_owned(), "--gate".to_owned(), url.to_owned()], None),
    ]
}

fn assert_is_secret(ran: &Ran, args: &dyn std::fmt::Debug) {
    assert!(ran.code.is_some_and(|code| code != 101), "{args:?}: {ran:?}");
    for end in ENDS {
        assert!(!ran.out.contains(end) && !ran.err.contains(end), "{args:?}: {ran:?}");
    }
}

#[test]
fn password_in_any_url_passed_in_any_way_is_not_printed() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", PASSWORDS[0]]).unwrap();
    let address = server.url().trim_start_matches("redis://");
    let program = Program::at(server.url());
    let mut runs: Vec<(Vec<String>, Option<String>)> = Vec::new();
    for (number, form) in FORMS.iter().enumerate() {
        for (index, password) in PASSWORDS.iter().enumerate() {
            if *form == "redis://:PASSWORD" && password.contains('@') {
                // A valid URL, whose host is the end of the password.
                continue;
            }
            // Not reachable; reachable, where one password is right and the others are wrong.
            let host = if (number + index) % 2 == 0 { address } else { "127.0.0.1:1" };
            let url = form.replace("PASSWORD", password).replace("HOST", host);
            let command = COMMANDS[(number * PASSWORDS.len() + index) % COMMANDS.len()];
            // Each command meets each way.
            let ways = ways(&url, command).into_iter().skip((number + index) % 3).step_by(3);
            runs.extend(ways.map(|(args, variable)| (args, variable.map(str::to_owned))));
        }
    }
    assert!(runs.len() >= 400, "{}", runs.len());
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((args, variable)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut command = program.command(args);
                    command.env("TIDEGATE_REDIS_URL", variable.as_deref().unwrap_or("redis://127.0.0.1:1"));
                    let ran = Ran::of(&command.output().unwrap());
                    assert_is_secret(&ran, &(args, variable));
                }
            });
        }
    });
}

#[test]
fn password_of_a_file_or_the_environment_is_used_and_not_printed() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["ACL", "SETUSER", "ops", "on", &format!(">{}", PASSWORDS[0]), "~*", "+@all"]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", PASSWORDS[0]]).unwrap();
    let program = Program::at(server.url());
    let run = |args: &[&str], password: &str, code: i32, texts: &[&str]| {
        let mut command = program.command(args);
        let ran = Ran::of(&command.env("TIDEGATE_REDIS_PASSWORD", password).output().unwrap());
        ran.assert(code, texts);
        assert_is_secret(&ran, &args);
    };
    run(&["inspect"], PASSWORDS[0], 1, &["no state in namespace"]);
    run(&["inspect", "--user", "ops"], PASSWORDS[0], 1, &["no state in namespace"]);
    run(&["inspect"], PASSWORDS[1], 3, &["WRONGPASS"]);
    run(&["inspect", "--user", "ada"], PASSWORDS[0], 3, &["WRONGPASS"]);
    run(&["inspect"], "", 3, &["NOAUTH"]);
    run(&["inspect", "--user", "ops"], "", 2, &["--user requires a password", "TIDEGATE_REDIS_PASSWORD"]);
    let file = std::env::temp_dir().join(format!("tidegate-{}-secrets", std::process::id()));
    fs::write(&file, PASSWORDS[0]).unwrap();
    let path = |file: &Path| file.to_str().unwrap().to_owned();
    run(&["inspect", "--password-file", &path(&file)], "wrong", 1, &["no state in namespace"]);
    fs::write(&file, [b'Q', 0xff]).unwrap();
    run(&["inspect", "--password-file", &path(&file)], "", 2, &["not text"]);
    fs::remove_file(&file).unwrap();
    // The password in the place of the file.
    let missing = &["cannot read the file of --", "the option takes a file's path"];
    run(&["inspect", "--password-file", PASSWORDS[0]], "", 2, missing);
    run(&["inspect", "--hmac-secret-file", PASSWORDS[0]], "", 2, missing);
    // The URL, or the text of the key, in the place of the file.
    run(&["inspect", "--tls-ca", &format!("redis://:{}@h", PASSWORDS[0])], "", 2, missing);
    let key = format!("-----BEGIN PRIVATE KEY-----\n{}\n", PASSWORDS[0]);
    let with_equals = format!("--tls-certificate={key}");
    run(&["inspect", "--tls-key", "/dev/null", &with_equals], "", 2, missing);
    run(&["inspect", "--tls-key", "/dev/null", "--tls-certificate", &key], "", 2, missing);
    run(&["inspect", "--tls-certificate", "/dev/null", "--tls-key", &key], "", 2, missing);
    run(&["inspect", "--password-file", &format!("-{}", PASSWORDS[0])], "", 2, missing);
    // As a Kubernetes Secret stores it.
    let in_base64 = format!("--tls-key=LS0tLS1CRUdJTiBQUklWQVRF{}", PASSWORDS[0]);
    run(&["inspect", "--tls-certificate", "/dev/null", &in_base64], "", 2, missing);
    // Options that do not exist.
    run(&["inspect", &format!("--password={}", PASSWORDS[0])], "", 2, &["--password-file"]);
    run(&["inspect", "--password", PASSWORDS[0]], "", 2, &["--password-file"]);
}

#[test]
fn url_in_the_place_of_a_key_is_not_printed() {
    let ran = Program::shared().run(["inspect", "redis://:QuaggaZebra@127.0.0.1:1/0"]);
    ran.assert(1, &["no state of redis://127.0.0.1:1 in", "for the URL of the Redis, write --redis URL"]);
    assert_is_secret(&ran, &"inspect");
}

#[test]
fn url_in_the_place_of_a_gate_is_refused_and_not_printed() {
    let program = Program::shared();
    for form in FORMS {
        let url = form.replace("PASSWORD", PASSWORDS[0]).replace("HOST", "127.0.0.1:1");
        for args in [
            &["inspect", "--gate"][..],
            &["top", "--once", "--gate"],
            &["reset", "user:42", "--yes", "--gate"],
            &["unblock", "user:42", "--yes", "--gate"],
            &["block", "user:42", "--for", "1h", "--yes", "--gate"],
            &["peek", "user:42", "--gate"],
            &["override", "user:42", "--end", "--yes", "--gate"],
            &["switch", "--yes", "--for", "1h"],
        ] {
            // The mode of `switch`; the other commands have no such argument.
            let mode: &[&str] = if args[0] == "switch" { &["closed"] } else { &[] };
            let args = [args, &[&*url], mode].concat();
            let ran = program.run(&args);
            ran.assert(2, &[]);
            assert_is_secret(&ran, &args);
        }
    }
    program
        .run(["inspect", "--gate", "Login"])
        .assert(2, &["gate name \"Login\": use 1 to 64 lower-case letters"]);
}

#[test]
fn password_of_the_environment_is_not_sent_to_another_server_of_an_argument() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["ACL", "SETUSER", "admin", "on", ">staging", "~*", "+@all"]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", "other"]).unwrap();
    let client = redis::Client::open(server.url().replace("://", "://admin:staging@")).unwrap();
    let failed_logins = || {
        let mut connection = client.get_connection().unwrap();
        let log: redis::Value = redis::cmd("ACL").arg("LOG").query(&mut connection).unwrap();
        format!("{log:?}")
    };
    let run = |redis: &str, args: &[&str]| {
        let url = server.url().replace("://", &format!("://{redis}"));
        let mut command = Program::at("").command(["inspect", "--redis", &url]);
        Ran::of(&command.args(args).env("TIDEGATE_REDIS_PASSWORD", PASSWORDS[0]).output().unwrap())
    };
    run("admin:staging@", &[]).assert(1, &["no state in namespace"]);
    run("admin:wrong@", &[]).assert(3, &["WRONGPASS"]);
    run("admin:staging@", &["--user", "admin"])
        .assert(2, &["--user requires a password", "remove the login"]);
    let log = failed_logins();
    assert!(log.contains("\"admin\"") && !log.contains("\"default\""), "{log}");
    // Without a login in the URL, the password is sent.
    run("", &[]).assert(3, &["WRONGPASS"]);
    assert!(failed_logins().contains("\"default\""));
}

#[cfg(unix)]
#[test]
fn file_of_an_option_that_is_endless_or_never_ends_is_an_error() {
    let server = Server::process(&[]).unwrap();
    server.cli(&["CONFIG", "SET", "requirepass", PASSWORDS[0]]).unwrap();
    let program = Program::at(server.url());
    let fifo = std::env::temp_dir().join(format!("tidegate-{}-fifo", std::process::id()));
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    for options in [
        &["--password-file"][..],
        &["--hmac-secret-file"],
        &["--tls-ca"],
        &["--tls-key", "/dev/null", "--tls-certificate"],
    ] {
        let name = options.last().unwrap();
        let run = |path: &str| program.run([&["inspect", "--timeout", "300ms"], options, &[path]].concat());
        // The path of a secret's file may be the secret itself.
        let is_secret = name.ends_with("-file");
        let shown = |path: &str| match is_secret {
            true => format!("the file of {name}"),
            false => format!("the file of {name} ({path})"),
        };
        let ran = program.run([&["inspect"], options, &["/dev/zero"]].concat());
        ran.assert(2, &[&shown("/dev/zero"), "has more than 1 MiB: give another file"]);
        assert_eq!(ran.err.contains("/dev/zero"), !is_secret, "{ran:?}");
        run(fifo).assert(2, &[&shown(fifo), "did not end within 300ms", "increase --timeout"]);
        run("/nowhere/x.pem").assert(2, &["cannot read ", &shown("/nowhere/x.pem"), "No such file"]);
    }
    fs::remove_file(fifo).unwrap();
    // A pipe that ends.
    let mut command = program.command(["inspect", "--password-file", "/dev/stdin"]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{}", PASSWORDS[0]).unwrap();
    Ran::of(&child.wait_with_output().unwrap()).assert(1, &["no state in namespace"]);
}

#[test]
fn help_shows_no_value_of_the_environment() {
    let program = Program::at("redis://:QuaggaZebra@127.0.0.1:1");
    for args in [&["--help"][..], &["-h"], &["inspect", "--help"], &["switch", "--help"], &["top", "-h"], &[]]
    {
        let mut command = program.command(args);
        let ran = Ran::of(&command.env("TIDEGATE_REDIS_PASSWORD", "QuaggaZebra").output().unwrap());
        assert_is_secret(&ran, &args);
        assert!(!ran.out.contains(&program.namespace) && !ran.err.contains(&program.namespace), "{ran:?}");
    }
}

#[test]
fn password_on_the_command_line_is_warned_about_once() {
    let program = Program::at("");
    let warning = "every user of this machine can see the password in --redis (`ps`)";
    let texts = [warning, "--password-file", "TIDEGATE_REDIS_PASSWORD", "TIDEGATE_REDIS_URL"];
    for url in ["redis://:QuaggaZebra@127.0.0.1:1", "unix:///nowhere.sock?pass=QuaggaZebra"] {
        let args = ["inspect", "--sentinel", "primary", "--redis", url, "--redis", url];
        let ran = program.run(args);
        ran.assert(ran.code.unwrap(), &texts);
        assert_eq!(ran.err.matches(warning).count(), 1, "{ran:?}");
        let ran = program.run([&args[..], &["--json"]].concat());
        let objects: Vec<serde_json::Value> =
            ran.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(objects[0]["warning"]["message"].as_str().unwrap().contains(warning), "{ran:?}");
        assert!(objects[1]["error"]["message"].is_string() && objects.len() == 2, "{ran:?}");
    }
    for url in [
        "redis://127.0.0.1:1",
        "redis://ops@127.0.0.1:1",
        "unix:///nowhere.sock?db=1",
        "redis://127.0.0.1:99999",
    ] {
        let ran = program.run(["inspect", "--redis", url]);
        assert!(!ran.err.contains(warning), "{ran:?}");
    }
}
