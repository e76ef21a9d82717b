//! The README's first program, built in a project of its own with the README's dependency lines.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_testkit::Server;

use super::process::free_port;
use crate::support::fixture::HANGS;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// What `cargo new` writes before the dependencies. The first table separates the project from the workspace around it.
const MANIFEST: &str =
    "[workspace]\n\n[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";

/// Returns the block of README.md that begins so.
fn block(begin: &str) -> String {
    let readme = fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    let (_, rest) = readme.split_once(begin).unwrap();
    rest.split("```").next().unwrap().to_owned()
}

/// A program that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds the program of README.md with other addresses.
fn build(redis: &str, listen: &str) -> PathBuf {
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("first_program");
    fs::create_dir_all(project.join("src")).unwrap();
    let root = fs::canonicalize(ROOT).unwrap();
    let dependencies = block("```toml\n[dependencies]\n").replace("../tidegate", root.to_str().unwrap());
    fs::write(project.join("Cargo.toml"), format!("{MANIFEST}[dependencies]\n{dependencies}")).unwrap();
    // The versions that the workspace has, which are there without a network.
    fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let program = block("<!-- source: first -->\n```rust,ignore\n");
    assert!(program.lines().filter(|line| !line.is_empty()).count() <= 20, "more than 20 lines");
    let here = program.replace("redis://127.0.0.1:6379", redis).replace("127.0.0.1:3000", listen);
    fs::write(project.join("src/main.rs"), here).unwrap();
    // Dependencies with the features of this build are not built again.
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline"]).current_dir(&project).env("CARGO_TARGET_DIR", target);
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("debug/hello")
}

fn start(program: &Path) -> Running {
    Running(Command::new(program).stderr(Stdio::piped()).spawn().unwrap())
}

/// Returns the status of a request; `None` if nothing listens.
fn get(address: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    response.split(' ').nth(1)?.parse().ok()
}

#[test]
#[ignore = "waits for other builds in the same target folder: scripts/test runs it in its step README"]
fn first_program_of_the_readme_builds_in_a_new_project_and_limits_an_address() {
    let (server, listen) = (Server::process(&[]).unwrap(), format!("127.0.0.1:{}", free_port()));
    let program = build(server.url(), &listen);
    let running = start(&program);
    let began = Instant::now();
    let first = loop {
        match get(&listen) {
            Some(status) => break status,
            None => assert!(began.elapsed() < HANGS, "the program does not listen"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    let others: Vec<u16> = (0..39).map_while(|_| get(&listen)).collect();
    assert!(first == 200 && others[..19].iter().all(|status| *status == 200), "{others:?}");
    assert!(others.contains(&429), "{others:?}");

    drop((running, server));
    let mut message = String::new();
    start(&program).0.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    let last = message.lines().rfind(|line| !line.is_empty()).unwrap();
    assert!(
        last.starts_with("Error: redis://127.0.0.1:"),
        "without Redis, main prints a sentence: {message}"
    );
}
