//! Each mistake planted in the script of bans is found.

use std::cell::RefCell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use tidegate::algorithm::BAN;

use crate::support::bans::plan::plans;
use crate::support::bans::player::run;
use crate::support::bans::scripts::BanScripts;
use crate::support::plan::is_long_run;

/// Enough to find a mistake that is observable once in some ten thousand calls.
const SEQUENCES: u32 = 2_000;

/// A short run plants every so many mistakes.
const SAMPLE: usize = 3;

/// A text in `ban`, and the wrong text that replaces it.
type Mistake = (&'static str, &'static str);

const MISTAKES: &[Mistake] = &[
    // The ban begins one denial early, or late, or with each denial.
    ("if count + denied >= ban.after then", "if count + denied > ban.after then"),
    ("if count + denied >= ban.after then", "if count + denied + 1 >= ban.after then"),
    ("if count + denied >= ban.after then", "if denied >= ban.after then"),
    // The count does not expire, expires 1 ms early or late, or each denial moves its expiry.
    ("    call('PEXPIREAT', key, format(WHOLE, ends))\n", ""),
    ("math.ceil((now + within) / 1000)", "math.floor((now + within) / 1000)"),
    ("math.ceil((now + within) / 1000)", "math.ceil((now + within) / 1000) + 1"),
    ("math.min(ends, latest), ends", "latest, ends"),
    // After a step back of the clock, it expires later than it would from now.
    ("math.min(ends, latest), ends", "ends, ends"),
    // It counts for less than 1 ms after its end.
    ("if ends >= 0 and ends * 1000 <= now then return 0, latest end", ""),
    ("ends * 1000 <= now", "ends * 1000 < now"),
    // It stays after the ban has begun.
    ("    call('UNLINK', key)\n    return true", "    return true"),
    // Denials by a block are counted.
    ("own == k and blocked <= now then", "own == k then"),
    // An expired block keeps denials from being counted.
    ("own == k and blocked <= now then", "own == k and blocked == 0 then"),
    // Denials of a neighbor are counted, or admitted checks.
    ("denied > 0 and own == k and", "denied > 0 and"),
    ("local denied = n - k", "local denied = n"),
    ("local denied = n - k", "local denied = math.min(n - k, 1)"),
    // A partial grant counts as n denials, although it granted some, or for nothing.
    ("if is_grant then denied =", "if false then denied ="),
    ("k == 0 and math.min(n, 1) or 0", "math.min(n, 1)"),
    ("k == 0 and math.min(n, 1) or 0", "0"),
    ("math.min(n, 1) or 0", "1 or 0"),
    // The block is 1 µs short, lasts for the other time, or loses the usage.
    ("block(quota, state, now + ban.lasts)", "block(quota, state, now + ban.lasts - 1)"),
    ("block(quota, state, now + ban.lasts)", "block(quota, state, now + ban.within)"),
    (
        "quota.charge(key, 1, 1, 0, 1, ends, true, a, b, c)",
        "quota.charge(key, 1, 1, 0, 1, ends, true, 0, b, c)",
    ),
    // A log is blocked without its member.
    ("if quota.is_log then call", "if false then call"),
    // The reply leaves the ban out.
    ("if is_done and begins then", "if is_done and begins and i > 1 then"),
    // The count is that of another item.
    (
        "KEYS[next_key], next_key + 1\n    end",
        "KEYS[next_key], next_key + 1\n      count_keys[i] = count_keys[1] or count_keys[i]\n    end",
    ),
];

/// Returns the first failure, if any, and the number of calls until then. Every run uses the same sequences.
fn first_failure(url: &str, mistake: Option<Mistake>, sequences: u32) -> (Option<String>, usize) {
    let change = |text: &str| match mistake {
        Some((right, wrong)) => {
            assert!(text.contains(right), "the script does not contain `{right}`");
            text.replace(right, wrong)
        }
        None => text.to_owned(),
    };
    let scripts = RefCell::new(BanScripts::load(url, change));
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

#[test]
fn each_mistake_in_the_script_of_bans_is_found() {
    assert!(MISTAKES.iter().all(|(right, _)| BAN.text.contains(right)));
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let (failure, _) = first_failure(server.url(), None, SEQUENCES / 20);
    assert_eq!(failure, None, "the unmodified script fails");
    for &mistake in MISTAKES.iter().step_by(if is_long_run() { 1 } else { SAMPLE }) {
        let (failure, calls) = first_failure(server.url(), Some(mistake), SEQUENCES);
        assert!(failure.is_some(), "not found in {calls} calls: {mistake:?}");
    }
}
