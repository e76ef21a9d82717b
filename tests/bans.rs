//! Bans do what their definition says: on the scripts, in the reference, and through the limiter.

mod faults;
mod limiter;
mod planted_mistakes;
mod processes;

use std::cell::RefCell;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::support::bans::plan::{Plan, plans};
use crate::support::bans::player::run;
use crate::support::bans::reference::BanReference;
use crate::support::bans::scripts::BanScripts;
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
    let scripts = RefCell::new(BanScripts::load(server.url(), str::to_owned));
    assert_agreement(|plan| {
        let mut scripts = scripts.borrow_mut();
        scripts.start(&plan.quotas);
        run(plan, &mut *scripts)
    });
}

#[test]
fn reference_agrees_with_definition() {
    assert_agreement(|plan| run(plan, &mut BanReference::new(&plan.quotas)));
}
