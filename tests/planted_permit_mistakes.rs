//! Tests the property that compares the scripts of in-flight limits with their definition: each mistake planted in
//! the Lua makes it fail. Rules that the fast path repeats have a mistake in each path.

use std::cell::RefCell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tidegate::algorithm::all_scripts;

use crate::support::permits::lua::LuaStore;
use crate::support::permits::{plan, player};
use crate::support::plan::is_long_run;

/// A text in a script, and the wrong text that replaces it.
type Mistake = (&'static str, &'static str);

/// Enough to find a mistake that is observable once in some hundred thousand calls.
const SEQUENCES: u32 = 4_000;

/// A short run plants the first mistake of each test, and every fifth after it.
const SAMPLE: usize = 5;

fn assert_all_found(mistakes: &[Mistake]) {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    assert_eq!(first_failure(server.url(), None, SEQUENCES / 40), None, "unmodified scripts fail");
    let planted = mistakes.iter().step_by(if is_long_run() { 1 } else { SAMPLE });
    let missed = planted.filter(|&&mistake| first_failure(server.url(), Some(mistake), SEQUENCES).is_none());
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "not found: {missed:#?}");
}

/// Returns the first failure, if any. Every run uses the same histories.
fn first_failure(url: &str, mistake: Option<Mistake>, sequences: u32) -> Option<String> {
    let (right, wrong) = mistake.unwrap_or_default();
    assert!(all_scripts().any(|script| script.text.contains(right)), "no script contains `{right}`");
    let change = |text: String| if right.is_empty() { text } else { text.replace(right, wrong) };
    let store = RefCell::new(LuaStore::load(url, change));
    let config =
        Config { cases: sequences, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let run = TestRunner::new_with_rng(config, rng).run(&plan::plan(), |plan| {
        player::play(&plan, &mut *store.borrow_mut()).map(drop).map_err(TestCaseError::fail)
    });
    run.err().map(|error| error.to_string())
}

#[test]
fn lapsed_holders() {
    assert_all_found(&[
        // Units of lapsed holders count, or a lease lasts 1 µs too long.
        ("if other > 0 then", "if true then"),
        ("if not ends or ends <= now then return 0 end", "if not ends or ends < now then return 0 end"),
        // The stored sum is used at or after the end of a lease, or when it is older than a step back.
        ("if sure <= now or sure > now + ttl then", "if sure < now or sure > now + ttl then"),
        ("if sure <= now or sure > now + ttl then", "if sure > now + ttl then"),
        ("if sure <= now or sure > now + ttl then", "if sure <= now then"),
        (
            "local is_sure = known > now and known <= latest",
            "local is_sure = known >= now and known <= latest",
        ),
        ("local is_sure = known > now and known <= latest", "local is_sure = known <= latest"),
        ("local is_sure = known > now and known <= latest", "local is_sure = known > now"),
        ("if held ~= own then return end", ""),
        // Another holder lapses before `sure until`.
        ("math.min(sure, other)", "other"),
        ("elseif lapse < sure then", "elseif false then"),
        ("sure = known < lapse and known or lapse", "sure = known"),
        // A lapsed holder keeps its lease or its entry, or leaves its units in the sum.
        ("      call('ZREM', holders, unpack(lapsed, first, last))\n", ""),
        ("      call('HDEL', key, unpack(lapsed, first, last))\n", ""),
        ("      call('ZREM', holders, name)\n", ""),
        ("math.max(0, held - own)", "held"),
        ("or lapsed or is_old", "or is_old"),
        // A message is processed after the end of the lease that its sender knew.
        ("elseif known_end + 0 <= now then", "elseif false then"),
        ("if not ttl or argv[2] + 0 <= now then return end", "if not ttl then return end"),
    ]);
}

#[test]
fn messages() {
    assert_all_found(&[
        // A message that arrives after a newer one is processed.
        ("if number and sent < number then error('STALE message', 0) end", ""),
        ("last + 0 >= number + 0 then return end", "last + 0 == number + 0 then return end"),
        ("(#last ~= #number or last >= number) and last + 0 >= number + 0", "last >= number"),
        // A repeated message gets another decision, or charges the other gates of its group again.
        ("local is_repeated = number == sent", "local is_repeated = false"),
        ("room = own - keep", "room = own"),
        ("if not repeated or has_message[it[1]] then", "if true then"),
        // Units that the sender no longer holds still count.
        ("held = held - own + keep\n    local k = n", "held = held + keep\n    local k = n"),
        ("held = held - own + keep\n    local admitted", "held = held + keep\n    local admitted"),
        // A denial forgets the release in the same message, or stores its number.
        ("if k > 0 or units ~= own then", "if k > 0 then"),
        ("if k > 0 or units ~= own then", "if true then"),
        ("local is_changed = k > 0 or units ~= own", "local is_changed = k > 0"),
        ("local is_changed = k > 0 or units ~= own", "local is_changed = true"),
    ]);
}

#[test]
fn shared_messages() {
    assert_all_found(&[
        // A group keeps nothing, or what the message kept, instead of the units that the group before it has left.
        ("keep = keep == '' and own or keep + 0", "keep = keep == '' and 0 or keep + 0"),
        ("(keep == '' and own or keep) + k * cost", "(keep == '' and 0 or keep) + k * cost"),
    ]);
}

#[test]
fn late_calls() {
    assert_all_found(&[
        // A message is processed after its callers have given it up: also if its sender has forgotten the key, and
        // the entry is gone whose number would refuse the message.
        ("if bound ~= '' and now >= bound + 0 then return", "if false then return"),
        ("now >= bound + 0 then return 'LATE '", "now > bound + 0 then return 'LATE '"),
        // A call of which the bound is not known is refused.
        ("if bound ~= '' and now >= bound + 0 then", "if bound == '' or now >= bound + 0 then"),
    ]);
}

#[test]
fn counts() {
    assert_all_found(&[
        // One unit too many.
        ("math.floor((limit - held) / cost)", "math.floor((limit - held + 1) / cost)"),
        ("held + n * cost > limit then", "held + n * cost > limit + 1 then"),
        ("if cost > 0 and n * cost > room then", "if cost > 0 and n * cost > room + 1 then"),
        ("math.floor(room / cost))", "math.ceil(room / cost))"),
        // Merged acquires count once. Units that the sender keeps are lost.
        ("local after = held + k * cost", "local after = held + cost"),
        ("local units = keep + k * cost", "local units = keep + cost"),
        ("local units = ARGV[message + 1] + k * cost", "local units = k * cost"),
    ]);
}

#[test]
fn leaks() {
    assert_all_found(&[
        // An entry without units or a key without units is left.
        (
            "          call('HDEL', key, name)\n        end\n        if not at",
            "        end\n        if not at",
        ),
        ("if units == 0 and own > 0 then call('HDEL', key, name) end", ""),
        ("if text then call('UNLINK', key) end", ""),
        ("if at then call('UNLINK', key) end", ""),
        // A key has no expiry, or too early a one, or is not kept longer by a later write.
        ("call('PEXPIREAT', key, expiry)", ""),
        ("quarter + 4500000000", "quarter + 3600000000"),
        ("if not at or at < quarter then", "if not at then"),
        ("expire(key, quarter + QUARTER + KEPT, blocked)", "expire(key, quarter + KEPT, blocked)"),
        ("if is_block or not at or quarter > at then", "if is_block or not at then"),
    ]);
}

#[test]
fn blocks() {
    assert_all_found(&[
        // A blocked key admits. A block is kept after its end, or lost with the last unit.
        ("elseif blocked <= now then\n      room", "else\n      room"),
        ("if blocked > now then text = text .. BLOCKED", "if blocked > 0 then text = text .. BLOCKED"),
        ("if held == 0 and blocked <= now then\n      if at", "if held == 0 then\n      if at"),
    ]);
}

#[test]
fn groups() {
    assert_all_found(&[
        // A group admits as many as its last gate, or a gate as many as it alone allows although the group is
        // denied.
        ("    k = math.min(k, found[i][3])", "    k = found[i][3]"),
        ("KEYS[first + i], n, it[3], k, it[2]", "KEYS[first + i], n, it[3], it[3], it[2]"),
        ("  k = repeated or k\n", ""),
    ]);
}

#[test]
fn leases() {
    assert_all_found(&[
        // A lapsed lease is renewed, also 1 µs too late, or stays and could be revived.
        ("local is_live = old_end and old_end + 0 > now", "local is_live = old_end"),
        ("old_end + 0 > now", "old_end + 0 >= now"),
        ("call('ZREMRANGEBYSCORE', key, '-inf', stamp)", ""),
        (
            "call('ZREMRANGEBYSCORE', key, '-inf', stamp)",
            "call('ZREMRANGEBYSCORE', key, '-inf', '(' .. stamp)",
        ),
        // After a step back, a lease is not shortened, or shortened to the ttl of another holder.
        ("if late[i + 1] + 0 > latest then", "if false then"),
        ("local latest = latest_end(late[i]) or now", "local latest = new_end"),
        // An ended lease stays. The leases have no expiry, or too early a one.
        (
            "if action == 'end' then return call('ZREM', key, name) end",
            "if action == 'end' then return 0 end",
        ),
        ("  expire(key, now + KEPT, 0)\n", ""),
        ("  expire(key, now + KEPT, 0)\n", "  expire(key, now + KEPT / 4, 0)\n"),
    ]);
}
