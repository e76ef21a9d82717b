//! Tests these guarantees of each script to the operator of Redis:
//!
//! * Its text is the reviewed one.
//! * The script touches only the keys and commands that its header lists.
//! * The work is bounded.
//! * An error of one key fails only the group of that key.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
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
    ("take:token_bucket", "bef85035b9c4e4bd8509dbb8f619303edf58dc9d"),
    ("take:leaky_bucket", "7360e5b7b639983d06202c88a351a320cc2dcbe7"),
    ("take:fixed_window", "3fd1690a7e6579c5b2e6fb2c5df9b2d0148db65b"),
    ("take:sliding_log", "7a890960cb7f5f32d4e00fc3cadc12a36e444e41"),
    ("take:sliding_counter", "cc7f171bd9e966aef9c7dcf65907db78b3bebebe"),
    ("acquire", "283782ecb5b5392fc79a26d684c47dd6c3705c3d"),
    ("refund:token_bucket", "3eaf7c135453c4d31b62f1889a0d181c5cf7b51f"),
    ("refund:leaky_bucket", "7672b5a068a56f3e8f64e03a3c37a1ea01e216fc"),
    ("refund:fixed_window", "a87bb2d9f251269f4e1358cdd10c8892fb649046"),
    ("refund:sliding_log", "3d0bc2f86e420a13eb6b2ca2297d5be273391e62"),
    ("refund:sliding_counter", "6531e7260d8876e0992e621a7a228df9ce6ef4e0"),
    ("penalize:token_bucket", "695ea55de268bb9baf8aae8f34364fcc7372ad8a"),
    ("penalize:leaky_bucket", "67a4eeaf0c9d0d17a953390b1ccc63353714db49"),
    ("penalize:fixed_window", "8db64c2d30d9fd466d44459c69bb161dfb8845b2"),
    ("penalize:sliding_log", "fc18c22c8a2cd7f5cbe0ea880eaf2b143bce6d85"),
    ("penalize:sliding_counter", "14ff8d9854f6c2beb2448794b5e9915b29f4663b"),
    ("charge_used:token_bucket", "17cdbc6213bc38059151640de3b5a545b0a9b899"),
    ("charge_used:leaky_bucket", "fbf2792b0754d2486374992e2f9d76776e94d169"),
    ("charge_used:fixed_window", "8d517cbb0400d72eb36d45a6af8202f848aaef6a"),
    ("charge_used:sliding_log", "4ae966e4809823bbcc57685b450b015320e8f44b"),
    ("charge_used:sliding_counter", "58345e5d74c2b0f140117f2d62eca39e07771125"),
    ("block:token_bucket", "679d22f6e1c73a9bf7086428385071adcdce42f0"),
    ("block:leaky_bucket", "0f145d3171e4c2d4e252a0af675a813c7c2b575e"),
    ("block:fixed_window", "c0704c3ebc558c2d7fad1e6acd7dbbc0dedc624e"),
    ("block:sliding_log", "8699f764ad9c916c802cd76bd4daeb4aae3ef97a"),
    ("block:sliding_counter", "f8de9b791fd7133847a12850d8c61bf87505c6a6"),
    ("block:in_flight", "3c1625c1bba70983b3c2b67f628cff631f1438b0"),
    ("report", "a1b9b53f177dd070639434776de84ad1da4aa5ba"),
    ("group", "e1d729fe4e6e6c90397d0df0eeeec7e3eeaa0843"),
    ("acquire_all", "ad9f15120de5b12dca7e2e5880bc15920b412141"),
    ("permit_lease", "d5f834aac443ef29ac9172a9270d5aeb449bb085"),
    ("releases", "adcae66ec099ec94239cae59ea1895ba3a7b51c5"),
    ("adapt", "04d64cc404ec716b0a5fd5f28e654da78dd2c6d0"),
    ("reserve", "188c60c86971f9ba06525252632e9c748f417a73"),
    ("settle", "cb2eb3ebb44bc3ec205ddc3050fc843dd576aace"),
    ("ban", "0d33d664e96db32dcf98444d7882c7965df9297f"),
    ("reset", "50d0b6896e7753deb964a64935a156ec3478f0e4"),
    ("heartbeat", "0f5a5a74096ea400104307e53552335d68c02c69"),
    ("publish", "2ed601b3889321acf274f598dfa10e584e346194"),
    ("overrides", "9df6acd40f9d2c81e9c5596b805b54031e5e157e"),
    ("override", "68007aed1315ef643e04119bdcb31ee985105260"),
    ("take:fixed_window@span", "282fabd850c6550acac68163bc83ad5a89ee7c35"),
    ("refund:fixed_window@span", "2f22b2fc7de004c04ef7419af7ec5b1d7f8470b5"),
    ("penalize:fixed_window@span", "2fe47f47200b0c6c90914e21cc749e9c2fa538dc"),
    ("charge_used:fixed_window@span", "5aa3a67780fd82204483ee144d39be3f260b1767"),
    ("block:fixed_window@span", "cb76e5b2b74ab006991b8271933d288bbd565895"),
    ("group@span", "bc008fbef5571f9550a49a45af33bdf5c7053f74"),
    ("acquire_all@span", "c73a744285f2a156e0e6ed253756476a5898a44a"),
    ("reserve@span", "9223555011a65d42c3f691695856eb00b5ad552a"),
    ("settle@span", "b2115975f713b57cf910770ab45f02228e132433"),
    ("ban@span", "cab107005a624158fae7effeb99d11fd8ed6ba2b"),
];

#[test]
fn digests_are_pinned() {
    let digests: Vec<(&str, &str)> = all_scripts().map(|script| (script.name, script.digest())).collect();
    assert_eq!(digests, DIGESTS, "a script changed: review it, then pin the digests on the left");
}

/// Returns each file below `lua`, by its name without the extension.
fn files() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut files: Vec<(String, String)> = paths_below(&folder)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn paths_below(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { paths_below(&path) } else { vec![path] }).collect()
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
            "now" | "prelude" | "hash_state" | "holds" | "outbox" | "stream" | "changes" | "share" => {
                &["Defines"]
            }
            _ if name.starts_with("fast_") || name.starts_with("slow_") => &["Defines"],
            _ if NAMES.contains(&&*name) || name == "windows" => &["KEYS", "ARGV", "State", "Writes"],
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
            // A flush moves at most 128 changes.
            let of_regions = ["changes)", "fields)"];
            let is_chunk = list.contains(", first, last)");
            assert!(
                is_chunk || bounds.iter().chain(&of_regions).any(|bound| list.starts_with(bound)),
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
                || matches!(&*argument, "outbox" | "counts" | "stream" | "epoch" | "cursor" | "heard")
                || (command == "TIME" && argument.is_empty());
            assert!(is_key, "{name}.lua: {command} on `{argument}`, which is not a key");
            used.insert(command);
        }
    }
    let listed = acl::CALLED.iter().chain(&acl::CALLED_BY_REGIONS);
    let listed: BTreeSet<String> = listed.map(|&command| command.to_owned()).collect();
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
                Verb::ChargeUsed(at, 1, 10),
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
    expected.extend(["report", "permit_lease", "releases", "settle"].map(str::to_owned));
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
            Verb::ChargeUsed(at, 5, 2 * limit),
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
