//! What is ordered for the whole fleet.

use std::time::Duration;

use serde_json::json;
use tidegate::{Quota, Rate, Source};

use super::program::Program;
use super::terminal::Terminal;
use crate::support::fixture::{builder, soon};

#[tokio::test]
async fn a_service_follows_what_the_command_line_orders() {
    let program = Program::shared();
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let api = limiter.gate("api", Quota::token_bucket(1, Rate::per_hour(1)));
    api.penalize("tenant:7", 1).await.unwrap();
    program.run(["orders"]).assert(1, &["no gate is switched"]);

    let said = program.json(0, &["switch", "api", "closed", "--for", "1h", "--yes"]);
    assert_eq!(said, json!({ "gate": "api", "switch": "closed", "ends_in_us": 3_600_000_000_u64 }));
    soon("the gate is closed", async || {
        let decision = api.check("tenant:8").await.unwrap();
        !decision.is_allowed() && decision.source() == Source::Switch
    })
    .await;
    let check = ["check", "tenant:9", "--gate", "api", "--token-bucket", "1", "--rate", "1/h"];
    program.run(check).assert(1, &["denied: api is switched, see `tidegate orders`"]);
    program
        .run(["switch", "api", "open", "--yes"])
        .assert(0, &["api is switched open, seen by all processes"]);
    program.run(check).assert(0, &["allowed: api is switched"]);
    program.run(["orders"]).assert(0, &["api   -    open   never"]);
    let in_force = "orders in force here: 1, see `tidegate orders`";
    program.run(["inspect", "--gate", "api"]).assert(0, &[in_force]);
    program.run(["inspect", "tenant:7"]).assert(0, &[in_force]);
    assert!(!program.run(["inspect", "--gate", "other"]).out.contains("in force here"));
    program.run(["switch", "api", "shadow", "--for", "5m", "--yes"]).assert(0, &["shadow for 5m"]);
    program
        .run(["peek", "tenant:7", "--gate", "api", "--token-bucket", "1", "--rate", "1/h"])
        .assert(0, &["allowed (only watched: it would be denied)"]);
    program.run(["switch", "api", "off", "--yes"]).assert(0, &["api is switched off"]);
    program.run(["orders"]).assert(1, &[]);

    let quota = ["--token-bucket", "50", "--rate", "50/h"];
    let order = [&["override", "tenant:7", "--gate", "api", "--for", "7d", "--yes"], &quota[..]].concat();
    program.run(&order).assert(0, &["tenant:7 of api is decided by token_bucket 50, refilled 50/h for 7d"]);
    soon("the key is overridden", async || api.peek("tenant:7").await.unwrap().limit() == 50).await;
    assert_eq!(
        program.json(0, &["peek", "tenant:7", "--gate", "api", "--token-bucket", "1", "--rate", "1/h"])["limit"],
        50
    );
    let said = program.json(0, &["orders"]);
    assert_eq!(
        (&said["orders"][0]["written"], &said["orders"][0]["gate"]),
        (&json!("tenant:7"), &json!("api"))
    );
    assert!(said["orders"][0]["ends_in_us"].as_u64().unwrap() > 6 * 86_400_000_000);
    // What decides it now is blocked, also where nothing is stored of that yet.
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
    program.run(["orders"]).assert(1, &[]);

    // An override names its key, so it is state of the key too.
    program.run(&order).assert(0, &[]);
    let said = program.json(0, &["forget", "tenant:7", "--yes"]);
    assert_eq!((&said["removed"], &said["overrides_ended"]), (&json!(1), &json!(1)));
    program.run(["orders"]).assert(1, &[]);
    program.run(&order).assert(0, &[]);
    program
        .run(["forget", "tenant:7", "--yes"])
        .assert(0, &["removed 0 states and 1 override of tenant:7 (gates: api)"]);
}

#[test]
fn orders_are_confirmed_and_make_sense() {
    let program = Program::shared();
    let bucket = ["--token-bucket", "5", "--rate", "5/s"];
    program.run(["switch", "api", "closed"]).assert(2, &["add --yes"]);
    let order = [&["override", "x", "--gate", "api", "--for", "1h"], &bucket[..]].concat();
    program.run(&order).assert(2, &["add --yes"]);
    for args in [
        &["switch", "api", "ajar", "--yes"][..],
        &["switch", "Bad Gate", "open", "--yes"],
        &["switch", "api", "off", "--for", "1h", "--yes"],
        &["override", "x", "--gate", "api", "--for", "1h", "--yes"],
        &[&["override", "x", "--gate", "api", "--yes"], &bucket[..]].concat(),
        &[&["override", "x", "--gate", "api", "--end", "--yes"], &bucket[..]].concat(),
    ] {
        program.run(args).assert(2, &[]);
    }
    let mut terminal = Terminal::run(&program, &["switch", "api", "closed", "--for", "90m"]);
    terminal.see("Deny everything at api, in the whole fleet for 1h 30m? [y/N]");
    terminal.press("n\n");
    assert_eq!(terminal.end(), 1);
    let mut terminal = Terminal::run(&program, &order);
    terminal.see("Decide x of api by token_bucket 5, refilled 5/s for 1h, in the whole fleet? [y/N]");
    terminal.press("y\n");
    assert_eq!(terminal.end(), 0);
    let said = program.json(0, &["orders"]);
    assert_eq!(said["orders"].as_array().unwrap().len(), 1);
    let ends_in = Duration::from_micros(said["orders"][0]["ends_in_us"].as_u64().unwrap());
    assert!(ends_in > Duration::from_secs(3_500) && ends_in <= Duration::from_secs(3_600));
}
