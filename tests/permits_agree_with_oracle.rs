//! The scripts and the reference treat in-flight limits as the oracle defines them. Random histories of processes
//! with an injected clock compare them.

use std::cell::RefCell;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tidegate::{Quota, Rate};

use crate::support::permits::call::Loss;
use crate::support::permits::lua::LuaStore;
use crate::support::permits::memory::Memory;
use crate::support::permits::plan::{Action, Fate, GatePlan, Pause, Plan, ProcessPlan, Shape, Step, Want};
use crate::support::permits::state::Store;
use crate::support::permits::{plan, player};
use crate::support::plan::sequences;

fn assert_agreement(store: impl Store) {
    let config = Config {
        cases: sequences(),
        source_file: Some(file!()),
        max_shrink_iters: 5_000,
        ..Config::default()
    };
    let store = RefCell::new(store);
    let play = |plan: plan::Plan| match player::play(&plan, &mut *store.borrow_mut()) {
        Ok(_) => Ok(()),
        Err(error) => Err(TestCaseError::fail(error)),
    };
    match TestRunner::new(config).run(&plan::plan(), play) {
        Ok(()) => {}
        Err(TestError::Fail(reason, plan)) => panic!("{reason}\n\n{plan:#?}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn scripts() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    assert_agreement(LuaStore::load(server.url(), |text| text));
}

#[test]
fn reference() {
    assert_agreement(Memory::default());
}

/// Random histories rarely lose a key between a message and its repetition.
#[test]
fn repeated_group_counts_units_of_a_key_that_was_lost() {
    agree_with_limits_of(1, |acquire| {
        vec![
            acquire(0, &[Shape::Both], Fate::LostReply),
            Action::Lose(Loss::Key(0)),
            acquire(1, &[Shape::Key(0)], Fate::Answered),
            // The process then believes to hold a unit of each key.
            Action::Repeat(0, Fate::Answered),
            acquire(1, &[Shape::Key(0)], Fate::Answered),
        ]
    });
}

#[test]
fn repeated_call_of_a_new_and_a_repeated_group_counts_both() {
    agree_with_limits_of(2, |acquire| {
        vec![
            acquire(0, &[Shape::Key(0), Shape::Both], Fate::LostReply),
            Action::Lose(Loss::Key(0)),
            acquire(1, &[Shape::Key(0)], Fate::Answered),
            Action::Repeat(0, Fate::Answered),
        ]
    });
}

/// Plays these actions of two processes with two keys of this limit.
fn agree_with_limits_of(limit: u64, actions: impl Fn(fn(u8, &[Shape], Fate) -> Action) -> Vec<Action>) {
    let actions = actions(|process, shapes, fate| {
        let want = |&shape: &Shape| Want { shape, n: 1, cost: 1, released: 0, limit: 0 };
        Action::Acquire(process, shapes.iter().map(want).collect(), fate, None)
    });
    let gate = GatePlan { limits: vec![limit] };
    let plan = Plan {
        gates: [gate.clone(), gate],
        bucket: Quota::token_bucket(1, Rate::per_second(1)),
        processes: vec![ProcessPlan { ttl_us: 10_000_000, restores: true }; 2],
        start_us: 1_577_836_800_000_000,
        steps: actions.into_iter().map(|action| Step { pause: Pause::None, action }).collect(),
    };
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    player::play(&plan, &mut LuaStore::load(server.url(), |text| text)).unwrap();
    player::play(&plan, &mut Memory::default()).unwrap();
}
