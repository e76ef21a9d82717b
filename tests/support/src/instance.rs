//! A process that runs one ignored test of this binary, and the pipes to it.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::fixture::PATIENCE;

pub struct Instance {
    pub process: Child,
    /// The process ends when this pipe closes, which happens however the parent ends.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Instance {
    /// Runs the ignored test `test`, with `settings` in an environment variable, separated by spaces.
    pub fn spawn(test: &str, variable: &str, settings: &[&str]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(variable, settings.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, stdin, lines }
    }

    /// Sends the next line to the process.
    pub async fn start(&mut self) {
        self.stdin.write_all(b"go\n").await.unwrap();
    }

    /// Sends a signal to the process, such as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let process = self.process.id().unwrap().to_string();
        let status = std::process::Command::new("kill").args([signal, &process]).status().unwrap();
        assert!(status.success());
    }

    /// Returns the next line of JSON from the output of the process, which also contains output of the test
    /// runner.
    pub async fn says(&mut self) -> Value {
        let next = async {
            loop {
                let line = self.lines.next_line().await.unwrap().expect("the instance failed");
                if let Some(at) = line.find('{') {
                    return serde_json::from_str(&line[at..]).unwrap();
                }
            }
        };
        tokio::time::timeout(6 * PATIENCE, next).await.expect("the instance hangs")
    }
}
