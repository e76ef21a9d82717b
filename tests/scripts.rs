//! Tests these guarantees of each script to the operator of Redis:
//!
//! * Its text is the reviewed one.
//! * The script touches only the keys and commands that its header lists.
//! * The work is bounded.
//! * An error of one key fails only the group of that key.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::{Connection, Value};
use tidegate::algorithm::{NAMES, Storage, all_scripts};
use tidegate::script::Script;
use tidegate::{Quota, Rate};

use crate::support::acl;
use crate::support::plan::{Call, Group, Part, Target, Verb};
use crate::support::script::{arguments, connect, test_build};

/// Pins the scripts: a change to a script also changes this list, so it is reviewed.
const DIGESTS: &[(&str, &str)] = &[
    ("take:token_bucket", "1e9969412d4806acc3c3c9901849cc0f89ada7c7"),
    ("take:leaky_bucket", "4d31043b6a0e2fbf6e9bebebb96d2423d31a0a69"),
    ("take:fixed_window", "09851f6829f63360f2f3945af174d6c82446a96b"),
    ("take:sliding_log", "1b31b3931996df0c1ef8cb2a819dde1c88cd9a34"),
    ("take:sliding_counter", "7838c6ee3672cf9b7b022d965795a0887e76eadc"),
    ("acquire", "0e55b4ecfaa2875a84a93f1243ee86cb684a0546"),
    ("refund:token_bucket", "992b3d764e3f81183a4ba85cfd3c88506ebeea52"),
    ("refund:leaky_bucket", "0f770d8ae27a8ca3fc2cf6910b6eb51a9badc13f"),
    ("refund:fixed_window", "159255599022305df336d0a7436dc4794583b38b"),
    ("refund:sliding_log", "103a2625754b19fdfa86b264f07aee7ec71e0553"),
    ("refund:sliding_counter", "1f62fa2117ea319ec98cf3ae6a6c2612120c19eb"),
    ("penalize:token_bucket", "f56286a99151cfc126e49deab306868328aabe30"),
    ("penalize:leaky_bucket", "aab839811859b92ce3ba510754004bf93be1f773"),
    ("penalize:fixed_window", "a58f67dfe9525f2d7fcf903f30005fe0402b4e6f"),
    ("penalize:sliding_log", "6004066a917b0f774b111a0be650087a1e7c1845"),
    ("penalize:sliding_counter", "88881ddfe9a125f21002ca3e41eab0f43867a814"),
    ("block:token_bucket", "b06de474d003071f4da2a69392b9730d79b78ea9"),
    ("block:leaky_bucket", "2401b90b1040abf7be2ba42be601ca67e74add4b"),
    ("block:fixed_window", "8cea7567f8a3a6693bf9d776370a5b385efe49ed"),
    ("block:sliding_log", "a94f933a22799054b3c89ab4064311b88920fea1"),
    ("block:sliding_counter", "fa6f098345af38e9ddff05b83577c0bdfa09a122"),
    ("block:in_flight", "e93a0d419a99623a2b22f81f6a27ec93001bb33f"),
    ("group", "7215723b172964c269ea2c6af5281223fc497d09"),
    ("acquire_all", "fba506203f5d43288fbf0118e2816c9888b613aa"),
    ("permit_lease", "bab43e851ad2ae5c4e1a6f47df33d0f5810ea489"),
    ("adapt", "b1282750c89b5eafe97702cb792851aff38cd360"),
    ("reserve", "e521d9791b02f89d7599e1fa2a1fcbf827d69996"),
    ("settle", "4540a839d377e7c366006c71b66617fd9461e3a4"),
    ("ban", "1863fe621aa7126f12e65fc6133bef045a68e8da"),
    ("reset", "50d0b6896e7753deb964a64935a156ec3478f0e4"),
    ("heartbeat", "9aab087af92944096f8676b42f58e38cc723b34a"),
    ("publish", "fe678d41059ab0bdf433914f6efbb2aeffd053a7"),
    ("overrides", "e08d3e20131cec113a763ec2f5d7ec9bef32fab8"),
    ("override", "812e63ce2aa1919a16dc0d1fb30903c43c22ef88"),
    ("take:fixed_window@span", "8889a4f4ea1ab218b03212431798e4ff0ba5d74a"),
    ("refund:fixed_window@span", "6b539c1652efb83ec5f1ee648a4cff8f574fb3d0"),
    ("penalize:fixed_window@span", "002ac9fc3ac18c9083fa7dc9fae9a19cfc212803"),
    ("block:fixed_window@span", "540107bf7dece191acd523bdd4091da11af90575"),
    ("group@span", "222e8eb00d4c7357f15b35eea46f6d041cc68b5d"),
    ("acquire_all@span", "dff034b264b536fad5148d058da70c2994eccb3d"),
    ("reserve@span", "c298a14d267b0627a6bdbaf2816b783609f01431"),
    ("settle@span", "9e82ed520c4e4c55cd8cbdf347bf1f0a1a52083b"),
    ("ban@span", "daf9dd61a2015d162c19a33866328095060badff"),
];

