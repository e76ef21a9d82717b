//! Runs the program without a terminal.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tidegate_testkit::Server;

use crate::support::fixture::namespace;

pub(crate) const PATH: &str = env!("CARGO_BIN_EXE_tidegate");

/// The program with a namespace of its own on a Redis.
pub(crate) struct Program {
    pub(crate) url: String,
    pub(crate) namespace: String,
    /// Keeps the server running; the last reference ends it.
    _shared: Option<Arc<Server>>,
}

/// The exit code and the output of one run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Program {
    /// Uses the Redis that all tests share.
    pub(crate) fn shared() -> Self {
        let server = tidegate_testkit::shared();
        Self { _shared: Some(server.clone()), ..Self::at(server.url()) }
    }

    pub(crate) fn at(url: &str) -> Self {
        Self::of(url, &namespace())
    }

    pub(crate) fn of(url: &str, namespace: &str) -> Self {
        Self { url: url.to_owned(), namespace: namespace.to_owned(), _shared: None }
    }

    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(PATH);
        command.args(args).stdin(Stdio::null()).env_remove("NO_COLOR");
        // Chooses the Redis of the tests, and is no setting of the program.
        command.env_remove("TIDEGATE_REDIS");
        command.env_remove("TIDEGATE_REDIS_PASSWORD").env_remove("TIDEGATE_RULES");
        command.env("TIDEGATE_REDIS_URL", &self.url).env("TIDEGATE_NAMESPACE", &self.namespace);
        command
    }

    pub(crate) fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Ran {
        Ran::of(&self.command(args).output().unwrap())
    }

    /// Runs with `--json`, asserts the exit code, and returns the output.
    pub(crate) fn json(&self, code: i32, args: &[&str]) -> Value {
        let ran = self.run([&["--json"], args].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert_eq!(ran.out.lines().count(), 1, "{args:?}: {ran:?}");
        serde_json::from_str(&ran.out).unwrap()
    }
}

impl Ran {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Asserts the exit code, and that the output contains all of these texts.
    #[track_caller]
    pub(crate) fn assert(&self, code: i32, texts: &[&str]) {
        let all = format!("{}{}", self.out, self.err);
        let has_texts = texts.iter().all(|text| all.contains(text));
        assert!(self.code == Some(code) && has_texts, "expected exit code {code} and {texts:?}: {self:?}");
    }
}
