//! Rules on the command line.

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

/// A file that goes with this.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-{}-{name}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn rules_are_valid_or_each_mistake_is_told() {
    let program = Program::at("redis://127.0.0.1:1");
    let right = File::new("right", AUTH);
    program.run(["rules", "validate", right.path()]).assert(0, &["valid: 3 rules in "]);
    assert_eq!(program.json(0, &["rules", "validate", right.path()])["rules"], 3);
    let wrong =
        File::new("wrong", &AUTH.replace("unit: hour", "unit: hours").replace("ip\n", "ip\n        x: 1\n"));
    program
        .run(["rules", "validate", wrong.path()])
        .assert(1, &[":7:29: there is no unit `hours`", "did you mean `hour`?", "^^^^^"]);
    let said = program.json(1, &["rules", "validate", wrong.path()]);
    assert_eq!(said["mistakes"].as_array().unwrap().len(), 2);
    assert_eq!((&said["mistakes"][0]["line"], &said["mistakes"][0]["column"]), (&json!(7), &json!(29)));
    program.run(["rules", "validate", "/nowhere"]).assert(1, &["this cannot be read"]);
    let schema = program.run(["rules", "schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema.out).unwrap();
    assert_eq!(schema["title"], "Rules of tidegate");
}

#[test]
fn explain_says_the_way_to_a_rule_or_what_is_not_met() {
    let program = Program::at("redis://127.0.0.1:1");
    let file = File::new("explain", AUTH);
    let explain = |descriptor: &str, code: i32, said: &[&str]| {
        program
            .run(["rules", "explain", file.path(), "--domain", "auth", "-d", descriptor])
            .assert(code, said);
    };
    explain(
        "auth_type=login,user=ada",
        0,
        &[
            "auth_type=login is met by the value `login` (",
            ":3), which is more specific than the beginning `log*`",
            "user=ada is met by the key without a value",
            "rule auth.auth_type_login.user: token_bucket 2, refilled 2/h",
            "gate auth.auth_type-login.user",
        ],
    );
    explain(
        "auth_type=logout",
        0,
        &["the beginning `log*`", "fixed_window 1 in 86400s by the clock, only watched"],
    );
    explain("auth_type=login,ip=10.0.0.1", 0, &["unlimited"]);
    explain("auth_type=login", 1, &["no `rate_limit` stands here; it can go on with `ip`, `user`"]);
    explain(
        "auth_type=login,ip=11.0.0.1",
        1,
        &["`ip` stands here, but not with `11.0.0.1`: there is `10.*`"],
    );
    explain("auth_tipe=login", 1, &["`auth_tipe` is met by nothing here", "did you mean `auth_type`?"]);
    explain("auth_type=logout,user=ada", 1, &["nothing can follow here"]);
    let args = ["rules", "explain", file.path(), "--domain", "auht", "-d", "a=b"];
    program.run(args).assert(1, &["no file has the domain `auht`", "did you mean `auth`?"]);
    let said = program.json(
        1,
        &["rules", "explain", file.path(), "--domain", "auth", "-d", "auth_type=login,user=ada", "-d", "x=y"],
    );
    assert_eq!(said["descriptors"][0]["rule"]["gate"], "auth.auth_type-login.user");
    assert_eq!(said["descriptors"][0]["way"][1]["line"], 6);
    assert_eq!(
        (&said["descriptors"][1]["rule"], said["descriptors"][1]["why_not"].is_string()),
        (&json!(null), true)
    );
    program.run(["rules", "explain", file.path()]).assert(2, &["--descriptor"]);
    program
        .run(["rules", "explain", file.path(), "--domain", "auth", "-d", "login"])
        .assert(2, &["key=value"]);
}

#[test]
fn explain_makes_descriptors_of_a_request_as_the_file_says() {
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
    logout.assert(1, &["remote_address=2001:db8::/64", "`path` stands here, but not with `/logout`"]);
    assert!(!logout.out.contains("user="), "{}", logout.out);
    explain(&["GET /"]).assert(2, &["add --ip"]);
    explain(&["GET /", "-H", "x-api-key"]).assert(2, &["no header", "x-api-key: k1"]);
    explain(&["GET no uri"]).assert(2, &["no request such as"]);
    explain(&["GET /", "-d", "a=b"]).assert(2, &["cannot be used with"]);
}

#[test]
fn check_asks_what_rules_say_of_a_request_or_of_a_gate() {
    let program = Program::shared();
    let file = File::new("check", AUTH);
    let check = |verb: &str, descriptor: &str, code: i32| {
        program.json(code, &[verb, "--rules", file.path(), "--domain", "auth", "-d", descriptor])
    };
    let login = "auth_type=login,user=ada";
    assert_eq!(check("peek", login, 0)["verdicts"][0]["decision"]["remaining"], 2);
    assert_eq!(check("check", login, 0)["verdicts"][0]["decision"]["remaining"], 1);
    // The same count, by the gate's name.
    let gate = ["check", "ada", "--gate", "auth.auth_type-login.user", "--rules", file.path()];
    assert_eq!(program.json(0, &gate)["remaining"], 0);
    let said = check("check", login, 1);
    assert_eq!(
        (&said["allowed"], &said["verdicts"][0]["rule"]),
        (&json!(false), &json!("auth.auth_type_login.user"))
    );
    assert_eq!(check("check", "auth_type=login,ip=10.1", 0)["verdicts"][0]["outcome"], "unlimited");
    assert_eq!(check("check", "x=y", 0)["verdicts"][0]["outcome"], "no_rule");
    check("check", "auth_type=logout", 0);
    assert_eq!(check("check", "auth_type=logout", 0)["verdicts"][0]["decision"]["shadow"], true);
    let args = ["check", "--rules", file.path(), "--domain", "auth", "-d", login, "-d", "x=y"];
    program
        .run(args)
        .assert(1, &["denied", login, "auth.auth_type_login.user", "retry after", "no rule meets it"]);
    program
        .run(["check", "ada", "--gate", "nothing", "--rules", file.path()])
        .assert(2, &["no rule has the gate"]);
    program.run(["check", "--domain", "auth", "-d", login]).assert(2, &["--rules PATH"]);
}