#[test]
fn digests_are_pinned() {
    let digests: Vec<(&str, &str)> = all_scripts().map(|script| (script.name, script.digest())).collect();
    assert_eq!(digests, DIGESTS, "a script changed: review it, then pin the digests on the left");
}

/// Returns each file in `lua`, by its name without the extension.
fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut files: Vec<(String, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// A give-back or a settle is right whenever it arrives.
#[test]
fn scripts_that_admit_refuse_a_late_call_before_they_read_an_argument() {
    let server = tidegate_testkit::shared();
    let mut connection = connect(server.url());
    for script in all_scripts() {
        let verb = script.name.split([':', '@']).next().unwrap();
        let admits = ["take", "acquire", "report", "group", "acquire_all", "reserve", "ban"].contains(&verb);
        assert_eq!(script.is_bounded, admits, "{}", script.name);
        if admits {
            let mut late = redis::cmd("EVAL");
            let reply: String = late.arg(script.text).arg(0).arg("1").query(&mut connection).unwrap();
            assert!(reply.strip_prefix("LATE ").is_some_and(|now| now.parse::<u64>().is_ok()), "{reply}");
        }
    }
}

#[test]
fn each_file_has_a_complete_header_and_no_globals() {
    for (name, text) in files() {
        let header = text.strip_prefix("--[[\n").and_then(|rest| rest.split_once("]]\n"));
        let (header, body) = header.unwrap_or_else(|| panic!("{name}.lua does not begin with a header"));
        assert!(header.starts_with(&format!("  {name}: ")), "{name}.lua does not begin with its name");
        let sections: &[&str] = match &*name {
            "now" | "prelude" | "hash_state" | "holds" => &["Defines"],
            _ if name.starts_with("fast_") || name.starts_with("slow_") => &["Defines"],
            _ if NAMES.contains(&&*name) => &["KEYS", "ARGV", "State", "Writes"],
            _ => &["KEYS", "ARGV", "Returns", "Writes"],
        };
        for section in sections {
            let is_present = header.lines().any(|line| line.trim_start().starts_with(&format!("{section} ")));
            assert!(is_present, "the header of {name}.lua has no section {section}");
        }
        // Everything else must be local: a global would outlive the call.
        for line in body.lines().filter(|line| !line.starts_with([' ', '-'])) {
            let word = line.split([' ', '(', '[']).next().unwrap_or_default();
            let is_assigned =
                line.contains(" = ") && !["local", "if", "for", "while", "reply"].contains(&word);
            assert!(!is_assigned && word != "function", "{name}.lua: a global in `{line}`");
        }
        // Lua's stack ends at 8,000 values.
        for list in body.split("unpack(").skip(1) {
            // The fields of an adaptive limit are 14.
            // An instance publishes at most 130 fields at once.
            let bounds =
                ["found[i], 1, 10)", "counts[i], 1, 8)", "it, 4, 16)", "FIELDS)", "written)", "names)"];
            let is_chunk = list.contains(", first, last)");
            assert!(
                is_chunk || bounds.iter().any(|bound| list.starts_with(bound)),
                "{name}.lua: unpack({list}"
            );
        }
    }
}

/// Returns the command and the first argument of each call in a text.
fn calls(text: &str) -> Vec<(String, String)> {
    let starts = ["call('", "try('"];
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
        for start in starts {
            for rest in line.split(start).skip(1) {
                let (command, rest) = rest.split_once('\'').unwrap();
                let argument = rest.trim_start_matches(", ").split([',', ')']).next().unwrap();
                found.push((command.to_owned(), argument.to_owned()));
            }
        }
    }
    found
}

