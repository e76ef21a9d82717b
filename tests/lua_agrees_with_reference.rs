//! The scripts and the reference in `src/quota/algorithm` return the same decisions, store the same state, and set
//! the same expiries. Random sequences of calls with an injected clock compare the two.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::support::plan::{self, Family, Outcome, Plan};
use crate::support::script::{Left, TestScripts};

/// Runs a plan on both.
///
/// # Errors
///
/// The first difference.
pub(crate) fn agree(plan: &Plan, scripts: &mut TestScripts) -> Result<(), TestCaseError> {
    let played = plan.play();
    let observed = scripts.run(plan.keys.len(), played.iter().map(|step| &step.call));
    for (step, (expected, observed)) in played.iter().zip(&observed).enumerate() {
        let call = &expected.call;
        let differ = |part: &str, reference: &dyn std::fmt::Debug, lua: &dyn std::fmt::Debug| {
            let calls = plan::told(&played[..=step]);
            Err(TestCaseError::fail(format!(
                "{calls}then {part} differs\nreference {reference:?}\nLua       {lua:?}"
            )))
        };
        let observed = match observed {
            Ok(observed) => observed,
            Err(failed) => return differ("the success", &"no error", failed),
        };
        let (now, outcomes) = (call.now_us, &observed.outcomes);
        if without_expired_blocks(&expected.outcomes, now) != without_expired_blocks(outcomes, now) {
            return differ("the reply", &expected.outcomes, outcomes);
        }
        for (index, target) in call.targets().iter().enumerate() {
            let record = Left::of(&expected.records[index], &target.quota, call.now_us);
            let left = &observed.left[index];
            if (&record.held, record.blocked_until_us) != (&left.held, left.blocked_until_us) {
                return differ("the state", &record, left);
            }
            if left.exists && left.expires_ms.is_none() {
                return differ("the existence of an expiry", &record, left);
            }
            if !record.is_untouched() && record.expires_ms != left.expires_ms {
                return differ("the expiry", &record, left);
            }
        }
    }
    Ok(())
}

/// Removes expired blocks, which equal no block.
fn without_expired_blocks(outcomes: &[Outcome], now: u64) -> Vec<Outcome> {
    let mut outcomes = outcomes.to_vec();
    for before in outcomes.iter_mut().flat_map(|(_, before)| before) {
        if before.blocked_until_us <= now {
            before.blocked_until_us = 0;
        }
    }
    outcomes
}

fn check(
    plans: impl Strategy<Value = Plan>,
    scripts: TestScripts,
    config: Config,
) -> Result<(), TestError<Plan>> {
    let scripts = std::cell::RefCell::new(scripts);
    TestRunner::new(config).run(&plans, |plan| agree(&plan, &mut scripts.borrow_mut()))
}

fn config() -> Config {
    Config {
        cases: plan::sequences(),
        source_file: Some(file!()),
        max_shrink_iters: 5_000,
        ..Config::default()
    }
}

/// Each test has its own server, so that tests do not wait for one another.
fn assert_agreement(plans: impl Strategy<Value = Plan>) {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let scripts = TestScripts::load(server.url());
    match check(plans, scripts, config()) {
        Ok(()) => {}
        Err(TestError::Fail(reason, plan)) => panic!("{reason}\n\n{plan:#?}"),
        Err(error) => panic!("{error}"),
    }
}

crate::support::held_for_each_family!(assert_agreement);

#[test]
fn debts_above_every_limit() {
    assert_agreement(plan::indebted(&Family::ALL));
}

#[test]
fn groups_of_all_algorithms() {
    assert_agreement(plan::mixed());
}
