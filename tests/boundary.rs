//! The times in a decision are exact to 1 µs: a check passes after `retry_after`, and is denied 1 µs earlier;
//! after `reset_after` the key equals an untouched key, and 1 µs earlier it does not.

use std::cell::RefCell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use tidegate::reference::Answer;
use tidegate::{Decision, Error, Gate, Limiter, ManualClock};

use crate::support::plan::{self, Call, Family, Group, Part, Plan, Reference, Target, Verb, taken};
use crate::support::script::TestScripts;

const US: Duration = Duration::from_micros(1);

fn check_property(family: Family, property: impl Fn(&Plan, u64) -> Result<(), TestCaseError>) {
    let config = ProptestConfig {
        cases: (plan::sequences() / 5).max(1),
        source_file: Some(file!()),
        max_shrink_iters: 5_000,
        ..ProptestConfig::default()
    };
    // The cost of the last check: one unit, a few, or the full limit.
    let costs = prop_oneof![Just(1), 2..=5u64, Just(u64::MAX)];
    match TestRunner::new(config).run(&(plan::uniform(family), costs), |(plan, cost)| property(&plan, cost)) {
        Ok(()) => {}
        Err(TestError::Fail(why, value)) => panic!("{why}\n\n{value:#?}"),
        Err(error) => panic!("{error}"),
    }
}

/// Checks with the full limit as cost, then with `cost`. The second check is denied if the first one
/// is admitted. Then checks at each time that the answers report.
#[test]
fn decision_times_are_exact_in_the_scripts() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let scripts = RefCell::new(TestScripts::load(server.url()));
    for family in Family::ALL {
        check_property(family, |plan, cost| check_scripts(plan, cost, &mut scripts.borrow_mut()));
    }
}

fn check_scripts(plan: &Plan, cost: u64, scripts: &mut TestScripts) -> Result<(), TestCaseError> {
    let target = Target { key: 0, quota: plan.keys[0][0] };
    let limit = target.quota.limit();
    let cost = cost.min(limit);
    let mut calls: Vec<Call> = plan.play().into_iter().map(|played| played.call).collect();
    let mut reference = Reference::new(plan.keys.len());
    for call in &calls {
        reference.call(call);
    }
    let mut now = calls.last().map_or(plan.start_us, |call| call.now_us);
    // The reference selects the times of the checks; the assertions apply to the answers of the scripts.
    let mut check = |n: u64, cost: u64, now: u64| {
        let items = vec![Part { target, cost, max_delay: None }];
        let call = Call { now_us: now, verb: Verb::Take(vec![Group { n, items }]) };
        let outcome = reference.call(&call).remove(0);
        let answer = answer(&call, &outcome);
        calls.push(call);
        answer
    };
    check(1, limit, now);
    let denied = check(1, cost, now);
    if !denied.allowed {
        check(0, cost, now + denied.retry_after_us - 1);
        now += denied.retry_after_us;
        check(1, cost, now);
    } else {
        check(0, cost, now);
        check(1, 1, now);
    }
    let last = check(0, 1, now);
    check(0, 1, now + last.reset_after_us.saturating_sub(1));
    check(0, 1, now + last.reset_after_us);

    let observed = scripts.run(plan.keys.len(), calls.iter());
    let start = calls.len() - 7;
    let answers: Vec<Answer> = calls[start..]
        .iter()
        .zip(&observed[start..])
        .map(|(call, observed)| match observed {
            Ok(observed) => Ok(answer(call, &observed.outcomes[0])),
            Err(failed) => Err(TestCaseError::fail(failed.clone())),
        })
        .collect::<Result<_, _>>()?;
    let [_, first, before_retry, at_retry, now, before_reset, at_reset] = answers[..] else { unreachable!() };
    if !first.allowed {
        prop_assert!(!before_retry.allowed, "1 µs early: {first:?} {before_retry:?}");
        prop_assert!(at_retry.allowed, "in time: {first:?} {at_retry:?}");
    }
    prop_assert_eq!(before_reset.reset_after_us, now.reset_after_us.min(1));
    prop_assert!(now.reset_after_us == 0 || before_reset.remaining < limit, "{:?}", before_reset);
    prop_assert_eq!((at_reset.reset_after_us, at_reset.remaining), (0, limit));
    Ok(())
}

