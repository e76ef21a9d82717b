//! The same change by the command line, the JSON API and the console of the service.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin::{Action, AuditRecord, Author, Change, ChangedGate, Changes, GivenKey, Inspector};
use tidegate::{Quota, Rate};
use tidegate_testkit::Server;

use super::program::{Program, Ran};
use super::rules::File;
use super::serve::{Service, send};
use crate::support::acl;
use crate::support::fixture::{HOUR, builder, soon};

const RULES: &str = "\
domain: auth
descriptors:
  - key: auth_type
    value: login
    rate_limit: { name: Logins, unit: hour, requests_per_unit: 2, algorithm: token_bucket }
  - key: free
    rate_limit: { unlimited: true }
";
const GATE: &str = "auth.auth_type-login";
const TOKEN: &str = "a-token-of-this-test";

/// A change, with the fields of the JSON API and of the form.
type Fields = [(&'static str, &'static str)];

/// The changes of each face, in this order. The gate is named by its rule.
const CHANGES: [(&str, &Fields); 9] = [
    ("block", &[("gate", "Logins"), ("key", "eve 1"), ("for", "1h")]),
    ("unblock", &[("gate", "auth.auth_type_login"), ("key", "eve 1")]),
    ("block", &[("gate", "auth.auth_type-login"), ("key", "eve 1"), ("for", "7d")]),
    ("reset", &[("gate", "Logins"), ("key", "old")]),
    (
        "override",
        &[
            ("gate", "Logins"),
            ("key", "bob"),
            ("for", "7d"),
            ("algorithm", "token_bucket"),
            ("limit", "9"),
            ("rate", "9/h"),
        ],
    ),
    (
        "override",
        &[
            ("gate", "Logins"),
            ("key", "joe"),
            ("for", "7d"),
            ("algorithm", "sliding_log"),
            ("limit", "9"),
            ("window", "1h"),
        ],
    ),
    ("end_override", &[("gate", "Logins"), ("key", "joe")]),
    ("switch", &[("gate", "Logins"), ("to", "closed"), ("for", "7d")]),
    ("end_switch", &[("gate", "Logins")]),
];

/// A way to make changes.
#[derive(Clone, Copy, Debug)]
enum Face {
    Program,
    Api,
    Console,
}

struct Faces {
    program: Program,
    service: Service,
    rules: File,
}

impl Faces {
    fn start(name: &str) -> Self {
        let (program, rules) = (Program::shared(), File::new(name, RULES));
        let tokens = File::new(&format!("{name}-tokens"), &format!("ada operator token:{TOKEN}\n"));
        std::fs::set_permissions(tokens.path(), PermissionsExt::from_mode(0o600)).unwrap();
        let args = ["--rules", rules.path(), "--admin-tokens", tokens.path()];
        let service = Service::start(&program, &args);
        Self { program, service, rules }
    }

    /// Makes a change with a reason. Returns whether it was made, and the answer.
    fn make(&self, face: Face, verb: &str, fields: &Fields) -> (bool, String) {
        match face {
            Face::Program => {
                let Ran { code, out, err } = self.program.run(self.arguments(verb, fields));
                (code == Some(0), out + &err)
            }
            Face::Api => {
                let mut body = json!({ "reason": "abuse" });
                fields.iter().for_each(|(name, value)| body[name] = Value::from(*value));
                let header = format!("authorization: Bearer {TOKEN}\r\ncontent-type: application/json");
                let path = format!("POST /api/{verb}");
                let (status, answer) = send(&self.service.admin, &path, &header, &body.to_string());
                (status == 200, answer)
            }
            Face::Console => {
                let fields = fields.iter().chain(&[("reason", "abuse"), ("confirmed", "yes")]);
                let fields = fields.map(|(name, value)| format!("&{name}={}", value.replace(' ', "+")));
                let body = format!("verb={verb}{}", fields.collect::<String>());
                let form = "application/x-www-form-urlencoded";
                let header = format!("authorization: Bearer {TOKEN}\r\ncontent-type: {form}");
                let (status, page) = send(&self.service.admin, "POST /change", &header, &body);
                (status == 303, page)
            }
        }
    }

