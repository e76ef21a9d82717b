//! The scripts and the reference treat in-flight limits as the oracle defines them. Random histories of processes
//! with an injected clock compare them.

use std::cell::RefCell;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

use crate::support::permits::lua::LuaStore;
use crate::support::permits::memory::Memory;
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