#[test]
fn scripts_call_only_listed_commands_and_only_on_their_keys() {
    let mut used = BTreeSet::new();
    for (name, text) in files() {
        let body = text.split_once("]]\n").unwrap().1;
        // `entry(` and `pcall(` only look like `try(` and `call(`.
        let body = body.replace("entry(", "").replace("pcall(", "");
        let any = body.matches("call(").count() + body.matches("try(").count();
        let literal = body.matches("call('").count() + body.matches("try('").count();
        assert_eq!(any, literal, "{name}.lua: a command whose name is not a literal");
        for (command, argument) in calls(&body) {
            let is_key = matches!(&*argument, "key" | "KEYS[i]" | "holders" | "records")
                || (command == "TIME" && argument.is_empty());
            assert!(is_key, "{name}.lua: {command} on `{argument}`, which is not a key");
            used.insert(command);
        }
    }
    let listed: BTreeSet<String> = acl::CALLED.iter().map(|&command| command.to_owned()).collect();
    assert_eq!(used, listed, "the list must hold exactly the commands that the scripts call");
}

/// Results of the test build apply to the scripts only if nothing else differs.
#[test]
fn test_build_differs_only_in_time_and_expiry() {
    for script in all_scripts() {
        let (text, replaced) = test_build(script.text);
        let has = |function: &str| script.text.contains(&format!("local function {function}("));
        let is_acquire = ["acquire", "report"].contains(&script.name);
        let expected = [
            ("TIME", usize::from(script.name != "reset")),
            (
                "PEXPIREAT",
                usize::from(script.name != "reset")
                    + usize::from(has("fast_path") && !has("sliding_log"))
                    + usize::from(has("hold"))
                    + usize::from(has("read_count")),
            ),
            (
                "PEXPIRETIME",
                usize::from(has("fixed_window"))
                    + usize::from(has("fixed_window") && has("fast_path"))
                    + usize::from(has("hold"))
                    + usize::from(has("read_count")),
            ),
            ("PTTL", usize::from(has("token_bucket"))),
            ("SET", 2 * usize::from(has("fixed_window")) + usize::from(has("read_count"))),
            ("UNLINK, in reset", usize::from(script.name == "reset")),
            (
                "UNLINK",
                2 * usize::from(has("sliding_log"))
                    + usize::from(has("fixed_window"))
                    + usize::from(has("read_count"))
                    + 3 * usize::from(has("in_flight"))
                    + usize::from(is_acquire),
            ),
        ];
        assert_eq!(replaced, expected.map(|(_, count)| count), "{}: {expected:?}", script.name);
        let left = calls(&text).into_iter().find(|(command, _)| {
            ["TIME", "TTL", "EXPIRE", "UNLINK"].iter().any(|word| command.contains(word))
        });
        assert_eq!(left, None, "{} uses a clock or an expiry that the test does not control", script.name);
    }
}