    fn arguments(&self, verb: &str, fields: &Fields) -> Vec<String> {
        let field = |name: &str| fields.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
        let mut words = vec![verb.trim_start_matches("end_")];
        match verb {
            "switch" | "end_switch" => {
                words.extend([field("gate").unwrap(), field("to").unwrap_or("clear")]);
            }
            _ => words.extend([field("key").unwrap(), "--gate", field("gate").unwrap()]),
        }
        words.extend(["--rules", self.rules.path(), "--yes", "--reason", "abuse"]);
        words.extend((verb == "end_override").then_some("--end"));
        for (name, option) in [("for", "--for"), ("rate", "--rate"), ("window", "--window")] {
            words.extend(field(name).into_iter().flat_map(|value| [option, value]));
        }
        let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if let (Some(algorithm), Some(limit)) = (field("algorithm"), field("limit")) {
            words.extend([format!("--{}", algorithm.replace('_', "-")), limit.to_owned()]);
        }
        words
    }

    /// Makes the rule's gate known to the service, which then sends heartbeats.
    async fn use_gate(&self) {
        let limiter = builder(&self.program.url).namespace(&self.program.namespace).build().unwrap();
        let gate = limiter.gate("auth.auth_type-login", Quota::token_bucket(2, Rate::per_hour(2)));
        gate.penalize("old", 1).await.unwrap();
        // The key of an earlier version of the rules, which only a search finds.
        limiter.gate("auth.auth_type-login", Quota::sliding_log(2, HOUR)).penalize("old", 1).await.unwrap();
        let inspector = Inspector::new(&limiter).unwrap();
        while inspector.instances().await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns the audit log, without the authors, and what is stored: the states, and the overrides.
    async fn outcome(&self) -> (Vec<AuditRecord>, Vec<String>, String) {
        let limiter = builder(&self.program.url).namespace(&self.program.namespace).build().unwrap();
        let entries = Inspector::new(&limiter).unwrap().audit_log(100).await.unwrap();
        let without_author =
            |record: AuditRecord| AuditRecord { operator: String::new(), role: String::new(), ..record };
        let records = entries.into_iter().map(|entry| without_author(entry.record)).collect();
        let stored = self.program.json(0, &["inspect"])["gates"].to_string();
        let shown = self.program.json(0, &["inspect", "--gate", "Logins", "--rules", self.rules.path()]);
        let states = shown["states"].as_array().unwrap().iter();
        let mut states: Vec<String> = states
            .map(|state| {
                format!("{} {} {}", state["stored_as"], state["key"], state["blocked_for_us"].is_u64())
            })
            .collect();
        states.push(stored);
        (records, states, self.program.run(["overrides"]).out)
    }
}

#[tokio::test]
async fn same_change_by_each_face_leaves_the_same_audit_entry_and_state() {
    let mut outcomes = Vec::new();
    for face in [Face::Program, Face::Api, Face::Console] {
        let faces = Faces::start(&format!("same-{face:?}"));
        faces.use_gate().await;
        for (verb, fields) in CHANGES {
            let (is_made, answer) = faces.make(face, verb, fields);
            assert!(is_made, "{face:?} {verb} {fields:?}: {answer}");
        }
        outcomes.push(faces.outcome().await);
    }
    let (records, states, overrides) = &outcomes[0];
    let block = AuditRecord {
        verb: "block".to_owned(),
        gate: "auth.auth_type-login".to_owned(),
        key: "eve%201".to_owned(),
        detail: "for 1h".to_owned(),
        reason: "abuse".to_owned(),
        result: "blocked for 1h".to_owned(),
        ..AuditRecord::default()
    };
    assert_eq!((records.len(), records.last()), (CHANGES.len(), Some(&block)));
    assert_eq!(records[5].result, "reset");
    assert!(states[0].ends_with(r#""eve 1" true"#) && states.len() == 2, "{states:?}");
    assert!(overrides.contains("bob") && overrides.lines().count() == 2, "{overrides}");
    for other in &outcomes[1..] {
        assert_eq!(other, &outcomes[0]);
    }
}

#[tokio::test]
async fn each_face_refuses_the_same_changes_for_the_same_reason() {
    let faces = Faces::start("refused");
    faces.use_gate().await;
    let quota = [("for", "1h"), ("algorithm", "in_flight"), ("limit", "9")];
    let [in_flight, free] =
        ["Logins", "auth.free"].map(|gate| [&[("gate", gate), ("key", "eve")][..], &quota].concat());
    for (verb, fields, why) in [
        (
            "override",
            &in_flight[..],
            "9 in flight is a limit in flight: services would ignore it; nothing changed",
        ),
        (
            "override",
            &free,
            "the rule of gate `auth / free` has no quota: it allows or denies every request; nothing changed",
        ),
        (
            "block",
            &[("gate", "auth.free"), ("key", "eve"), ("for", "1h")],
            "the rule of gate `auth / free` has no quota",
        ),
        ("block", &[("gate", "Logins"), ("key", "eve"), ("for", "0s")], "a change cannot last 0s: write 90s"),
        ("switch", &[("gate", "Logins"), ("to", "closed"), ("for", "20y")], "at most ten years (3650d)"),
    ] {
        for face in [Face::Program, Face::Api, Face::Console] {
            let (is_made, answer) = faces.make(face, verb, fields);
            // The page escapes quotes.
            let answer = answer.replace("&#96;", "`");
            assert!(!is_made && answer.contains(why), "{face:?} {verb} {fields:?}: {answer}");
        }
    }
    let why = format!("no gate `logn` in namespace {}", faces.program.namespace);
    for face in [Face::Api, Face::Console] {
        let (is_made, answer) = faces.make(face, "switch", &[("gate", "logn"), ("to", "open")]);
        assert!(!is_made && answer.replace("&#96;", "`").contains(&why), "{face:?}: {answer}");
    }
    faces.program.run(["switch", "logn", "open", "--yes"]).assert(1, &[&why]);
    let limiter = builder(&faces.program.url).namespace(&faces.program.namespace).build().unwrap();
    assert_eq!(
        Inspector::new(&limiter).unwrap().audit_log(9).await.unwrap(),
        [],
        "refusals are not recorded"
    );
}

#[tokio::test]
async fn audit_entry_of_the_program_has_the_author_and_the_reason() {
    let program = Program::shared();
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    limiter.gate("g", Quota::token_bucket(2, Rate::per_hour(2))).penalize("eve", 1).await.unwrap();
    let block = ["block", "eve", "--gate", "g", "--for", "1h", "--yes"];
    program.run([&block[..], &["--reason", "abuse", "--author", "ada"]].concat()).assert(0, &[]);
    let mut command = program.command(block);
    Ran::of(&command.env("USER", "joe").output().unwrap()).assert(0, &[]);
    let mut command = program.command(["forget", "eve", "--yes"]);
    let command = command.env_remove("USER").env_remove("LOGNAME").env_remove("USERNAME");
    Ran::of(&command.output().unwrap()).assert(0, &[]);
    let entries = Inspector::new(&limiter).unwrap().audit_log(9).await.unwrap();
    let of = |record: &AuditRecord| {
        [&record.verb, &record.operator, &record.role, &record.reason, &record.result].map(String::clone)
    };
    assert_eq!(
        entries.iter().map(|entry| of(&entry.record)).collect::<Vec<_>>(),
        [
            ["forget", "cli", "cli", "", "states removed: 1, overrides ended: 0"],
            ["block", "joe", "cli", "", "blocked for 1h"],
            ["block", "ada", "cli", "abuse", "blocked for 1h"],
        ]
    );
}

#[tokio::test]
async fn url_in_the_place_of_a_key_is_neither_printed_nor_recorded_with_its_password() {
    for key in ["redis://ann:QuaggaZebra@127.0.0.1:1/0", "redis://ann:Quagga%40Zebra@127.0.0.1:1/0"] {
        let program = Program::shared();
        let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
        let quota = ["--token-bucket", "2", "--rate", "2/h", "--force"];
        for args in [
            [&["block", key, "--gate", "g", "--for", "1h", "--yes"], &quota[..]].concat(),
            [&["override", key, "--gate", "g", "--for", "1h", "--yes"], &quota[..]].concat(),
            vec!["unblock", key, "--gate", "g", "--yes", "--json"],
            vec!["reset", key, "--gate", "g", "--yes", "--json"],
            vec!["forget", key, "--yes"],
        ] {
            let ran = program.run(&args);
            ran.assert(0, &["redis://127.0.0.1:1"]);
            assert!(!format!("{ran:?}").contains("Zebra"), "{args:?}: {ran:?}");
        }
        let entries = Inspector::new(&limiter).unwrap().audit_log(9).await.unwrap();
        assert!(entries.len() == 5 && !format!("{entries:?}").contains("Zebra"), "{entries:?}");
        assert_eq!(entries[0].record.key, "redis://127.0.0.1:1");
    }
}

#[test]
fn search_ends_at_its_bound_and_changes_nothing() {
    let server = Server::process(&[]).unwrap();
    let program = Program::at(server.url());
    server.cli(&["CLIENT", "PAUSE", "60000"]).unwrap();
    for args in [
        &["reset", "eve", "--gate", "g"][..],
        &["forget", "eve"],
        &["block", "eve", "--gate", "g", "--for", "1h"],
    ] {
        program.run([args, &["--yes", "--max-search", "200ms"]].concat()).assert(
            1,
            &["too many keys to search them within 200ms; nothing changed: increase --max-search"],
        );
    }
}

#[test]
fn change_without_the_right_to_the_audit_log_is_made_and_reported() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    server.cli(&["ACL", "SETUSER", acl::USER, "+scan"]).unwrap();
    let url = server.url().replace("://", &format!("://{}:{}@", acl::USER, acl::PASSWORD));
    let program = Program::of(&url, "tidegate");
    let quota = ["--token-bucket", "2", "--rate", "2/h", "--force"];
    let block = [&["block", "eve", "--gate", "g", "--for", "1h", "--yes"], &quota[..]].concat();
    program
        .run(block)
        .assert(0, &["eve is blocked at g", "the audit log has no entry of this change", "+xadd"]);
}

/// A server whose database takes long to search, and a program with the namespace of its rights.
struct Slow {
    server: Server,
    program: Program,
    rules: File,
}

impl Slow {
    fn start(name: &str) -> Self {
        let server = Server::process(&[]).unwrap();
        let fill = "for i = 1, 400000 do redis.call('SET', i, i) end";
        server.cli(&["EVAL", fill, "0"]).unwrap();
        Self { program: Program::at(server.url()), server, rules: File::new(name, RULES) }
    }

    fn begin(&self, verb: &str, more: &[&str]) -> std::process::Child {
        let args = [verb, "eve", "--gate", GATE, "--rules", self.rules.path(), "--yes"];
        let mut command = self.program.command([&args[..], more].concat());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    }
}

#[tokio::test]
async fn what_happens_to_the_key_during_the_search_remains() {
    let slow = Slow::start("slow");
    let limiter = builder(slow.server.url()).namespace(&slow.program.namespace).build().unwrap();
    let gate = limiter.gate(GATE, Quota::token_bucket(2, Rate::per_hour(2)));
    gate.block("eve", HOUR).await.unwrap();
    let unblocking = slow.begin("unblock", &[]);
    soon("the block is lifted", async || gate.peek("eve").await.unwrap().is_allowed()).await;
    gate.block("eve", HOUR).await.unwrap();
    Ran::of(&unblocking.wait_with_output().unwrap()).assert(0, &["eve is no longer blocked"]);
    assert!(!gate.peek("eve").await.unwrap().is_allowed(), "the second block remains");
    let resetting = slow.begin("reset", &[]);
    soon("the key is reset", async || gate.peek("eve").await.unwrap().is_allowed()).await;
    gate.penalize("eve", 2).await.unwrap();
    Ran::of(&resetting.wait_with_output().unwrap()).assert(0, &["is reset"]);
    assert!(!gate.peek("eve").await.unwrap().is_allowed(), "the new usage remains");
}

#[cfg(unix)]
#[tokio::test]
async fn change_whose_search_is_interrupted_is_recorded() {
    let slow = Slow::start("interrupted");
    let limiter = builder(slow.server.url()).namespace(&slow.program.namespace).build().unwrap();
    let gate = limiter.gate(GATE, Quota::token_bucket(2, Rate::per_hour(2)));
    let blocking = slow.begin("block", &["--for", "1h"]);
    soon("the key is blocked", async || !gate.peek("eve").await.unwrap().is_allowed()).await;
    let kill = std::process::Command::new("kill").args(["-INT", &blocking.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let why = "other forms were not searched: the program was told to end";
    Ran::of(&blocking.wait_with_output().unwrap()).assert(0, &["eve is blocked", why]);
    let entries = Inspector::new(&limiter).unwrap().audit_log(9).await.unwrap();
    assert_eq!(entries[0].record.result, format!("blocked for 1h; {why}"));
}

#[tokio::test]
async fn change_that_has_to_end_writes_no_further_form_of_its_key() {
    let program = Program::shared();
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let quotas = [Quota::fixed_window(9, HOUR), Quota::sliding_log(9, HOUR), Quota::sliding_counter(9, HOUR)];
    let forms = quotas.map(|quota| limiter.gate(GATE, quota));
    for form in &forms {
        let _ = form.check("eve").await.unwrap();
    }
    let changes = Changes::new(&limiter);
    let gate = ChangedGate { name: GATE.to_owned(), ..ChangedGate::default() };
    let action = Action::Block { key: GivenKey::Plain(b"eve".to_vec()), lasts: HOUR, quota: None };
    let checked = changes.check(Change { gate, action, force: false }).await.unwrap();
    changes.end_searches();
    let author = Author { name: "ada".to_owned(), role: "operator".to_owned(), reason: "test".to_owned() };
    let effect = changes.apply(checked, &author).await.effect.unwrap();
    let why = "further forms of the key are as before: the program was told to end";
    assert_eq!(effect.result, format!("blocked for 1h; {why}"));
    let mut blocked = 0;
    for form in &forms {
        blocked += u32::from(!form.peek("eve").await.unwrap().is_allowed());
    }
    assert_eq!(blocked, 1);
}

#[tokio::test]
async fn key_with_an_override_is_unblocked_and_reset_without_a_search() {
    let server = Server::process(&[]).unwrap();
    acl::create_user(&server);
    server.cli(&["ACL", "SETUSER", acl::USER, "+xadd"]).unwrap();
    let url = server.url().replace("://", &format!("://{}:{}@", acl::USER, acl::PASSWORD));
    let (program, rules) = (Program::of(&url, "tidegate"), File::new("overridden", RULES));
    let limiter = builder(server.url()).namespace("tidegate").build().unwrap();
    let quota = Quota::sliding_log(9, HOUR);
    limiter.control().set_override(GATE, "eve", quota, HOUR).await.unwrap();
    let state = limiter.gate(GATE, quota);
    for verb in ["unblock", "reset"] {
        state.block("eve", HOUR).await.unwrap();
        program.run([verb, "eve", "--gate", GATE, "--rules", rules.path(), "--yes"]).assert(0, &["+scan"]);
        assert!(state.peek("eve").await.unwrap().is_allowed(), "{verb}");
    }
}

#[tokio::test]
async fn corrupt_data_beside_the_state_of_the_rule_leaves_a_change_made() {
    let (program, rules) = (Program::shared(), File::new("corrupt", RULES));
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let gate = limiter.gate(GATE, Quota::token_bucket(2, Rate::per_hour(2)));
    let other = limiter.gate(GATE, Quota::fixed_window(2, HOUR)).redis_key("eve").unwrap();
    let server = tidegate_testkit::shared();
    server.cli(&["SET", &other, "garbage"]).unwrap();
    let own = gate.redis_key("eve").unwrap();
    server.cli(&["SET", &own.replacen(":token_bucket", ":denials/token_bucket", 1), "garbage"]).unwrap();
    for (args, done) in [
        (&["block", "eve", "--for", "1h"][..], "eve is blocked"),
        (&["unblock", "eve"], "eve is no longer blocked"),
    ] {
        let more = ["--gate", GATE, "--rules", rules.path(), "--yes"];
        program.run([args, &more].concat()).assert(0, &[done, "another form is as before: "]);
    }
    assert!(gate.peek("eve").await.unwrap().is_allowed());
}

#[tokio::test]
async fn override_that_is_not_understood_is_removed_with_force_and_no_effect_is_not_recorded() {
    let program = Program::shared();
    let limiter = builder(&program.url).namespace(&program.namespace).build().unwrap();
    let server = tidegate_testkit::shared();
    let (key, field) = (format!("{}:1:overrides", program.namespace), "override g:eve");
    server.cli(&["HSET", &key, field, "a quota of another version"]).unwrap();
    program.run(["override", "eve", "--gate", "g", "--end", "--yes"]).assert(1, &["nothing changed"]);
    program.run(["unblock", "eve", "--gate", "g", "--yes"]).assert(1, &["no state of eve"]);
    assert_eq!(Inspector::new(&limiter).unwrap().audit_log(9).await.unwrap(), []);
    program.run(["override", "eve", "--gate", "g", "--end", "--yes", "--force"]).assert(0, &[]);
    assert!(!server.cli(&["HGETALL", &key]).unwrap().contains(field));
}
