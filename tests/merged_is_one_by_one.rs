//! A take of n equals n takes of one: the same admissions, the same state, and for each caller the decision that a
//! separate call would return. Therefore merging equal checks is not observable.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tidegate::internals::{Answer, Kind};

use crate::support::plan::{self, Action, Call, Family, Group, Plan, Target, Verb, taken};
use crate::support::script::{Held, Left, Observed, TestScripts};

/// Plays the whole plan twice, on separate keys: once unchanged, and once with each take split into takes of one.
fn agree(plan: &Plan, counts_denied: bool, scripts: &mut TestScripts) -> Result<(), TestCaseError> {
    let keys = plan.keys.len();
    let merged: Vec<Call> = plan.play().into_iter().map(|it| it.call).collect();
    let single: Vec<Call> = merged.iter().map(|call| one_by_one(call, keys)).collect();
    let both: Vec<&Call> = merged.iter().zip(&single).flat_map(|(a, b)| [a, b]).collect();
    let observed = scripts.run(2 * keys, both.into_iter());
    for (pair, (merged, single)) in observed.chunks(2).zip(merged.iter().zip(&single)) {
        let [a, b] = pair else { unreachable!("calls come in pairs") };
        let (a, b) = (ok(a)?, ok(b)?);
        let differ = |what: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
            Err(TestCaseError::fail(format!("{merged:?}: {what}\nmerged     {a:?}\none by one {b:?}")))
        };
        let (told, alone) = (answers(merged, a), answers(single, b));
        if !counts_denied && told != alone {
            return differ("the answers differ", &told, &alone);
        }
        // Where denials count, the retry time of a caller depends on the later checks of the same call.
        let decided =
            |answers: &[Answer]| answers.iter().map(|it| (it.allowed, it.remaining)).collect::<Vec<_>>();
        if decided(&told) != decided(&alone) {
            return differ("the decisions differ", &told, &alone);
        }
        let (kept, kept_alone) = (worth(merged, a), worth(single, b));
        if !counts_denied && kept != kept_alone {
            return differ("the states differ", &kept, &kept_alone);
        }
    }
    Ok(())
}

fn ok(observed: &Result<Observed, String>) -> Result<&Observed, TestCaseError> {
    observed.as_ref().map_err(|error| TestCaseError::fail(error.clone()))
}

/// The same call on the second set of keys, with each group split into groups of one check.
fn one_by_one(call: &Call, keys: usize) -> Call {
    let other = |at: Target| Target { key: at.key + keys, ..at };
    let verb = match call.verb.clone() {
        Verb::Take(groups) => Verb::Take(groups.into_iter().flat_map(|group| split(group, keys)).collect()),
        Verb::Penalize(at, units) => Verb::Penalize(other(at), units),
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
type Worth = (Left, BTreeMap<u64, u64>);

/// Returns the final state of each key. Several takes in one µs are several entries of a log, and equal one entry
/// with their sum.
fn worth(call: &Call, observed: &Observed) -> Vec<Worth> {
    let mut by_key: BTreeMap<usize, Worth> = BTreeMap::new();
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

fn hold(plans: impl Strategy<Value = Plan>, counts_denied: bool) {
    let server = harness::Server::process(&[]).unwrap();
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
        Err(TestError::Fail(why, plan)) => panic!("{why}\n\n{plan:#?}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn for_each_algorithm() {
    let families = Family::ALL.into_iter().filter(|family| *family != Family::CountingLog);
    let plans = proptest::sample::select(families.collect::<Vec<_>>()).prop_flat_map(plan::uniform);
    hold(plans, false);
}

#[test]
fn for_groups() {
    let counts_denied = |plan: &Plan| {
        let mut limits = plan.keys.iter().flatten();
        limits.any(|quota| matches!(quota.kind(), Kind::SlidingLog(log) if log.count_denied))
    };
    hold(plan::mixed().prop_filter("see below", move |plan| !counts_denied(plan)), false);
}

/// A call with many denied checks logs at most as many units as can ever deny. Only refunds, which return the
/// oldest units first, and a limit that is raised in place can observe this.
#[test]
fn for_decisions_where_denied_asks_count() {
    let plans = plan::uniform(Family::CountingLog).prop_map(|mut plan| {
        plan.keys.iter_mut().for_each(|limits| limits.truncate(1));
        plan.steps.retain(|step| !matches!(step.action, Action::Refund(..)));
        plan
    });
    hold(plans, true);
}