fn answer(call: &Call, (k, before): &plan::Outcome) -> Answer {
    let Verb::Take(groups) = &call.verb else { unreachable!("all calls here are takes") };
    taken(&groups[0], &groups[0].items[0], *k, before[0], call.now_us).answer(0)
}

/// The same test through the public API.
#[test]
fn decision_times_are_exact_in_memory() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for family in Family::ALL {
        check_property(family, |plan, cost| {
            let result = runtime.block_on(check_in_memory(plan, cost));
            result.map_err(|error| TestCaseError::fail(error.to_string()))?
        });
    }
}

async fn check_in_memory(plan: &Plan, cost: u64) -> Result<Result<(), TestCaseError>, Error> {
    let clock = ManualClock::new();
    let limiter = Limiter::in_memory_with(clock.clone());
    for played in plan.play() {
        clock.set(Duration::from_micros(played.call.now_us));
        repeat(&limiter, &played.call).await?;
    }
    let quota = plan.keys[0][0];
    let limit = quota.limit();
    let cost = cost.min(limit);
    let gate = limiter.gate("gate", quota);
    let check = async |cost| gate.check_cost("0", cost).await;
    // Advances the clock only by times that decisions returned.
    let at = async |now: Duration, cost: u64| {
        clock.set(now);
        check(cost).await
    };
    let _ = check(limit).await?;
    let denied: Decision = check(cost).await?;
    let mut now = clock.now();
    if !denied.is_allowed() {
        // Where denied checks count, only a peek leaves the state unchanged; a peek has a cost of one unit.
        let counts_denied = quota.kind().algorithm().counts_denied();
        if !counts_denied || cost == 1 {
            let early = at(now + denied.retry_after() - US, if counts_denied { 0 } else { cost }).await?;
            if early.is_allowed() {
                return Ok(Err(TestCaseError::fail(format!("1 µs early: {denied:?} {early:?}"))));
            }
        }
        now += denied.retry_after();
        let in_time = at(now, cost).await?;
        if !in_time.is_allowed() {
            return Ok(Err(TestCaseError::fail(format!("in time: {denied:?} {in_time:?}"))));
        }
    }
    let last = at(now, 0).await?;
    if !last.reset_after().is_zero() {
        let early = at(now + last.reset_after() - US, 0).await?;
        if early.reset_after() != US || early.remaining() == limit {
            return Ok(Err(TestCaseError::fail(format!("1 µs before the reset: {last:?} {early:?}"))));
        }
    }
    let reset = at(now + last.reset_after(), 0).await?;
    if !reset.reset_after().is_zero() || reset.remaining() != limit {
        return Ok(Err(TestCaseError::fail(format!("at the reset: {last:?} {reset:?}"))));
    }
    Ok(Ok(()))
}

/// Makes the call of a plan through the public API.
async fn repeat(limiter: &Limiter, call: &Call) -> Result<(), Error> {
    let gate = |at: &Target| -> (Gate, String) { (limiter.gate("gate", at.quota), at.key.to_string()) };
    match &call.verb {
        Verb::Take(groups) => {
            for group in groups {
                for _ in 0..group.n.min(3) {
                    let item = &group.items[0];
                    let (gate, key) = gate(&item.target);
                    let _ = gate.check_cost(&key, item.cost).await?;
                }
            }
        }
        Verb::Penalize(at, units) => gate(at).0.penalize(gate(at).1, *units).await?,
        Verb::ChargeUsed(at, units, _) => {
            let _ = gate(at).0.charge_used(true).check_cost(gate(at).1, *units).await?;
        }
        Verb::Refund(at, units, _) => gate(at).0.refund(gate(at).1, *units).await?,
        Verb::Block(at, 0) => gate(at).0.unblock(gate(at).1).await?,
        Verb::Block(at, for_us) => gate(at).0.block(gate(at).1, Duration::from_micros(*for_us)).await?,
        Verb::Reset(at) => gate(at).0.reset(gate(at).1).await?,
    }
    Ok(())
}
