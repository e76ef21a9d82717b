//! A huge number of keys.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tidegate_testkit::Server;

use super::program::Program;
use crate::support::fixture::calls;

const FILL: &str = "for i = tonumber(ARGV[2]), tonumber(ARGV[3]) do \
    redis.call('SET', ARGV[1] .. ':2:api:fixed_window/3600s:user:' .. i, i, 'EX', 3600) end";

/// The memory limit, in kB. Measured: 14,000 kB, both with few keys and with many.
const MAX_KB: u64 = 32_768;

fn fill(server: &Server, program: &Program, from: u32, to: u32) {
    let (from, to) = (from.to_string(), to.to_string());
    server.cli(&["EVAL", FILL, "0", &program.namespace, &from, &to]).unwrap();
}

/// Returns the output and the highest memory observed, in kB.
fn run(program: &Program, args: &[&str]) -> (String, u64) {
    let mut child = program.command(args).stdout(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    let ended = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kb = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak = kb.unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(ended.success(), "{args:?}: {ended}: {out}");
    (out, peak)
}

#[test]
#[cfg(target_os = "linux")] // reads /proc
fn output_and_memory_do_not_grow_with_the_keys_and_keys_is_never_called() {
    let server = Server::process(&[]).unwrap();
    let program = Program::at(server.url());
    let commands = [
        &["inspect", "--json"][..],
        &["inspect", "--gate", "api", "--json", "--limit", "10"],
        &["top", "--once", "--json", "--limit", "10"],
        &["inspect", "user:777", "--json"],
    ];
    fill(&server, &program, 1, 1_000);
    let few = commands.map(|args| run(&program, args));
    fill(&server, &program, 1_001, 100_000);
    let many = commands.map(|args| run(&program, args));
    for (args, ((few, before), (many, after))) in commands.iter().zip(few.iter().zip(&many)) {
        assert!(many.len() < few.len() + 500, "{args:?}: {many}");
        assert!(*after < MAX_KB, "{args:?}: {before} kB with 1,000 keys, {after} kB with 100,000");
    }
    let reply = |index: usize| serde_json::from_str::<serde_json::Value>(&many[index].0).unwrap();
    assert_eq!(reply(0)["keys"], 100_000);
    assert_eq!((&reply(1)["keys"], &reply(1)["more"]), (&json!(100_000), &json!(99_990)));
    assert_eq!(reply(2)["states"][0]["used"], 100_000.0);
    assert_eq!(reply(2)["states"][9]["key"], "user:99991");
    assert_eq!(reply(3)["states"][0]["used"], 777.0);
    assert_eq!(calls(&server, "keys"), 0);
    assert!(calls(&server, "scan") >= 4 * 90, "{}", calls(&server, "scan"));
    // Scans in large pages, and reads many keys per call.
    assert!(calls(&server, "evalsha") < 4_000, "{}", calls(&server, "evalsha"));
}
