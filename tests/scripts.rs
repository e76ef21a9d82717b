//! Tests the promises of each script to the operator of Redis:
//!
//! * The text is the reviewed one.
//! * The script touches only the keys and commands that its header lists.
//! * The work is bounded.
//! * An error of one key fails only the group of that key.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::{Connection, Value};
use tidegate::internals::script::{self as scripts, Script};
use tidegate::{Quota, Rate};

use crate::support::acl;
use crate::support::plan::{Call, Group, Part, Target, Verb};
use crate::support::script::{arguments, connect, test_build};

/// Pins the scripts: a change to a script must be reviewed, and changes this list too.
const DIGESTS: &[(&str, &str)] = &[
    ("take:token_bucket", "3a508c427e0510e1054060b8b34be319c6d94693"),
    ("take:leaky_bucket", "50f0803866b72aea02da1fd5559586ed00cce581"),
    ("take:fixed_window", "8be99e9231098dc66db7dfe7624a8080bd0dd603"),
    ("take:sliding_log", "e2f7274a41d505635b408fb09ceb1b38b51a165e"),
    ("take:sliding_counter", "115d1721e3c6c585d9290f9d41ca532dcb86a26a"),
    ("refund:token_bucket", "8bdbf015aca34a2a2b5e5cd9edc528487dbafe1c"),
    ("refund:leaky_bucket", "e175e4bd973cb6bf95488c6c36af032c2aa8a212"),
    ("refund:fixed_window", "7d249819ff96962f14bf2a888969f9e7d27ba148"),
    ("refund:sliding_log", "74ec8d2fd60135e0af9c6b59ed820c75e1ca9c11"),
    ("refund:sliding_counter", "51f9c16946761cbabf3a565cbba56d9f0fb58f90"),
    ("penalize:token_bucket", "112637ceab3a71c70d73a242ce04fe13017579ea"),
    ("penalize:leaky_bucket", "ae82a87c8dbd18459747f12b361c186f137a38c1"),
    ("penalize:fixed_window", "95eff3834639d45ffbf7b341391bfaf0a9c2a95f"),
    ("penalize:sliding_log", "bbc7c02bf88400e7ba7e7c19c99946c845fce71d"),
    ("penalize:sliding_counter", "55185337a0361d77d7e210357a49a6a0f0982360"),
    ("block:token_bucket", "b3d220a001d33d86bca224870ea53979a6d2f621"),
    ("block:leaky_bucket", "87c33fa38e835edfc6245040689cef437495f8d9"),
    ("block:fixed_window", "5b06756774f6d0841b1683143613a064e55b68f6"),
    ("block:sliding_log", "9b16868ef898dc669cf9c5fee6d4641d26f763a0"),
    ("block:sliding_counter", "6e251d973f540a1dd5b1b3e1ea2dad68b9dee422"),
    ("group", "02cb03371b3396ca1ed614e16528745581694620"),
    ("reset", "e46de8ad281b5b7e11bbfc196935f080da9f576b"),
    ("heartbeat", "cb6e7ff82fb3c3103e17c8c1ebbe8208fbd41656"),
    ("orders", "dcc61e0ddffcbdfc38ebd9e9fb7ccc5d810f271e"),
    ("order", "49db100b53e4809b036a7b7e79f1c37895ccfef8"),
];