/// Returns one quota of each algorithm, 3 per hour.
fn quotas() -> Vec<(&'static str, Quota)> {
    let hour = Duration::from_secs(3_600);
    vec![
        ("token_bucket", Quota::token_bucket(3, Rate::per_hour(3))),
        ("leaky_bucket", Quota::leaky_bucket(3, Rate::per_hour(3))),
        ("fixed_window", Quota::fixed_window(3, hour)),
        ("clock_window", Quota::fixed_window(3, hour * 24 * 365).aligned_to_clock()),
        ("sliding_log", Quota::sliding_log(3, hour)),
        ("counting_log", Quota::sliding_log(3, hour).count_denied()),
        ("sliding_counter", Quota::sliding_counter(3, hour)),
    ]
}

fn part(key: usize, quota: Quota) -> Part {
    Part { target: Target { key, quota }, cost: 1, max_delay: None }
}

fn one(key: usize, quota: Quota) -> Group {
    Group { n: 1, items: vec![part(key, quota)] }
}

/// Runs an unmodified take, and returns the flat reply without `now`.
fn take(connection: &mut Connection, groups: Vec<Group>, keys: &[String]) -> Vec<Value> {
    let call = Call { now_us: 0, verb: Verb::Take(groups) };
    let Value::Array(mut reply) = eval(connection, &call, keys) else { panic!("no array") };
    reply.remove(0);
    reply
}

fn eval(connection: &mut Connection, call: &Call, keys: &[String]) -> Value {
    let (script, named, args): (&Script, _, _) = arguments(call, keys);
    redis::cmd("EVAL").arg(script.text).arg(named.len()).arg(named).arg(args).query(connection).unwrap()
}

fn dump(connection: &mut Connection, keys: &[String]) -> Vec<Option<Vec<u8>>> {
    let dump = |key: &String| redis::cmd("DUMP").arg(key).query(connection).unwrap();
    keys.iter().map(dump).collect()
}

/// Texts that resemble a level but are invalid.
const NO_LEVELS: [&str; 25] = [
    "1",
    "1/1",
    "1/1 at 1",
    "1/1 of 1, 1/us at",
    "/1 of 1, 1/us at 1",
    "1/ of 1, 1/us at 1",
    "1/0 of 1, 1/us at 1",
    "0/0 of 1, 1/us at 1",
    "1/9007199254740994 of 1, 1/us at 1",
    "1/1 of , 1/us at 1",
    "-1/1 of 1, 1/us at 1",
    "1/1 of 1, 1/us at -1",
    "1.5/1 of 1, 1/us at 1",
    "9007199254740994/1 of 1, 1/us at 1",
    "1/1 of 1, 1/us at 9007199254740994",
    "1/1 of 1, 1/us at 1 blocked until ",
    "1/1 of 1, 1/us at 1 blocked until 9007199254740994",
    // Invalid variants of the level that the quota of `quotas` would write.
    "/1200000000 of 3, 1/us at 1763680460000000",
    "x/1200000000 of 3, 1/us at 1763680460000000",
    "-1/1200000000 of 3, 1/us at 1763680460000000",
    "1.5/1200000000 of 3, 1/us at 1763680460000000",
    "9007199254740994/1200000000 of 3, 1/us at 1763680460000000",
    "1/1200000000 of 3, 1/us at 1763680460000.00x",
    "1/1200000000 of 3, 1/us at -763680460000000",
    "1/1200000000 of 3, 1/us at 17636804600000.5",
];

/// Texts that resemble a window's count but are invalid.
const NO_WINDOWS: [&str; 26] = [
    "1.5",
    "+1",
    " 1",
    "1 ",
    "01",
    "00",
    "0x10",
    "1e3",
    "9007199254740994",
    "99999999999999999999",
    "1 since 1763680460000000",
    "1 until 1763680460000000",
    "1 until",
    "1 until ",
    " until 1 blocked until 1",
    "x until 1 blocked until 1",
    "-1 until 1 blocked until 1",
    "1.5 until 1763680460000000 blocked until 1",
    "1e300 until 1763680460000000 blocked until 1",
    "1 until -1 blocked until 1",
    "1 until -763680460000000 blocked until 1",
    "1 until 1763680460000000.5 blocked until 1",
    "1 until 1763680460000000 1",
    "1 until 1 blocked until ",
    "1 until 1 blocked until 9007199254740994",
    "1 until 9007199254740994 blocked until 1",
];

