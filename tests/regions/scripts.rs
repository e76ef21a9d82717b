//! The scripts of the mode gossip: their texts, and what a hostile peer, corrupt state and a full memory do to them.

use std::time::Duration;

use redis::{Connection, Value};
use tidegate::Quota;
use tidegate::regions::reference::gossip::Gossip;
use tidegate::regions::reference::{Batch, Cursor, Entry, Field, Mode, Taken, Verb};
use tidegate::regions::script::{Applied, Call, Keys, Peer, TakeGroup, TakeItem, Write, all, applied, taken};

use crate::support::script::connect;

const PEER: Peer<'_> = Peer { regions: 2, states: "state:" };
const GATE: &str = "sliding_log,10,60000000,0,0,20,0";

fn gate() -> Gossip {
    Gossip::new(Quota::sliding_log(10, Duration::from_secs(60)), 2).unwrap()
}

fn keys() -> Keys {
    Keys::new("tidegate:1:regions")
}

fn run(connection: &mut Connection, call: &Call) -> redis::RedisResult<Value> {
    let mut command = redis::cmd("EVAL");
    command.arg(call.script.text).arg(call.keys.len()).arg(&call.keys).arg(&call.args);
    command.query(connection)
}

/// Decides groups: `n` checks of all these keys, which have one share.
fn take(
    connection: &mut Connection,
    groups: &[(u64, &[&'static str])],
    cut_us: Option<u64>,
) -> Vec<Result<Vec<Taken>, String>> {
    let gate = gate();
    let item = |key| TakeItem { gate: &gate, key, share: "state:bad", cost: 1, max_delay: None };
    let group = |keys: &[&'static str]| keys.iter().map(|key| item(key)).collect();
    let groups: Vec<TakeGroup<'_>> =
        groups.iter().map(|(n, keys)| TakeGroup { n: *n, items: group(keys) }).collect();
    let mut call = keys().take(&groups, cut_us);
    call.args.push(String::new());
    let reply = run(connection, &call).unwrap();
    taken(&groups, cut_us.is_some(), &reply).unwrap()
}

fn used(connection: &mut Connection, key: &'static str) -> u64 {
    take(connection, &[(0, &[key])], None).remove(0).unwrap().remove(0).before.raw[0]
}

fn charge(key: &str, units: i64) -> (Field, i64) {
    (Field { verb: Verb::Charge, mode: Mode::Gossip(gate()), name: 0, key: key.to_owned() }, units)
}

fn batch(changes: Vec<(Field, i64)>) -> Batch {
    let next = Cursor { position: (7, (1, 0)), began: (0, 0) };
    let entries = vec![Entry { id: (1, 0), changes }];
    Batch { expected: None, next, entries, read_us: u64::MAX >> 12, peer_us: 0, is_complete: true }
}

/// A changed script is a reviewed change.
#[test]
fn digests_of_scripts_of_regions_are_pinned() {
    let digests = all().map(|script| (script.name, script.digest()));
    let pinned = [
        ("regions:take", "a079e2953cd4df1aa1f903a85116f849c28a34a4"),
        ("regions:take:token_bucket", "3dc196de1b03a5272355fb431997051db671b033"),
        ("regions:take:leaky_bucket", "84fa47f6fc1b05d67c1504887ccf2cc33ab7a184"),
        ("regions:take:sliding_log", "0249d306775083b21f9a9f24f5c432f9f3dc5743"),
        ("regions:take:windows", "245f5b308caa566745610b8c8f88dfe6c244cf7e"),
        ("regions:write", "85e174d356c86e08e6206d048d5b581bd7fd7f3a"),
        ("regions:give_back", "0769d77d60b867d0038381ffd7009e7ae44299fa"),
        ("regions:flush", "1cb1b82765e3bfb13608632f61de4b4f700e8635"),
        ("regions:apply", "8d756c6742438cd145ac491b05218f66918e5d0e"),
    ];
    assert_eq!(digests, pinned, "a script changed: review it, then pin the digests on the left");
}

#[test]
fn change_that_a_peer_does_not_write_is_skipped() {
    let field = |verb: &str, gate: &str, name: &str, key: &str| format!("{verb} {gate} {name} {key}");
    let good = field("charge", GATE, "0", "state:a");
    assert_eq!(PEER.change(&good, "3"), Some(charge("state:a", 3)));
    for (bad, amount) in [
        (String::new(), "1"),
        ("charge".to_owned(), "1"),
        (good.clone(), ""),
        (good.clone(), "1e3"),
        (good.clone(), "9223372036854775807"),
        (good.clone(), "-562949953421313"),
        (field("grant", GATE, "0", "state:a"), "1"),
        (field("reset", GATE, "0", "state:a"), "1"),
        (field("block", GATE, "0", "state:a"), "-1"),
        (field("charge", GATE, "-1", "state:a"), "1"),
        (field("charge", GATE, "18446744073709551615", "state:a"), "1"),
        (field("charge", GATE, "0", "tidegate:1:overrides"), "1"),
        (field("charge", "sliding_log,0,60000000,0,0,20,0", "0", "state:a"), "1"),
        (field("charge", "sliding_log,10,60000000,1,0,20,0", "0", "state:a"), "1"),
        (field("charge", "sliding_log,10,60000000,0,0,20,2", "0", "state:a"), "1"),
        (field("charge", "sliding_log,10,60000000,0,0,20", "0", "state:a"), "1"),
        (field("charge", "fixed_window,10,60000000,0,0,20,1", "0", "state:a"), "1"),
        (field("charge", "token_bucket,10,2,60000000,0,20,0", "0", "state:a"), "1"),
        (field("charge", "in_flight,10,0,0,0,20,0", "0", "state:a"), "1"),
        (field("charge", "os.exit,10,60000000,0,0,20,0", "0", "state:a"), "1"),
    ] {
        assert_eq!(PEER.change(&bad, amount), None, "{bad} {amount}");
        let pairs = [(bad.clone(), amount.to_owned()), (good.clone(), "3".to_owned())];
        let (entry, skipped) = PEER.entry("5-0", &pairs).unwrap();
        assert_eq!((entry.changes, skipped), (vec![charge("state:a", 3)], 1), "{bad} {amount}");
    }
}

#[test]
fn key_in_a_state_of_another_writer_fails_alone() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    redis::cmd("SET").arg("state:bad").arg("text").exec(&mut connection).unwrap();
    let batch = batch(vec![charge("state:a", 1), charge("state:bad", 1), charge("state:b", 2)]);
    let reply = run(&mut connection, &keys().apply("us", &batch, 0)).unwrap();
    let Some(Applied::Done(failed)) = applied(&reply) else { panic!("{reply:?}") };
    assert!(matches!(&failed[..], [(2, error)] if error.starts_with("WRONGTYPE")), "{failed:?}");
    assert_eq!([used(&mut connection, "state:a"), used(&mut connection, "state:b")], [1, 2]);
    // The cursor has moved on: the peer's other changes are not held up, and nothing is applied twice.
    let reply = run(&mut connection, &keys().apply("us", &batch, 0)).unwrap();
    assert_eq!(applied(&reply), Some(Applied::Not(Some(batch.next))));
    let groups = take(&mut connection, &[(1, &["state:a", "state:bad"]), (2, &["state:a", "state:b"])], None);
    assert!(
        matches!(&groups[..], [Err(error), Ok(both)] if error.starts_with("2 WRONGTYPE") && both[1].k == 2),
        "{groups:?}"
    );
    let groups = take(&mut connection, &[(1, &["state:a"])], Some(0));
    assert!(matches!(&groups[..], [Err(error)] if error.starts_with("1 WRONGTYPE")), "{groups:?}");
    assert_eq!([used(&mut connection, "state:a"), used(&mut connection, "state:b")], [3, 4]);
}

/// A charge that is not sent would be lost to the peers; a change without its cursor would be applied twice.
#[test]
fn without_memory_nothing_changes_except_by_what_is_given_back() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let mut connection = connect(server.url());
    let penalize = keys().write(&gate(), "state:a", Write::Penalize(5), 1);
    run(&mut connection, &penalize).unwrap();
    run(&mut connection, &keys().flush(128, 60_000_000, 1_000, 1)).unwrap();
    for (setting, value) in [("maxmemory-policy", "noeviction"), ("maxmemory", "1")] {
        redis::cmd("CONFIG").arg("SET").arg(setting).arg(value).exec(&mut connection).unwrap();
    }
    let dump = |connection: &mut Connection| -> Vec<Option<Vec<u8>>> {
        let keys = ["state:a", &*keys().outbox, &*keys().stream, &keys().cursor("us"), &*keys().heard];
        keys.map(|key| redis::cmd("DUMP").arg(key).query(connection).unwrap()).into()
    };
    let before = dump(&mut connection);
    let groups = take(&mut connection, &[(1, &["state:a"])], None);
    assert!(matches!(&groups[..], [Err(error)] if error.starts_with("1 OOM")), "{groups:?}");
    let block = keys().write(&gate(), "state:a", Write::Block(1_000_000), 1);
    let apply = keys().apply("us", &batch(vec![charge("state:a", 1)]), 0);
    for call in [&penalize, &block, &apply] {
        let failed = match run(&mut connection, call) {
            Ok(Value::BulkString(error)) => String::from_utf8(error).unwrap(),
            other => other.unwrap_err().to_string(),
        };
        assert!(failed.contains("OOM"), "{}: {failed}", call.script.name);
    }
    assert_eq!(dump(&mut connection), before);
    run(&mut connection, &keys().write(&gate(), "state:a", Write::Refund(2, None), 1)).unwrap();
    assert_eq!(used(&mut connection, "state:a"), 3);
    run(&mut connection, &keys().write(&gate(), "state:a", Write::Reset, 1)).unwrap();
    assert_eq!(used(&mut connection, "state:a"), 0);
}