#[test]
fn digests_are_pinned() {
    let found: Vec<(&str, &str)> = scripts::all().map(|script| (script.name, script.digest())).collect();
    assert_eq!(found, DIGESTS, "a script changed: review it, then pin the digests on the left");
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

#[test]
fn headers_say_what_each_file_does() {
    const ALGORITHMS: [&str; 5] =
        ["token_bucket", "leaky_bucket", "fixed_window", "sliding_log", "sliding_counter"];
    for (name, text) in files() {
        let header = text.strip_prefix("--[[\n").and_then(|rest| rest.split_once("]]\n"));
        let (header, body) = header.unwrap_or_else(|| panic!("{name}.lua begins with no header"));
        assert!(header.starts_with(&format!("  {name}: ")), "{name}.lua does not begin with its name");
        let sections: &[&str] = match &*name {
            "clock" | "prelude" | "text" | "in_full" => &["Promises"],
            _ if name.starts_with("usual_") => &["Promises"],
            _ if ALGORITHMS.contains(&&*name) => &["KEYS", "ARGV", "State", "Writes"],
            _ => &["KEYS", "ARGV", "Returns", "Writes"],
        };
        for section in sections {
            let stands = header.lines().any(|line| line.trim_start().starts_with(&format!("{section} ")));
            assert!(stands, "the header of {name}.lua does not say {section}");
        }
        // Everything else must be local: a global would outlive the call.
        for line in body.lines().filter(|line| !line.starts_with([' ', '-'])) {
            let word = line.split([' ', '(', '[']).next().unwrap_or_default();
            let is_assigned =
                line.contains(" = ") && !["local", "if", "for", "while", "reply"].contains(&word);
            assert!(!is_assigned && word != "function", "{name}.lua: a global in `{line}`");
        }
        assert!(body.contains("unpack") <= body.contains("unpack(found[i], 1, 10)"), "{name}.lua: unpack");
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
fn only_listed_commands_are_called_on_nothing_but_keys() {
    let mut used = BTreeSet::new();
    for (name, text) in files() {
        let body = text.split_once("]]\n").unwrap().1;
        // `entry(` and `pcall(` only look like `try(` and `call(`.
        let body = body.replace("entry(", "").replace("pcall(", "");
        let any = body.matches("call(").count() + body.matches("try(").count();
        let literal = body.matches("call('").count() + body.matches("try('").count();
        assert_eq!(any, literal, "{name}.lua: a command whose name is not written out");
        for (command, argument) in calls(&body) {
            let is_key =
                matches!(&*argument, "key" | "KEYS[i]") || (command == "TIME" && argument.is_empty());
            assert!(is_key, "{name}.lua: {command} on `{argument}`");
            used.insert(command);
        }
    }
    let listed: BTreeSet<String> = acl::CALLED.iter().map(|&command| command.to_owned()).collect();
    assert_eq!(used, listed, "the list must hold exactly the commands that the scripts call");
}

/// Results of the test build hold for the scripts only if nothing else differs.
#[test]
fn the_test_build_differs_in_time_and_expiry_alone() {
    for script in scripts::all() {
        let (text, replaced) = test_build(script.text);
        let holds = |function: &str| script.text.contains(&format!("local function {function}("));
        let expected = [
            ("TIME", usize::from(script.name != "reset")),
            (
                "PEXPIREAT",
                usize::from(script.name != "reset") + usize::from(holds("usual") && !holds("sliding_log")),
            ),
            ("PEXPIRETIME", if holds("fixed_window") { 1 + usize::from(holds("usual")) } else { 0 }),
            ("PTTL", usize::from(holds("token_bucket"))),
            ("SET", if holds("fixed_window") { 2 } else { 0 }),
            ("UNLINK, in reset", usize::from(script.name == "reset")),
            ("UNLINK", 2 * usize::from(holds("sliding_log")) + usize::from(holds("fixed_window"))),
        ];
        assert_eq!(replaced, expected.map(|(_, count)| count), "{}: {expected:?}", script.name);
        let left = calls(&text).into_iter().find(|(command, _)| {
            ["TIME", "TTL", "EXPIRE", "UNLINK"].iter().any(|word| command.contains(word))
        });
        assert_eq!(left, None, "{} is not held by the test's clock", script.name);
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
    let (is_log, is_count) = (quota.algorithm() == "sliding_log", quota.algorithm() == "fixed_window");
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
        _ => vec![
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
    };
    found.extend(more);
    if is_log { found } else { [found, vec![(vec!["ZADD", "1", "member"], "WRONGTYPE")]].concat() }
}

/// In a batch, and in a group of several items, before and after valid ones.
#[test]
fn what_is_wrong_with_a_key_fails_its_group_alone() {
    let server = harness::Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let good = Quota::token_bucket(9, Rate::per_hour(9));
    for (name, quota) in quotas() {
        for (number, (command, error)) in garbage(&quota).into_iter().enumerate() {
            let keys: Vec<String> = ["bad", "first", "beside", "last"]
                .iter()
                .map(|key| format!("{name}:{number}:{key}"))
                .collect();
            let (verb, args) = command.split_first().unwrap();
            let _: Value = redis::cmd(verb).arg(&keys[0]).arg(args).query(&mut connection).unwrap();
            let before = dump(&mut connection, &keys[..1]);
            let said = |value: &Value| match value {
                Value::BulkString(text) => String::from_utf8(text.clone()).unwrap(),
                other => panic!("{name}: {command:?}: {other:?}"),
            };

            // A bad item and a good one in one group: neither is charged.
            let group = Group { n: 1, items: vec![part(2, good), part(0, quota)] };
            let other_way = Group { n: 1, items: vec![part(0, quota), part(2, good)] };
            let batch = vec![one(1, good), group, other_way, one(3, good)];
            let reply = take(&mut connection, batch, &keys);
            let [Value::Int(-2), _, bad, bad_too, Value::Int(-2), _] = &*reply else {
                panic!("{name}: {command:?}: {reply:?}")
            };
            // Each error names the bad item's index in its group.
            for (reply, place) in [(bad, 2), (bad_too, 1)] {
                let said = said(reply);
                assert!(said.starts_with(&format!("{place} {error}")), "{name}: {command:?}: {said}");
            }
            assert_eq!(dump(&mut connection, &keys[..1]), before, "{name}: {command:?}: written");
            assert_eq!(dump(&mut connection, &keys[2..3]), [None], "{name}: {command:?}: charged beside");

            // The script for one algorithm, and the scripts that only write.
            let reply = take(&mut connection, vec![one(0, quota), one(1, quota)], &keys);
            assert!(said(&reply[0]).starts_with(error), "{name}: {command:?}: {reply:?}");
            let at = Target { key: 0, quota };
            for verb in [
                Verb::Penalize(at, 1),
                Verb::Refund(at, 1, None),
                Verb::Block(at, 1_000_000),
                Verb::Block(at, 0),
            ] {
                let reply = eval(&mut connection, &Call { now_us: 0, verb }, &keys);
                assert!(said(&reply).starts_with(error), "{name}: {command:?}: {reply:?}");
            }
            assert_eq!(dump(&mut connection, &keys[..1]), before, "{name}: {command:?}: written");
        }
    }
}

/// Without free memory, reads succeed, writes fail, and no write is partial.
#[test]
fn out_of_memory_fails_what_writes_alone() {
    let options = ["--maxmemory", "8mb", "--maxmemory-policy", "noeviction"];
    let server = harness::Server::process(&options).unwrap();
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
        let fields = quota.kind().algorithm().fields();
        let failed = &reply[fields];
        let Value::BulkString(said) = failed else { panic!("{name}: {reply:?}") };
        assert!(said.starts_with(b"OOM"), "{name}: {reply:?}");
        assert_eq!(reply.len(), 2 * fields + 1, "{name}: the others are answered: {reply:?}");

        let at = Target { key: names.len() + index, quota };
        for verb in [Verb::Penalize(at, 1), Verb::Refund(at, 1, None), Verb::Block(at, 1_000_000)] {
            let reply = eval(&mut connection, &Call { now_us: 0, verb: verb.clone() }, &keys);
            let Value::BulkString(said) = &reply else { panic!("{name}: {verb:?}: {reply:?}") };
            assert!(said.starts_with(b"OOM"), "{name}: {reply:?}");
        }
    }
    assert_eq!(dump(&mut connection, &keys), before);
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
fn a_log_of_100_000_entries_is_checked_with_few_commands() {
    const ENTRIES: u64 = 100_000;
    let server = harness::Server::process(&[]).unwrap();
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
        let ask = |cost: u64| Verb::Take(vec![Group { n: 1, items: vec![Part { cost, ..part(0, quota) }] }]);
        for verb in [
            ask(1),
            ask(limit),
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
            assert!(!is_admitted || after + 255 == before, "{verb:?} left more stale entries than it has to");
        }
    }
}