/// Texts that resemble a sliding counter's state but are invalid.
const NO_COUNTERS: [&str; 11] = [
    "1",
    "1 since 1",
    "1+ since 1",
    "+1 since 1",
    "1+1 since ",
    "-1+1 since 1",
    "1+-1 since 1",
    "1.5+1 since 1",
    "1+1e300 since 1",
    "1+1 since 1 blocked until ",
    "1+1 since 1 blocked until 9007199254740994",
];

/// Returns commands that store invalid state at a key, each with the error that a script must return.
fn garbage(quota: &Quota) -> Vec<(Vec<&'static str>, &'static str)> {
    let mut found = vec![(vec!["RPUSH", "an", "item"], "WRONGTYPE")];
    let storage = quota.kind().definition().storage;
    let (is_log, is_count) = (storage == Storage::Log, storage == Storage::Count);
    found.push((if is_count { vec!["HSET", "used", "1"] } else { vec!["SET", "text"] }, "WRONGTYPE"));
    let text = |text: &'static str| match is_count {
        true => (vec!["SET", text], "STATE value"),
        false => (vec!["HSET", "used", text], "STATE used"),
    };
    for value in ["", "x", "-1", "1e300", "nan", "inf"] {
        found.push(if is_log {
            (vec!["ZADD", "9007199254740991", value], "STATE member")
        } else {
            text(value)
        });
    }
    let texts = |texts: &[&'static str]| texts.iter().copied().map(text).collect();
    let more: Vec<_> = match quota.algorithm() {
        "token_bucket" | "leaky_bucket" => texts(&NO_LEVELS),
        "fixed_window" => texts(&NO_WINDOWS),
        "sliding_counter" => texts(&NO_COUNTERS),
        "sliding_log" => vec![
            (vec!["ZADD", "-1", "0000000000000001:1"], "STATE score"),
            (vec!["ZADD", "1.5", "0000000000000001:1"], "STATE score"),
            (vec!["ZADD", "inf", "block"], "STATE block"),
            (vec!["ZADD", "9007199254740990", "0000000000000001:2"], "STATE member"),
            // After the clock was stepped back, the next write needs the entries with a future date.
            (
                vec!["ZADD", "9007199254740989", "junk", "9007199254740990", "0000000000000001:1"],
                "STATE member",
            ),
        ],
        other => panic!("add invalid texts of {other}"),
    };
    found.extend(more);
    if is_log { found } else { [found, vec![(vec!["ZADD", "1", "member"], "WRONGTYPE")]].concat() }
}

/// The invalid key is in a batch, and in a group of several items, before and after valid keys.
#[test]
fn corrupt_key_fails_only_its_group() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let good = Quota::token_bucket(9, Rate::per_hour(9));
    for (name, quota) in quotas() {
        for (number, (command, error)) in garbage(&quota).into_iter().enumerate() {
            let keys: Vec<String> =
                ["bad", "first", "good", "last"].iter().map(|key| format!("{name}:{number}:{key}")).collect();
            let (verb, args) = command.split_first().unwrap();
            let _: Value = redis::cmd(verb).arg(&keys[0]).arg(args).query(&mut connection).unwrap();
            let before = dump(&mut connection, &keys[..1]);
            let error_of = |value: &Value| match value {
                Value::BulkString(text) => String::from_utf8(text.clone()).unwrap(),
                other => panic!("{name}: {command:?}: {other:?}"),
            };

            // A bad item and a good one in one group: neither is charged.
            let bad_last = Group { n: 1, items: vec![part(2, good), part(0, quota)] };
            let bad_first = Group { n: 1, items: vec![part(0, quota), part(2, good)] };
            let batch = vec![one(1, good), bad_last, bad_first, one(3, good)];
            let reply = take(&mut connection, batch, &keys);
            let [Value::Int(-2), _, first_error, second_error, Value::Int(-2), _] = &*reply else {
                panic!("{name}: {command:?}: {reply:?}")
            };
            // Each error names the bad item's index in its group.
            for (reply, item) in [(first_error, 2), (second_error, 1)] {
                let message = error_of(reply);
                assert!(message.starts_with(&format!("{item} {error}")), "{name}: {command:?}: {message}");
            }
            assert_eq!(dump(&mut connection, &keys[..1]), before, "{name}: {command:?}: written");
            assert_eq!(dump(&mut connection, &keys[2..3]), [None], "{name}: {command:?}: charged");

            // The script for one algorithm, and the scripts that only write.
            let reply = take(&mut connection, vec![one(0, quota), one(1, quota)], &keys);
            assert!(error_of(&reply[0]).starts_with(error), "{name}: {command:?}: {reply:?}");
            let at = Target { key: 0, quota };
            for verb in [
                Verb::Penalize(at, 1),
                Verb::Refund(at, 1, None),
                Verb::Block(at, 1_000_000),
                Verb::Block(at, 0),
            ] {
                let reply = eval(&mut connection, &Call { now_us: 0, verb }, &keys);
                assert!(error_of(&reply).starts_with(error), "{name}: {command:?}: {reply:?}");
            }
            assert_eq!(dump(&mut connection, &keys[..1]), before, "{name}: {command:?}: written");
        }
    }
}

