//! The commands `rules`, and checks with rules.

use std::path::PathBuf;

use serde_json::json;

use super::program::Program;

const AUTH: &str = "\
domain: auth
descriptors:
  - key: auth_type
    value: login
    descriptors:
      - key: user
        rate_limit: { unit: hour, requests_per_unit: 2, algorithm: token_bucket }
      - key: ip
        value: 10.*
        rate_limit: { unlimited: true }
  - key: auth_type
    value: log*
    rate_limit: { unit: day, requests_per_unit: 1 }
    shadow_mode: true
";

/// A temporary file, removed on drop.
pub(crate) struct File(PathBuf);

impl File {
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{}-{name}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn document_prints_the_limits_that_can_deny_for_the_users_of_an_api() {
    const API: &str = "
domain: api
charge: each
descriptors:
  - key: user
    rate_limit:
      algorithm: token_bucket
      unit: minute
      requests_per_unit: 100
      tiers: { pro: { requests_per_unit: 1000 }, internal: { unlimited: true } }
      candidate: { requests_per_unit: 60 }
  - key: path
    value: /a|b`*
    descriptors:
      - key: remote_address
        rate_limit: { name: logins, unit: minute, requests_per_unit: 5, cost: 2, ban: { after: 20, within: 10m, for: 1h } }
  - { key: tried, shadow_mode: true, rate_limit: 1/day }
  - { key: closed, rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: uploads, rate_limit: 3 in flight }
---
domain: other
descriptors: [{ key: secret, rate_limit: 1/s }]
";
    let (program, rules) = (Program::at("redis://127.0.0.1:1"), File::new("document", API));
    let page = program.run(["rules", "document", rules.path(), "--domain", "api"]);
    assert_eq!(page.code, Some(0), "{}", page.err);
    let rows: Vec<&str> = page.out.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(
        rows,
        [
            "| requests with | tier | limit | name in responses |",
            "| --- | --- | --- | --- |",
            "| each `user` | all others | 100/min burst 100 | `100/min burst 100` |",
            "| each `user` | `pro` | 1000/min burst 1000 | `1000/min burst 1000` |",
            "| each `user` | `internal` | unlimited |  |",
            "| `path=/a\\|b'*`, each `remote_address` |  | 5/min; a request costs 2; 20 denials within 10m ban for 1h | `logins` |",
            "| each `closed` |  | none is admitted | `denied` |",
            "| each `uploads` |  | 3 in flight | `3 in flight` |",
        ]
    );
    let openapi = program.run(["rules", "document", rules.path(), "--domain", "api", "--format", "openapi"]);
    let openapi: serde_json::Value = serde_json::from_str(&openapi.out).unwrap();
    let limits = openapi["x-rate-limits"].as_array().unwrap();
    assert_eq!(limits.len(), 6);
    assert_eq!(
        limits[3],
        json!({
            "requests": { "path": "/a|b`*", "remote_address": null },
            "tier": null,
            "name": "logins",
            "limit": 5,
            "windowSeconds": 60.0,
            "cost": 2,
            "description": "5/min; a request costs 2; 20 denials within 10m ban for 1h",
        })
    );
    assert_eq!((&limits[2]["limit"], &limits[4]["limit"]), (&json!(null), &json!(0)));
    assert_eq!(limits[5]["windowSeconds"], json!(null));
    program
        .run(["rules", "document", rules.path(), "--domain", "apis"])
        .assert(2, &["the rules have no domain `apis`; did you mean `api`?"]);
}

