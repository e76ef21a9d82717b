//! The OpenAPI document, as the Python package `openapi-spec-validator` reads it. `scripts/openapi` installs it.

use std::process::Command;

use super::openapi::{DEMO, document};
use crate::server::fixture::{Running, in_memory};

const PACKAGES: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../openapi");
const PROGRAM: &str = "
import json, sys
import openapi_spec_validator
openapi_spec_validator.validate(json.load(sys.stdin))
";

#[tokio::test]
async fn document_is_valid() {
    let server = Running::start(in_memory(DEMO)).await;
    let document = document(&server).await;
    assert!(server.stop().await);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, document.to_string()).unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", PROGRAM]).env("PYTHONPATH", PACKAGES).stdin(file.reopen().unwrap());
    let run = python.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
