//! Each mistake planted in the scripts of reservations is found.

use std::cell::RefCell;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tidegate::algorithm::all_scripts;

use super::promise::{acts, obeys};
use crate::support::holds::plan::plans;
use crate::support::holds::player::run;
use crate::support::holds::scripts::HoldScripts;
use crate::support::plan::{Family, is_long_run};

/// Enough to find a mistake that is observable once in some ten thousand calls.
const SEQUENCES: u32 = 2_000;

/// A short run plants every so many mistakes.
const SAMPLE: usize = 4;

/// A text in `reserve` or `settle`, and the wrong text that replaces it.
type Mistake = (&'static str, &'static str);

/// Returns the first failure, if any, and the number of calls until then. Every run uses the same sequences.
fn first_failure(url: &str, mistakes: &[Mistake], sequences: u32) -> (Option<String>, usize) {
    for (right, _) in mistakes {
        let mut texts = all_scripts().filter(|script| ["reserve", "settle"].contains(&script.name));
        assert!(texts.any(|script| script.text.contains(right)), "neither script contains `{right}`");
    }
    let plant = |text: String, (right, wrong): &Mistake| text.replace(right, wrong);
    let change = |text: &str| mistakes.iter().fold(text.to_owned(), plant);
    let scripts = RefCell::new(HoldScripts::load(url, change));
    let calls = RefCell::new(0);
    let config =
        Config { cases: sequences, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let outcome = TestRunner::new_with_rng(config, rng).run(&plans(), |plan| {
        let mut scripts = scripts.borrow_mut();
        scripts.start(&plan.quotas);
        *calls.borrow_mut() += plan.steps.len();
        run(&plan, &mut *scripts).map_err(TestCaseError::fail)?;
        Ok(())
    });
    (outcome.err().map(|error| error.to_string()), calls.into_inner())
}

fn assert_all_found(mistakes: &[Mistake]) {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let (failure, _) = first_failure(server.url(), &[], SEQUENCES / 20);
    assert_eq!(failure, None, "unmodified scripts fail");
    for &mistake in mistakes.iter().step_by(if is_long_run() { 1 } else { SAMPLE }) {
        let (failure, calls) = first_failure(server.url(), &[mistake], SEQUENCES);
        assert!(failure.is_some(), "not found in {calls} calls: {mistake:?}");
    }
}

#[test]
fn ends_of_holds() {
    assert_all_found(&[
        // A hold ends 1 µs late, is settled or repeated 1 µs longer, or does not end before a settle or a take.
        ("'-inf', stamp, 'WITHSCORES'", "'-inf', '(' .. stamp, 'WITHSCORES'"),
        ("if ends > now then return ends end", "if ends >= now then return ends end"),
        ("  finish_ended(quota, state, key)\n  local ends = live", "  local ends = live"),
        (
            "finish_ended(quota, state, key)\n      if",
            "if id ~= '' then finish_ended(quota, state, key) end\n      if",
        ),
        // Its units are refunded although they stay charged, or the reverse.
        ("what == 'back' and units or 0", "units"),
        ("what == 'back' and units or 0", "0"),
        // They are refunded without the stamp, with that of the end, or again and again.
        ("stamp_of(quota, at, b, d)", "nil"),
        (
            "replace(quota, state, key, member, returned, ends - ttl, name",
            "replace(quota, state, key, member, returned, ends, name",
        ),
        ("  call('ZREM', key, member)\n", ""),
        // `late` is forgotten, does not end, ends 1 µs late, or is written although it has ended.
        ("if what == 'late' then", "if what ~= 'back' then"),
        ("if what == 'late' then", "if false then"),
        ("if late then call('ZADD', key, late_until, late) end", ""),
        ("name .. 'late', format(WHOLE, ends + ttl)", "name .. 'late', format(WHOLE, ends + ttl + 1)"),
        ("elseif ends + ttl <= now then", "elseif false then"),
        // A call ends one hold less, one more, or all; or one less of a later key.
        ("MIN_ENDED = 64, 3", "MIN_ENDED = 63, 3"),
        ("MIN_ENDED = 64, 3", "MIN_ENDED = 64, 2"),
        ("    ended = ended + 1\n", ""),
    ]);
}

#[test]
fn charges_of_holds() {
    assert_all_found(&[
        // A denied group holds, or an item that charges nothing.
        ("if members[i] and k > 0 then hold", "if members[i] then hold"),
        ("if id ~= '' and cost > 0 then", "if id ~= '' then"),
        // A repeated reservation is charged again, or denied.
        ("if live_until(quota, state, key, member) then", "if false then"),
        ("if checks == n then k = math.min", "if true then k = math.min"),
        // A group admits as many as its last item allows.
        ("k = math.min(k, found[i][3])", "k = found[i][3]"),
        // A hold ends 1 µs early.
        ("what, format(WHOLE, now + ttl)", "what, format(WHOLE, now + ttl - 1)"),
        // It ends with another hold of the same call.
        ("if quota.ttl ~= ttl or quota.what ~= what then", "if quota.what ~= what then"),
        // The charge is taken for one of an earlier window, or of the same one.
        ("begins = begins - begins % 1000\n", "begins = begins - begins % 1000 - 1000\n"),
        (" / 1000) >= ends and", " / 1000) > ends and"),
        ("and math.ceil((begins + window) / 1000) >= ends", ""),
    ]);
}

#[test]
fn settles() {
    assert_all_found(&[
        // A settle refunds the units that were used, or those charged since, or charges no debt.
        ("units - actual, ends - ARGV", "units, ends - ARGV"),
        ("units - actual, ends - ARGV[arg + 3])", "units - actual, ends)"),
        ("elseif units < 0 then", "elseif false then"),
        // A late commit is free, refused, charges kept units again, or refunds them.
        ("math.min(0, kept - actual)", "0"),
        ("if live_until(quota, state, key, name .. 'late')", "if false"),
        ("what == 'keep' and units or 0", "0"),
        ("math.min(0, kept - actual)", "kept - actual"),
    ]);
}

#[test]
fn expiries_of_holds() {
    assert_all_found(&[
        // The set expires before a late commit, or before a refund.
        ("life(quota)) or 2 * ttl", "life(quota)) or ttl"),
        ("math.max(2 * ttl, life(quota))", "2 * ttl"),
        ("math.max(2 * ttl, life(quota))", "life(quota)"),
        ("return 2 * window end", "return window end"),
        ("math.ceil((needed + -needed % step) / 1000)", "math.floor((needed - needed % step) / 1000)"),
        // A shorter hold shortens the life of a longer one. Or none has an expiry.
        ("if call('PEXPIRETIME', key) < quota.expires then", "if true then"),
        ("if quota.ttl ~= ttl or quota.what ~= what then", "if quota.ttl ~= ttl then"),
        ("then call('PEXPIREAT', key, format(WHOLE, quota.expires)) end", "then end"),
    ]);
}

/// The ledger alone, which knows only the replies, finds the mistakes that admit too much.
#[test]
fn promise() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    for (right, wrong) in [
        ("stamp_of(quota, at, b, d)", "nil"),
        ("  call('ZREM', key, member)\n", ""),
        ("units - actual", "units"),
    ] {
        let mut scripts = HoldScripts::load(server.url(), |text| text.replace(right, wrong));
        let mut rng =
            TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let is_found = (0..SEQUENCES).any(|_| {
            let acts = acts(Family::TokenBucket).new_tree(&mut rng).unwrap().current();
            scripts.start(&[acts.quota]);
            obeys(&acts, &mut scripts).is_err()
        });
        assert!(is_found, "not found: `{wrong}`");
    }
}
