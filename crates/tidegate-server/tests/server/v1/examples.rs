//! The examples in the folder `examples`, against a server with the rules of the demo.

use std::process::Command;

use serde_json::Value;

use crate::server::fixture::{Running, in_memory};

const DEMO: &str = include_str!("../../../../tidegate-cli/src/demo.yaml");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

/// The rules of the demo, with windows that end in none of these tests: they begin and end with the clock.
fn demo_of_years() -> String {
    DEMO.replace("unit: minute", "unit: year")
}

/// Runs an example. Returns its output, or `None` if a program that it needs is not installed.
async fn run(server: &Running, programs: &[&str], file: &str) -> Option<String> {
    let is_installed = |program: &&str| Command::new(program).arg("--version").output().is_ok();
    if !programs.iter().all(is_installed) {
        return None;
    }
    let mut command = Command::new(if file.ends_with(".py") { "python3" } else { "sh" });
    command.arg(format!("{FOLDER}/{file}")).env("TIDEGATE_URL", format!("http://{}", server.http_addr));
    let run = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let (output, errors) = (String::from_utf8(run.stdout).unwrap(), String::from_utf8(run.stderr).unwrap());
    assert!(run.status.success(), "{output}\n{errors}");
    Some(output)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_gets_decisions() {
    let server = Running::start(in_memory(&demo_of_years())).await;
    if let Some(output) = run(&server, &["curl"], "http_api.sh").await {
        let lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let remaining: Vec<_> =
            lines.iter().filter_map(|line| line["decision"]["remaining"].as_u64()).collect();
        assert_eq!(remaining[..2], [4, 4], "{output}");
        assert!(lines[..4].iter().all(|line| line["allowed"] == true), "{output}");
        assert_eq!(lines[4]["settlements"][0], "settled", "{output}");
        assert_eq!(lines[5]["confirmed"], true, "{output}");
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_gets_decisions() {
    let server = Running::start(in_memory(&demo_of_years())).await;
    if let Some(output) = run(&server, &["python3"], "http_api.py").await {
        let (before, wait) = output.split_once("try again in ").unwrap();
        let (wait_s, after) = wait.split_once(" s\n").unwrap();
        assert!(wait_s.parse::<u64>().is_ok_and(|wait_s| wait_s <= 365 * 86_400), "{output}");
        let expected = "attempt 1: admitted, 4 left\nattempt 2: admitted, 3 left\nattempt 3: admitted, 2 left\n\
            attempt 4: admitted, 1 left\nattempt 5: admitted, 0 left\nattempt 6: denied, \
            reservation: settled\nexport runs: True\nsecond export runs: False\n\
            unknown-gate: no rule has the gate `demo.users`; did you mean `demo.user`? Send its `quota`, or the \
            `domain` and `descriptors` of a rule\n";
        assert_eq!([before, after].concat(), expected);
    }
    assert!(server.stop().await);
}
