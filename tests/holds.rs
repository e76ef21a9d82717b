//! Reservations do what their definition says: on the scripts, and in the reference.

mod planted_mistakes;
mod promise;

use std::cell::RefCell;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::support::holds::plan::{Plan, plans};
use crate::support::holds::player::run;
use crate::support::holds::reference::HoldReference;
use crate::support::holds::scripts::HoldScripts;
use crate::support::plan::sequences;

fn config() -> Config {
    Config { cases: sequences(), source_file: Some(file!()), max_shrink_iters: 3_000, ..Config::default() }
}

/// Runs random sequences, and prints the number of their calls.
fn assert_agreement(run: impl Fn(&Plan) -> Result<usize, String>) {
    let calls = RefCell::new(0);
    let agree = |plan: Plan| {
        *calls.borrow_mut() += run(&plan).map_err(TestCaseError::fail)?;
        Ok(())
    };
    match TestRunner::new(config()).run(&plans(), agree) {
        Ok(()) => eprintln!("{} sequences, {} calls", sequences(), calls.borrow()),
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn scripts_agree_with_definition() {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let scripts = RefCell::new(HoldScripts::load(server.url(), str::to_owned));
    assert_agreement(|plan| {
        let mut scripts = scripts.borrow_mut();
        scripts.start(&plan.quotas);
        run(plan, &mut *scripts)
    });
}

#[test]
fn reference_agrees_with_definition() {
    assert_agreement(|plan| run(plan, &mut HoldReference::new(&plan.quotas)));
}
