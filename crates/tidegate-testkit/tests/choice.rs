//! The kind of server that the testkit chooses, and the error if none is available. The choice depends on the
//! environment, so each case runs `choose` in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test's helpers")]

use std::process::Command;

use tidegate_testkit::{Server, shared};

#[test]
#[ignore = "run by the other tests in a process of its own"]
fn choose() {
    let how = match Server::start() {
        Ok(server) => server.how(),
        Err(error) => error.to_string(),
    };
    eprintln!("chosen: {how}");
}

#[test]
#[ignore = "run by the other tests in a process of its own"]
fn report() {
    eprintln!("chosen: {}", shared().how());
}

const NO_ENGINE: (&str, &str) = ("DOCKER_HOST", "unix:///nonexistent");
const NO_BINARY: (&str, &str) = ("PATH", "/nonexistent");

fn run(test: &str, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    for variable in ["CI", "TIDEGATE_REDIS", "TIDEGATE_REDIS_SERVER", "TIDEGATE_REPORT"] {
        command.env_remove(variable);
    }
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let output = String::from_utf8(output.stderr).unwrap();
    let chosen = output.lines().find_map(|line| line.strip_prefix("chosen: "));
    chosen.unwrap_or(&output).to_owned()
}

fn chosen(environment: &[(&str, &str)]) -> String {
    run("choose", environment)
}

#[test]
fn falls_back_to_process_without_engine_and_reports_reason() {
    for ci in ["", "true"] {
        let how = chosen(&[NO_ENGINE, ("CI", ci)]);
        assert!(how.starts_with("redis-server process (Redis "), "{how}");
        assert!(how.contains("no Docker engine answers at unix:///nonexistent"), "{how}");
    }
}

#[test]
fn process_can_be_forced() {
    let how = chosen(&[("TIDEGATE_REDIS", "process")]);
    assert!(how.starts_with("redis-server process (Redis ") && how.ends_with(')'), "{how}");
}

#[test]
fn forced_container_without_engine_is_an_error() {
    let error = chosen(&[NO_ENGINE, ("TIDEGATE_REDIS", "container")]);
    assert!(error.starts_with("no Docker engine answers at unix:///nonexistent"), "{error}");
}

#[test]
fn error_names_both_missing_kinds() {
    let error = chosen(&[NO_ENGINE, NO_BINARY]);
    assert!(error.contains("no Docker engine answers"), "{error}");
    assert!(error.contains("no redis-server in the PATH: run scripts/redis"), "{error}");
}

#[test]
fn named_server_is_a_process_even_in_ci() {
    for ci in ["", "true"] {
        let how = chosen(&[("TIDEGATE_REDIS_SERVER", "redis-server"), ("CI", ci)]);
        assert!(how.starts_with("redis-server process (Redis ") && how.ends_with(')'), "{how}");
    }
    let error = chosen(&[("TIDEGATE_REDIS_SERVER", "/no/such/server")]);
    assert!(error.contains("/no/such/server not found"), "{error}");
    let error = chosen(&[("TIDEGATE_REDIS_SERVER", "redis-server"), ("TIDEGATE_REDIS", "container")]);
    assert!(error.contains("expected process, since TIDEGATE_REDIS_SERVER is set"), "{error}");
}

#[test]
fn unknown_kind_is_an_error() {
    let error = chosen(&[("TIDEGATE_REDIS", "memory")]);
    assert_eq!(error, "TIDEGATE_REDIS=memory: expected container or process");
}

#[test]
fn report_names_the_shared_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report");
    let how = run("report", &[("TIDEGATE_REPORT", file.to_str().unwrap())]);
    let report = std::fs::read_to_string(file).unwrap();
    assert!(report.starts_with("choice-"), "{report}");
    assert!(report.ends_with(&format!("\t{how}\n")), "{report}");
}

/// Tests that run only if a Docker engine replies.
mod with_an_engine {
    use super::chosen;

    const NO_IMAGE: (&str, &str) = ("TIDEGATE_REDIS_IMAGE", "nonexistent.invalid/redis:1");

    fn answers() -> bool {
        !chosen(&[("TIDEGATE_REDIS", "container")]).contains("no Docker engine")
    }

    #[test]
    fn falls_back_to_process_without_image_and_reports_reason() {
        if answers() {
            let how = chosen(&[NO_IMAGE]);
            assert!(how.starts_with("redis-server process (Redis "), "{how}");
            assert!(how.contains("no image nonexistent.invalid/redis:1"), "{how}");
        }
    }

    #[test]
    fn ci_accepts_only_a_container() {
        if answers() {
            for other in [NO_IMAGE, ("TIDEGATE_REDIS", "process")] {
                let error = chosen(&[("CI", "true"), other]);
                assert!(error.starts_with("in CI, where a Docker engine answers"), "{error}");
            }
        }
    }
}
