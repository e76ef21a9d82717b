//! A take of n equals n takes of one: the same admissions, the same state, and for each caller the decision
//! that a separate call would return. Therefore callers cannot observe that equal checks are merged.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tidegate::reference::Answer;

use crate::support::plan::{self, Action, Call, Family, Group, Plan, Target, Verb, taken};
use crate::support::script::{Held, Left, Observed, TestScripts};

/// Runs the whole plan twice, on separate keys: once unchanged, and once with each take split into takes of
/// one.
fn agree(plan: &Plan, counts_denied: bool, scripts: &mut TestScripts) -> Result<(), TestCaseError> {
    let keys = plan.keys.len();
    // A log that counts denials keeps whole entries, the newest ones with at least the limit. So the units above the
    // limit, and the room below a cap, depend on how checks were merged.
    let is_compared = |call: &Call| !(counts_denied && matches!(call.verb, Verb::ChargeUsed(..)));
    let merged: Vec<Call> = plan.play().into_iter().map(|step| step.call).filter(is_compared).collect();
    let single: Vec<Call> = merged.iter().map(|call| one_by_one(call, keys)).collect();
    let both: Vec<&Call> = merged.iter().zip(&single).flat_map(|(a, b)| [a, b]).collect();
    let observed = scripts.run(2 * keys, both.into_iter());
    let mut has_same_expiry = true;
    for (pair, (merged, single)) in observed.chunks(2).zip(merged.iter().zip(&single)) {
        let [a, b] = pair else { unreachable!("calls come in pairs") };
        let (a, b) = (ok(a)?, ok(b)?);
        let differ = |difference: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
            Err(TestCaseError::fail(format!("{merged:?}: {difference}\nmerged     {a:?}\none by one {b:?}")))
        };
        let (merged_answers, single_answers) = (answers(merged, a), answers(single, b));
        if !counts_denied && merged_answers != single_answers {
            return differ("the answers differ", &merged_answers, &single_answers);
        }
        // If denials count, the retry time of a caller depends on the later checks of the same call.
        let decisions = |answers: &[Answer]| {
            answers.iter().map(|answer| (answer.allowed, answer.remaining)).collect::<Vec<_>>()
        };
        if decisions(&merged_answers) != decisions(&single_answers) {
            return differ("the decisions differ", &merged_answers, &single_answers);
        }
        let (merged_states, single_states) = (final_states(merged, a), final_states(single, b));
        if counts_denied || !has_same_expiry || merged_states == single_states {
            continue;
        }
        // A denial by another version of the quota extends an expiry that is too short after a step back of the
        // clock. The text does not show that: a take of n may stay in the step of the text and keep the longer
        // expiry, where a take of one sets its own. Later, one of the two keys may exist alone.
        has_same_expiry = false;
        if without_expiry(&merged_states) != without_expiry(&single_states) {
            return differ("the states differ", &merged_states, &single_states);
        }
    }
    Ok(())
}

fn ok(observed: &Result<Observed, String>) -> Result<&Observed, TestCaseError> {
    observed.as_ref().map_err(|error| TestCaseError::fail(error.clone()))
}

/// Returns the same call on the second set of keys, with each group split into groups of one check.
fn one_by_one(call: &Call, keys: usize) -> Call {
    let other = |at: Target| Target { key: at.key + keys, ..at };
    let verb = match call.verb.clone() {
        Verb::Take(groups) => Verb::Take(groups.into_iter().flat_map(|group| split(group, keys)).collect()),
        Verb::Penalize(at, units) => Verb::Penalize(other(at), units),
        Verb::ChargeUsed(at, units, most) => Verb::ChargeUsed(other(at), units, most),
        Verb::Refund(at, units, stamp) => Verb::Refund(other(at), units, stamp),
        Verb::Block(at, for_us) => Verb::Block(other(at), for_us),
        Verb::Reset(at) => Verb::Reset(other(at)),
    };
    Call { verb, ..*call }
}

fn split(mut group: Group, keys: usize) -> Vec<Group> {
    for item in &mut group.items {
        item.target.key += keys;
    }
    let one = Group { n: group.n.min(1), ..group.clone() };
    vec![one; group.n.max(1) as usize]
}

/// Returns the answers of each caller, for each item.
fn answers(call: &Call, observed: &Observed) -> Vec<Answer> {
    let Verb::Take(groups) = &call.verb else { return Vec::new() };
    let mut answers = Vec::new();
    for (group, (k, before)) in groups.iter().zip(&observed.outcomes) {
        for caller in 0..group.n.max(1) {
            for (item, before) in group.items.iter().zip(before) {
                answers.push(taken(group, item, *k, *before, call.now_us).answer(caller));
            }
        }
    }
    answers
}

/// The state of one key; for a log, its units by time.
type FinalState = (Left, BTreeMap<u64, u64>);

/// Returns the final state of each key. Several takes in one µs add several entries to a log, which equal
/// one entry with their sum.
fn final_states(call: &Call, observed: &Observed) -> Vec<FinalState> {
    let mut by_key: BTreeMap<usize, FinalState> = BTreeMap::new();
    for (target, left) in call.targets().iter().zip(&observed.left) {
        let mut left = left.clone();
        let mut entries = BTreeMap::new();
        if let Held::Log(log) = &mut left.held {
            for entry in log.drain(..) {
                *entries.entry(entry.at_us).or_default() += entry.units;
            }
        }
        by_key.insert(target.key, (left, entries));
    }
    by_key.into_values().collect()
}

fn without_expiry(states: &[FinalState]) -> Vec<FinalState> {
    let remove = |(left, entries): &FinalState| {
        let expires_ms = left.expires_ms.map(|_| 0);
        (Left { expires_ms, ..left.clone() }, entries.clone())
    };
    states.iter().map(remove).collect()
}

fn assert_equal(plans: impl Strategy<Value = Plan>, counts_denied: bool) {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let scripts = RefCell::new(TestScripts::load(server.url()));
    let config = Config {
        cases: (plan::sequences() / 5).max(1),
        source_file: Some(file!()),
        max_shrink_iters: 5_000,
        ..Config::default()
    };
    let run =
        TestRunner::new(config).run(&plans, |plan| agree(&plan, counts_denied, &mut scripts.borrow_mut()));
    match run {
        Ok(()) => {}
        Err(TestError::Fail(reason, plan)) => panic!("{reason}\n\n{plan:#?}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn for_each_algorithm() {
    let families = Family::ALL.into_iter().filter(|family| *family != Family::CountingLog);
    let plans = proptest::sample::select(families.collect::<Vec<_>>()).prop_flat_map(plan::uniform);
    assert_equal(plans, false);
}

#[test]
fn for_groups() {
    let counts_denied = |plan: &Plan| {
        let mut limits = plan.keys.iter().flatten();
        limits.any(|quota| quota.kind().algorithm().counts_denied())
    };
    let plans = plan::mixed().prop_filter("a log counts denied checks", move |plan| !counts_denied(plan));
    assert_equal(plans, false);
}

/// A call with many denied checks logs at most as many units as can ever deny. Only refunds, which return the
/// oldest units first, and a limit that is raised in place can observe this.
#[test]
fn for_decisions_if_denied_checks_count() {
    let plans = plan::uniform(Family::CountingLog).prop_map(|mut plan| {
        plan.keys.iter_mut().for_each(|limits| limits.truncate(1));
        plan.steps.retain(|step| !matches!(step.action, Action::Refund(..)));
        plan
    });
    assert_equal(plans, true);
}