#[test]
fn validate_reports_every_error() {
    let program = Program::at("redis://127.0.0.1:1");
    let right = File::new("right", AUTH);
    program.run(["rules", "validate", right.path()]).assert(0, &["valid: 3 rules in "]);
    assert_eq!(program.json(0, &["rules", "validate", right.path()])["rules"], 3);
    let wrong =
        File::new("wrong", &AUTH.replace("unit: hour", "unit: hours").replace("ip\n", "ip\n        x: 1\n"));
    program
        .run(["rules", "validate", wrong.path()])
        .assert(1, &[":7:29: there is no unit `hours`", "did you mean `hour`?", "^^^^^"]);
    let reply = program.json(1, &["rules", "validate", wrong.path()]);
    assert_eq!(reply["errors"].as_array().unwrap().len(), 2);
    assert_eq!((&reply["errors"][0]["line"], &reply["errors"][0]["column"]), (&json!(7), &json!(29)));
    program.run(["rules", "validate", "/nowhere"]).assert(1, &["cannot be read"]);
    let schema = program.run(["rules", "schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema.out).unwrap();
    assert_eq!(schema["title"], "Rules of tidegate");
}

#[test]
fn validate_prints_warnings_and_succeeds() {
    let program = Program::at("redis://127.0.0.1:1");
    let file = File::new("warned", &AUTH.replace("log*", "^log.*$"));
    let reply = program.run(["rules", "validate", file.path()]);
    reply.assert(
        0,
        &[
            "warning: ",
            ":12:12: `^log.*$` looks like a regular expression",
            "did you mean `log*`?",
            "valid: 3 rules in ",
        ],
    );
    let reply = program.json(0, &["rules", "validate", file.path()]);
    assert_eq!((&reply["valid"], &reply["errors"]), (&json!(true), &json!([])));
    let warning = &reply["warnings"][0];
    assert_eq!((&warning["line"], &warning["column"]), (&json!(12), &json!(12)));
    assert_eq!(warning["suggestion"], "did you mean `log*`?");
}

#[test]
fn explain_shows_quota_mode_and_metadata() {
    let program = Program::at("redis://127.0.0.1:1");
    let text = "{ domain: d, charge: each, descriptors: [{ key: k, value: a*b, quota_mode: true, metadata: { name: x }, rate_limit: { unit: day, requests_per_unit: 1 } }] }";
    let file = File::new("quota", text);
    let explain = ["rules", "explain", file.path(), "--domain", "d", "-d", "k=a/b"];
    program
        .run(explain)
        .assert(0, &["k=a/b matches the pattern `a*b`", ": 1/d, quota mode (denies if all quotas deny)"]);
    let rule = &program.json(0, &explain)["descriptors"][0]["rule"];
    assert_eq!((&rule["quota_mode"], &rule["metadata"]), (&json!(true), &json!({ "name": "x" })));
}

#[test]
fn explain_shows_the_ban() {
    let program = Program::shared();
    let text = "{ domain: d, descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 9, tiers: { staff: { unlimited: true } }, ban: { after: 20, within: 10m, for: 1h } } }, { key: ip, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 9, ban: { after: 20, within: 10m, for: 90s } } }] }";
    let file = File::new("ban", text);
    let explain = ["rules", "explain", file.path(), "--domain", "d", "-d"];
    let user = [&explain[..], &["user=ada"]].concat();
    program.run(&*user).assert(0, &["ban for 1h after 20 denials within 10m\n"]);
    let staff = [&*user, &["--tier", "staff"]].concat();
    program.run(&*staff).assert(0, &["ban for 1h after", "(counts nothing of this tier)"]);
    let shadow = [&explain[..], &["ip=10.1.2.3"]].concat();
    program.run(&*shadow).assert(0, &["ban for 1m 30s after", "(counts nothing in shadow mode)"]);
    let found = program.json(0, &shadow);
    let ban = json!({ "after": 20, "within_us": 600_000_000, "for_us": 90_000_000 });
    assert_eq!(found["descriptors"][0]["rule"]["ban"], ban);
}

#[test]
fn explain_shows_the_network_and_the_candidate() {
    let program = Program::at("redis://127.0.0.1:1");
    let text = "{ domain: d, descriptors: [{ key: ip, networks: [10.0.0.0/8], rate_limit: { unit: day, requests_per_unit: 9, candidate: { requests_per_unit: 3 } } }] }";
    let file = File::new("candidate", text);
    let explain = ["rules", "explain", file.path(), "--domain", "d", "-d", "ip=10.1.2.3"];
    program.run(explain).assert(0, &["ip=10.1.2.3 matches the network `10.0.0.0/8`", "candidate 3/d, gate "]);
    let rule = &program.json(0, &explain)["descriptors"][0]["rule"];
    assert_eq!(rule["candidate"], json!("3/d"));
}

#[test]
fn explain_shows_the_matching_rule_or_the_missing_entry() {
    let program = Program::at("redis://127.0.0.1:1");
    let file = File::new("explain", AUTH);
    let explain = |descriptor: &str, code: i32, texts: &[&str]| {
        program
            .run(["rules", "explain", file.path(), "--domain", "auth", "-d", descriptor])
            .assert(code, texts);
    };
    explain(
        "auth_type=login,user=ada",
        0,
        &[
            "auth_type=login matches the value `login` (",
            ":3), which is more specific than the prefix `log*`",
            "user=ada matches the key without a value",
            "rule auth.auth_type_login.user: 2/h burst 2",
            "gate auth / auth_type=login / user (in redis auth.auth_type-login.user)",
        ],
    );
    explain("auth_type=logout", 0, &["the prefix `log*`", "1/d, shadow mode"]);
    explain("auth_type=login,ip=10.0.0.1", 0, &["unlimited"]);
    let tiers = "domain: d\ndescriptors:\n  - { key: k, rate_limit: { unit: day, requests_per_unit: 1, tiers: { pro: { requests_per_unit: 9 }, vip: { unlimited: true } } } }\n";
    let tiers = File::new("tiers", tiers);
    for (tier, limit) in [("free", ": 1/d"), ("pro", ": 9/d"), ("vip", "unlimited")] {
        let args = ["rules", "explain", tiers.path(), "--domain", "d", "-d", "k=v", "--tier", tier];
        program.run(args).assert(0, &[limit]);
    }
    explain("auth_type=login", 1, &["no `rate_limit` at this level; the next key can be `ip`, `user`"]);
    explain(
        "auth_type=login,ip=11.0.0.1",
        1,
        &["no match for the value `11.0.0.1` of `ip`; available: `10.*`"],
    );
    explain("auth_tipe=login", 1, &["no match for the key `auth_tipe`", "did you mean `auth_type`?"]);
    explain("auth_type=logout,user=ada", 1, &["no rule continues at this level"]);
    let args = ["rules", "explain", file.path(), "--domain", "auht", "-d", "a=b"];
    program.run(args).assert(1, &["no file has the domain `auht`", "did you mean `auth`?"]);
    let reply = program.json(
        1,
        &["rules", "explain", file.path(), "--domain", "auth", "-d", "auth_type=login,user=ada", "-d", "x=y"],
    );
    assert_eq!(reply["descriptors"][0]["rule"]["gate"], "auth.auth_type-login.user");
    assert_eq!(reply["descriptors"][0]["matched"][1]["line"], 6);
    assert_eq!(
        (&reply["descriptors"][1]["rule"], reply["descriptors"][1]["why_not"].is_string()),
        (&json!(null), true)
    );
    program.run(["rules", "explain", file.path()]).assert(2, &["--descriptor"]);
    program
        .run(["rules", "explain", file.path(), "--domain", "auth", "-d", "login"])
        .assert(2, &["key=value"]);
}

#[test]
fn explain_derives_descriptors_from_a_request() {
    let program = Program::at("redis://127.0.0.1:1");
    let file = File::new(
        "request",
        "\
domain: api
rate_limits:
  - actions: [{ remote_address: {} }]
  - actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }, { path: {} }]
  - actions: [{ extension: { name: user } }]
descriptors:
  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 9 } }
  - { key: api_key, descriptors: [{ key: path, value: /login, rate_limit: { unit: minute, requests_per_unit: 5 } }] }
  - { key: user, rate_limit: { unlimited: true } }