/// Of these scripts, each call writes or fails.
#[test]
fn scripts_that_free_memory_run_without_free_memory() {
    let flagged = all_scripts().filter(|script| script.text.starts_with("#!lua flags=allow-oom\n"));
    let names: Vec<&str> = flagged.map(|script| script.name.trim_end_matches("@span")).collect();
    let refunds = NAMES.iter().filter(|name| **name != "in_flight").map(|name| format!("refund:{name}"));
    let mut expected: Vec<String> = refunds.collect();
    expected.extend(["report", "permit_lease", "settle"].map(str::to_owned));
    #[cfg(feature = "calendar")]
    expected.extend(["refund:fixed_window", "settle"].map(str::to_owned));
    assert_eq!(names, expected);
    let text = |name: &str| all_scripts().find(|script| script.name == name).unwrap().text;
    assert_eq!(text("report").split_once('\n').unwrap().1, text("acquire"));
}

/// Without free memory, reads and refunds succeed, other writes fail, and no write is partial.
#[test]
fn out_of_memory_fails_only_charges() {
    let options = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"];
    let server = tidegate_testkit::Server::process(&options).unwrap();
    let mut connection = connect(server.url());
    let names: Vec<String> = quotas().iter().map(|(name, _)| (*name).to_owned()).collect();
    let full: Vec<String> = names.iter().map(|name| format!("{name}:full")).collect();
    for (key, (_, quota)) in quotas().into_iter().enumerate() {
        let at = Target { key, quota };
        eval(&mut connection, &Call { now_us: 0, verb: Verb::Penalize(at, 3) }, &full);
    }
    let mut text = "x".repeat(100_000);
    for number in 0.. {
        let set = redis::cmd("SET").arg(format!("fill:{number}")).arg(&text).exec(&mut connection);
        if set.is_err() {
            if text.len() < 64 {
                break;
            }
            text.truncate(text.len() / 2);
        }
    }
    let keys = [names.clone(), full].concat();
    let before = dump(&mut connection, &keys);
    for (index, (name, quota)) in quotas().into_iter().enumerate() {
        let peek = Group { n: 0, ..one(index, quota) };
        let denied = Group { n: 0, ..one(names.len() + index, quota) };
        let reply = take(&mut connection, vec![peek, one(index, quota), denied], &keys);
        let fields = quota.kind().definition().fields;
        let failed = &reply[fields];
        let Value::BulkString(error) = failed else { panic!("{name}: {reply:?}") };
        assert!(error.starts_with(b"OOM"), "{name}: {reply:?}");
        assert_eq!(reply.len(), 2 * fields + 1, "{name}: not all other keys have a row: {reply:?}");

        let at = Target { key: names.len() + index, quota };
        for verb in [Verb::Penalize(at, 1), Verb::Block(at, 1_000_000)] {
            let reply = eval(&mut connection, &Call { now_us: 0, verb: verb.clone() }, &keys);
            let Value::BulkString(error) = &reply else { panic!("{name}: {verb:?}: {reply:?}") };
            assert!(error.starts_with(b"OOM"), "{name}: {reply:?}");
        }
    }
    assert_eq!(dump(&mut connection, &keys), before);
    for (index, (name, quota)) in quotas().into_iter().enumerate() {
        let at = Target { key: names.len() + index, quota };
        let reply = eval(&mut connection, &Call { now_us: 0, verb: Verb::Refund(at, 1, None) }, &keys);
        assert!(matches!(reply, Value::Int(_)), "{name}: {reply:?}");
        let peek = take(&mut connection, vec![Group { n: 1, ..one(names.len() + index, quota) }], &keys);
        assert!(
            matches!(&peek[..], [Value::BulkString(error)] if error.starts_with(b"OOM")),
            "{name}: {peek:?}"
        );
    }
}

