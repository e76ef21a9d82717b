//! Windows of a calendar on the command line.

use std::time::Duration;

use tidegate::Quota;

use super::program::Program;
use super::rules::File;
use crate::support::fixture::{builder, soon};

#[tokio::test]
async fn keys_of_calendar_windows_are_found_changed_and_overridden() {
    let program = Program::shared();
    let limiter =
        builder(&program.url).namespace(&program.namespace).deny_cache(Duration::ZERO).build().unwrap();
    let month = Quota::calendar_window(5, "month+15@Europe/Berlin".parse().unwrap());
    let gate = limiter.gate("api", month);
    gate.penalize("tenant:7", 3).await.unwrap();
    let options = ["--fixed-window", "5", "--calendar", "month+15@europe/berlin"];
    program.run(["inspect", "tenant:7"]).assert(0, &["fixed_window/month+15@Europe/Berlin", "3"]);
    let peek = |key: &'static str| ["peek", key, "--gate", "api"];
    program.run([&peek("tenant:7")[..], &options].concat()).assert(0, &["allowed, 2 of 5 left"]);
    program
        .run(peek("tenant:7"))
        .assert(2, &["add `--fixed-window LIMIT --calendar month+15@Europe/Berlin`"]);
    let check = ["check", "tenant:7", "--gate", "api"];
    program.run([&check[..], &options].concat()).assert(0, &["allowed, 1 of 5 left"]);
    assert_eq!(gate.peek("tenant:7").await.unwrap().remaining(), 1);

    let set = ["override", "tenant:7", "--gate", "api", "--for", "1h", "--yes", "--fixed-window", "9"];
    let year = ["--calendar", "year+02-29"];
    program
        .run([&set[..], &year].concat())
        .assert(0, &["tenant:7 at api has the quota 9/year from 02-29 in UTC for 1h"]);
    soon("the key is overridden", async || gate.peek("tenant:7").await.unwrap().limit() == 9).await;
    program.run(["overrides"]).assert(0, &["9/year from 02-29 in UTC"]);
    program.run(["reset", "tenant:7", "--gate", "api", "--yes"]).assert(0, &[]);
}

#[test]
fn wrong_calendar_is_a_usage_error() {
    let program = Program::at("redis://127.0.0.1:1");
    let check = ["check", "x", "--gate", "g"];
    for (options, expected) in [
        (&["--fixed-window", "5", "--calendar", "month@Europe/Berln"][..], "did you mean `Europe/Berlin`?"),
        (&["--fixed-window", "5", "--calendar", "fortnight"], "use day, week, month, quarter or year"),
        (&["--fixed-window", "5", "--calendar", "month", "--window", "1h"], "cannot be used with"),
        (&["--fixed-window", "5", "--calendar", "month", "--by-clock"], "cannot be used with"),
        (&["--sliding-log", "5", "--calendar", "month"], "--calendar needs --fixed-window"),
        (&["--token-bucket", "5", "--rate", "5/s", "--calendar", "month"], "--calendar needs --fixed-window"),
        (&["--calendar", "month"], "--fixed-window"),
        (&["--fixed-window", "5"], "--calendar"),
        (&["--fixed-window", "0", "--calendar", "month"], "1 to 2^48"),
    ] {
        program.run([&check[..], options].concat()).assert(2, &[expected]);
    }
}

#[test]
fn rule_with_a_calendar_is_valid_and_shown() {
    let program = Program::at("redis://127.0.0.1:1");
    let file = |fields: &str| {
        let text = format!("domain: api\ndescriptors:\n  - key: tenant\n    rate_limit: {{ {fields} }}\n");
        File::new("calendar", &text)
    };
    let right = file("every: month, zone: Europe/Berlin, anchor: 15, requests_per_unit: 5");
    program.run(["rules", "validate", right.path()]).assert(0, &[]);
    let explain = ["rules", "explain", right.path(), "--domain", "api", "-d", "tenant=7"];
    program.run(explain).assert(0, &["5/month from 15 in Europe/Berlin"]);
    drop(right);
    let wrong = file("every: month, zone: Europe/Berln, requests_per_unit: 5");
    program
        .run(["rules", "validate", wrong.path()])
        .assert(1, &["Europe/Berln", "did you mean `Europe/Berlin`?"]);
}
