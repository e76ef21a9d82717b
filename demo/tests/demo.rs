//! The demo runs as `scripts/demo` runs it, and its processes end with it.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue should panic")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn demo() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.env_remove("TIDEGATE_REDIS_URL").stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn instances_admit_no_more_than_the_ceiling_of_each_quota() {
    let file = std::env::temp_dir().join(format!("tidegate-demo-{}.json", std::process::id()));
    let output = demo().args(["--seconds", "0.5", "--instances", "3", "--json"]).arg(&file).output().unwrap();
    let json = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", text(&output));

    let result: Value = serde_json::from_str(&json.unwrap()).unwrap();
    let rows = result["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let number = |field: &str| row[field].as_u64().unwrap();
        assert_eq!(number("over_admitted"), 0, "{row}");
        assert!(0 < number("allowed") && number("allowed") <= number("ceiling"), "{row}");
        assert!(number("p50_us") <= number("p99_us"), "{row}");
        assert_eq!(row["per_instance"].as_array().unwrap().len(), 3);
    }
    assert!(text(&output).contains("$ redis-cli HGETALL demo-"), "{}", text(&output));
}

#[test]
fn invalid_option_is_a_usage_error() {
    let output = demo().args(["--instances", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn unreachable_redis_is_an_error_that_states_the_remedy() {
    let output = demo().env("TIDEGATE_REDIS_URL", "redis://127.0.0.1:1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("correct it"), "{}", text(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn killed_demo_leaves_no_instance_running() {
    let mut demo = demo().args(["--seconds", "60"]).stdout(Stdio::null()).spawn().unwrap();
    let id = demo.id();
    let instances = wait_for(move || Some(instances_of(id)).filter(|instances| instances.len() == 4));
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_for(|| instances.iter().all(|pid| parent_of(*pid).is_none()).then_some(()));
}

#[cfg(target_os = "linux")]
fn instances_of(demo: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_instance = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        parent_of(*pid).is_some_and(|parent| parent == demo) && command.ends_with(b"--instance\0")
    };
    all.filter(is_instance).collect()
}

/// Returns the parent of a running process, or `None` for a zombie or no process.
#[cfg(target_os = "linux")]
fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The format is `pid (name) state parent …`.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    (fields.next()? != "Z").then(|| fields.next()?.parse().ok()).flatten()
}

#[cfg(target_os = "linux")]
fn wait_for<T>(mut probe: impl FnMut() -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(result) = probe() {
            return result;
        }
        assert!(
            start.elapsed() < std::time::Duration::from_secs(20),
            "the condition did not hold within 20 s"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
