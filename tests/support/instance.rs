//! A process that runs one of these tests, seen from outside.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::support::fixture::PATIENCE;

pub struct Instance {
    pub process: Child,
    /// It ends when this is closed, however this process ends.
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Instance {
    /// Runs the ignored test `test`, with `orders` in an environment variable.
    pub fn spawn(test: &str, variable: &str, orders: &[&str]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(variable, orders.join(" "))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, orders, lines }
    }

    pub async fn start(&mut self) {
        self.orders.write_all(b"go\n").await.unwrap();
    }

    /// The next line of JSON among what the test runner prints.
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