",
    );
    let explain = |more: &[&str]| {
        program.run([&["rules", "explain", file.path(), "--domain", "api", "--request"], more].concat())
    };
    explain(&["POST /login?next=%2F", "-H", "x-api-key: k,1", "--ip", "10.0.0.1", "--extension", "user=ada"])
        .assert(
            0,
            &[
                "remote_address=10.0.0.1",
                "api_key=k\\,1,path=/login",
                "rule api.api_key.path_/login",
                "user=ada",
            ],
        );
    let logout = explain(&["/logout", "-H", "x-api-key: k1", "--ip", "2001:db8::1"]);
    logout.assert(1, &["remote_address=2001:db8::/64", "no match for the value `/logout` of `path`"]);
    assert!(!logout.out.contains("user="), "{}", logout.out);
    explain(&["GET /"]).assert(2, &["add --ip"]);
    explain(&["GET /", "-H", "x-api-key"]).assert(2, &["invalid header", "x-api-key: k1"]);
    explain(&["GET no uri"]).assert(2, &["invalid request"]);
    explain(&["GET /", "-d", "a=b"]).assert(2, &["cannot be used with"]);
}

#[test]
fn check_applies_rules_to_a_request_or_a_gate() {
    let program = Program::shared();
    let file = File::new("check", AUTH);
    let check = |verb: &str, descriptor: &str, code: i32| {
        program.json(code, &[verb, "--rules", file.path(), "--domain", "auth", "-d", descriptor])
    };
    let login = "auth_type=login,user=ada";
    assert_eq!(check("peek", login, 0)["outcomes"][0]["decision"]["remaining"], 2);
    assert_eq!(check("check", login, 0)["outcomes"][0]["decision"]["remaining"], 1);
    // The same state, by the gate's name.
    let gate = ["check", "ada", "--gate", "auth.auth_type-login.user", "--rules", file.path()];
    assert_eq!(program.json(0, &gate)["remaining"], 0);
    let reply = check("check", login, 1);
    assert_eq!(
        (&reply["allowed"], &reply["outcomes"][0]["rule"]),
        (&json!(false), &json!("auth.auth_type_login.user"))
    );
    assert_eq!(check("check", "auth_type=login,ip=10.1", 0)["outcomes"][0]["outcome"], "unlimited");
    assert_eq!(check("check", "x=y", 0)["outcomes"][0]["outcome"], "no_rule");
    check("check", "auth_type=logout", 0);
    assert_eq!(check("check", "auth_type=logout", 0)["outcomes"][0]["decision"]["shadow"], true);
    let args = ["check", "--rules", file.path(), "--domain", "auth", "-d", login, "-d", "x=y"];
    program.run(args).assert(
        1,
        &[
            "denied",
            login,
            "auth.auth_type_login.user",
            "retry after",
            "no rule matches: no match for the key `x`",
        ],
    );
    program.run(["check", "--rules", file.path(), "--domain", "auht", "-d", "x=y"]).assert(
        0,
        &[
            "allowed",
            "no rule matches: no file has the domain `auht`; available: `auth`; did you mean `auth`?",
        ],
    );
    program
        .run(["check", "ada", "--gate", "nothing", "--rules", file.path()])
        .assert(2, &["no rule has the gate, path or name `nothing`"]);
    program.run(["check", "--domain", "auth", "-d", login]).assert(2, &["--rules PATH"]);
}
