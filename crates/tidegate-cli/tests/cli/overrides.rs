//! Overrides for the whole fleet.

use std::time::Duration;

use serde_json::json;
use tidegate::admin::Inspector;
use tidegate::{Quota, Rate, Source};

use super::program::Program;
use super::terminal::Terminal;
use crate::support::fixture::{builder, soon};

#[tokio::test]
async fn services_apply_switches_and_overrides_of_the_command_line() {
    let program = Program::shared();
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let api = limiter.gate("api", Quota::token_bucket(1, Rate::per_hour(1)));
    api.penalize("tenant:7", 1).await.unwrap();
    let inspector = Inspector::new(&limiter).unwrap();
    soon("the instance is counted", async || inspector.instances().await.unwrap() == 1).await;
    program.run(["overrides"]).assert(1, &["no active switches or overrides"]);

    let reply = program.json(0, &["switch", "api", "closed", "--for", "1h", "--yes"]);
    assert_eq!(
        reply,
        json!({ "gate": "api", "switch": "closed", "ends_in_us": 3_600_000_000_u64, "instances": 1 })
    );
    soon("the gate is closed", async || {
        let decision = api.check("tenant:8").await.unwrap();
        !decision.is_allowed() && decision.source() == Source::Switch
    })
    .await;
    let check = ["check", "tenant:9", "--gate", "api", "--token-bucket", "1", "--rate", "1/h"];
    program.run(check).assert(1, &["denied: api is switched, see `tidegate overrides`"]);
    program
        .run(["switch", "api", "open", "--yes"])
        .assert(0, &["api is switched open; 1 live instance, which applies it within a second if it follows overrides\n"]);
    program.run(check).assert(0, &["allowed: api is switched"]);
    program.run(["overrides"]).assert(0, &["api   -    open      never"]);
    let active = "active overrides: 1, see `tidegate overrides`";
    program.run(["inspect", "--gate", "api"]).assert(0, &[active]);
    program.run(["inspect", "tenant:7"]).assert(0, &[active]);
    assert!(!program.run(["inspect", "--gate", "other"]).out.contains("active overrides"));
    program.run(["switch", "api", "shadow", "--for", "5m", "--yes"]).assert(0, &["shadow for 5m"]);
    program
        .run(["peek", "tenant:7", "--gate", "api", "--token-bucket", "1", "--rate", "1/h"])
        .assert(0, &["allowed (shadow mode: it would be denied)"]);
    program
        .run(["switch", "api", "clear", "--yes"])
        .assert(0, &["api follows its own quota again; 1 live instance, which applies it within a second if it follows overrides\n"]);
    program.run(["overrides"]).assert(1, &[]);

    let quota = ["--token-bucket", "50", "--rate", "50/h"];
    let set = [&["override", "tenant:7", "--gate", "api", "--for", "7d", "--yes"], &quota[..]].concat();
    program.run(&set).assert(0, &["tenant:7 at api has the quota 50/h burst 50 for 7d"]);
    let by_text = ["peek", "tenant:1", "--gate", "other", "--quota", "5/min burst 20"];
    program.run(by_text).assert(0, &["20 of 20 left"]);
    program.run([&by_text[..], &["--rate", "5/s"]].concat()).assert(2, &["cannot be used with"]);
    program.run(["peek", "x", "--gate", "other", "--quota", "5/fortnight"]).assert(2, &["no unit of time"]);
    soon("the key is overridden", async || api.peek("tenant:7").await.unwrap().limit() == 50).await;
    assert_eq!(
        program.json(0, &["peek", "tenant:7", "--gate", "api", "--token-bucket", "1", "--rate", "1/h"])["limit"],
        50
    );
    let reply = program.json(0, &["overrides"]);
    assert_eq!(
        (&reply["overrides"][0]["written"], &reply["overrides"][0]["gate"]),
        (&json!("tenant:7"), &json!("api"))
    );
    assert!(reply["overrides"][0]["ends_in_us"].as_u64().unwrap() > 6 * 86_400_000_000);
    // A block also applies under the override's quota, even if the key has no state under it yet.
    let log =
        ["override", "tenant:6", "--gate", "api", "--for", "7d", "--sliding-log", "5", "--window", "1h"];
    program.run([&log[..], &["--yes"]].concat()).assert(0, &[]);
    program.run(["block", "tenant:6", "--gate", "api", "--for", "1h", "--yes"]).assert(0, &[]);
    soon("the key is overridden, and blocked", async || {
        let decision = api.peek("tenant:6").await.unwrap();
        decision.limit() == 5 && !decision.is_allowed()
    })
    .await;
    assert_eq!(program.json(0, &["forget", "tenant:6", "--yes"])["removed"], 2);
    program
        .run(["override", "tenant:7", "--gate", "api", "--end", "--yes"])
        .assert(0, &["the gate's own quota"]);
    program.run(["overrides"]).assert(1, &[]);

    // An override names its key, so it is state of the key too.
    program.run(&set).assert(0, &[]);
    let reply = program.json(0, &["forget", "tenant:7", "--yes"]);
    assert_eq!((&reply["removed"], &reply["overrides_ended"]), (&json!(1), &json!(1)));
    program.run(["overrides"]).assert(1, &[]);
    program.run(&set).assert(0, &[]);
    program
        .run(["forget", "tenant:7", "--yes"])
        .assert(0, &["removed 0 states and 1 override of tenant:7 (gates: api)"]);
}

#[test]
fn overrides_need_confirmation_and_valid_arguments() {
    let program = Program::shared();
    let bucket = ["--token-bucket", "5", "--rate", "5/s"];
    program.run(["switch", "api", "closed"]).assert(2, &["add --yes"]);
    let set = [&["override", "x", "--gate", "api", "--for", "1h"], &bucket[..]].concat();
    program.run(&set).assert(2, &["add --yes"]);
    for args in [
        &["switch", "api", "ajar", "--yes"][..],
        &["switch", "Bad Gate", "open", "--yes"],
        &["switch", "api", "clear", "--for", "1h", "--yes"],
        &["override", "x", "--gate", "api", "--for", "1h", "--yes"],
        &[&["override", "x", "--gate", "api", "--yes"], &bucket[..]].concat(),
        &[&["override", "x", "--gate", "api", "--end", "--yes"], &bucket[..]].concat(),
    ] {
        program.run(args).assert(2, &[]);
    }
    let mut terminal = Terminal::run(&program, &["switch", "api", "closed", "--for", "90m", "--force"]);
    terminal.see("Deny every check at api, in the whole fleet for 1h 30m? [y/N]");
    terminal.press("n\n");
    assert_eq!(terminal.end(), 1);
    let mut terminal = Terminal::run(&program, &[&set[..], &["--force"]].concat());
    terminal.see("Give x at api the quota 5/s burst 5 for 1h, in the whole fleet? [y/N]");
    terminal.press("y\n");
    assert_eq!(terminal.end(), 0);
    let reply = program.json(0, &["overrides"]);
    assert_eq!(reply["overrides"].as_array().unwrap().len(), 1);
    let ends_in = Duration::from_micros(reply["overrides"][0]["ends_in_us"].as_u64().unwrap());
    assert!(ends_in > Duration::from_secs(3_500) && ends_in <= Duration::from_secs(3_600));
}