/// Returns the number of commands that scripts called since the last reset of the statistics.
fn commands_called(connection: &mut Connection) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let of_scripts = |line: &&str| {
        ["cmdstat_z", "cmdstat_h", "cmdstat_p", "cmdstat_time", "cmdstat_unlink"]
            .iter()
            .any(|name| line.starts_with(name))
    };
    let calls = |line: &str| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
    stats.lines().filter(of_scripts).filter_map(calls).sum()
}

/// No call reads or writes a whole log, however long it is.
#[test]
fn log_of_100_000_entries_is_checked_with_few_commands() {
    const ENTRIES: u64 = 100_000;
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let hour_us = 3_600_000_000u64;
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    let now = seconds * 1_000_000;
    // The older half of the entries has left the window.
    let score = |number: u64| now - 2 * hour_us + number * (2 * hour_us / ENTRIES);
    let fill = |connection: &mut Connection, key: &str| {
        let mut pipe = redis::pipe();
        for number in 0..ENTRIES {
            let member = format!("{:016}:1", number + 1);
            pipe.cmd("ZADD").arg(key).arg(score(number)).arg(member).ignore();
        }
        pipe.exec(connection).unwrap();
    };
    let length = |connection: &mut Connection, key: &str| -> u64 {
        redis::cmd("ZCARD").arg(key).query(connection).unwrap()
    };
    let limit = ENTRIES / 2 + 10;
    for quota in [
        Quota::sliding_log(limit, Duration::from_secs(3_600)),
        Quota::sliding_log(limit, Duration::from_secs(3_600)).count_denied(),
    ] {
        let keys = ["log".to_owned()];
        let at = Target { key: 0, quota };
        redis::cmd("DEL").arg(&keys).exec(&mut connection).unwrap();
        fill(&mut connection, "log");
        let check =
            |cost: u64| Verb::Take(vec![Group { n: 1, items: vec![Part { cost, ..part(0, quota) }] }]);
        for verb in [
            check(1),
            check(limit),
            Verb::Penalize(at, 5),
            Verb::Refund(at, 3, None),
            Verb::Block(at, 1_000_000),
            Verb::Block(at, 0),
        ] {
            let before = length(&mut connection, "log");
            redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).unwrap();
            eval(&mut connection, &Call { now_us: 0, verb: verb.clone() }, &keys);
            let called = commands_called(&mut connection);
            // Two binary searches among 10^5 entries take 34 commands.
            assert!((1..=50).contains(&called), "{verb:?} called {called} commands");
            let after = length(&mut connection, "log");
            assert!(after + 256 >= before, "{verb:?} removed {} entries", before - after);
            let is_admitted = matches!(&verb, Verb::Take(groups) if groups[0].items[0].cost == 1);
            assert!(!is_admitted || after + 255 == before, "{verb:?} left removable stale entries");
        }
    }
}
