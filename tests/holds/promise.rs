//! The units admitted in any window obey the definition, regardless of the settles: random reservations,
//! checks and settles of one key, repeated and late ones, with a ledger of the admitted units.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tidegate::Quota;

use crate::support::holds::call::{Call, Group, Item, Reply, SettleItem, Settled, Taken, Token, Verb};
use crate::support::holds::ledger::{Charge, Ledger};
use crate::support::holds::oracle::life_us;
use crate::support::holds::plan;
use crate::support::holds::player::Subject;
use crate::support::holds::reference::HoldReference;
use crate::support::holds::scripts::HoldScripts;
use crate::support::plan::{Family, sequences};

/// One caller's act after a pause.
#[derive(Clone, Debug)]
struct Act {
    pause_us: u64,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Check {
        cost: u64,
        sees_holds: bool,
    },
    Reserve {
        units: u64,
        ttl_us: u64,
        is_refunded: bool,
    },
    /// Sends the newest reservation but so many again.
    Repeat(usize),
    /// Commits this share of a reservation, counted from the newest.
    Settle(usize, u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Acts {
    pub(crate) quota: Quota,
    acts: Vec<Act>,
}

/// Generates acts that keep a limit busy: each pause is at most a quarter of the time in which a charge
/// counts.
pub(crate) fn acts(family: Family) -> impl Strategy<Value = Acts> {
    (plan::quota_of(family), 1..=64u64).prop_flat_map(|(quota, pauses)| {
        let life = life_us(&quota);
        let limit = quota.limit();
        let units = || 1..=limit.min(8);
        let ttls = prop_oneof![1 => Just(1_000_000), 2 => 1_000_000..=life.clamp(1_000_001, 86_400_000_000)];
        let recent = || prop_oneof![4 => 0..3usize, 1 => 0..20usize];
        let what = prop_oneof![
            2 => (units(), any::<bool>()).prop_map(|(cost, sees_holds)| What::Check { cost, sees_holds }),
            3 => (units(), ttls, any::<bool>())
                .prop_map(|(units, ttl_us, is_refunded)| What::Reserve { units, ttl_us, is_refunded }),
            1 => recent().prop_map(What::Repeat),
            3 => (recent(), 0..=4u64).prop_map(|(back, quarters)| What::Settle(back, quarters)),
        ];
        let pause = prop_oneof![1 => Just(0), 3 => 0..=life / pauses / 4 + 1, 1 => 0..=life / 4];
        let act = (pause, what).prop_map(|(pause_us, what)| Act { pause_us, what });
        prop::collection::vec(act, 200).prop_map(move |acts| Acts { quota, acts })
    })
}

/// Runs the acts on a key that is untouched.
pub(crate) fn obeys(acts: &Acts, subject: &mut impl Subject) -> Result<(), String> {
    let mut ledger = Ledger::new(acts.quota);
    let mut reserved: Vec<Group> = Vec::new();
    // The holds that are refunded at their end: the end, and the id.
    let mut to_refund: Vec<(u64, String)> = Vec::new();
    let mut now = 1_700_000_000_000_000;
    for act in &acts.acts {
        now += act.pause_us;
        let verb = verb(&act.what, &mut reserved);
        let (reply, _) = subject.call(&Call { now_us: now, verb: verb.clone() })?;
        if !verb.names_holds_of().is_empty() {
            to_refund.retain(|(end, id)| {
                let has_ended = *end <= now;
                if has_ended {
                    ledger.settle(id, 0);
                }
                !has_ended
            });
        }
        match (&verb, &reply) {
            (Verb::Settle(items, token), Reply::Settled(settled)) if settled[0] == Settled::Settled => {
                ledger.settle(&token.id, items[0].actual);
                to_refund.retain(|(_, id)| *id != token.id);
            }
            (Verb::Check(group), Reply::Taken(taken)) => admit(group, &taken[0], now, &mut ledger)?,
            (Verb::Take(groups), Reply::Taken(taken)) => {
                admit(&groups[0], &taken[0], now, &mut ledger)?;
                if let Some(token) = &groups[0].hold
                    && taken[0].k > 0
                    && token.is_refunded
                    && taken[0].repeated.is_empty()
                {
                    to_refund.push((now + token.ttl_us, token.id.clone()));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn verb(what: &What, reserved: &mut Vec<Group>) -> Verb {
    let item = |cost, names_holds| vec![Item { gate: 0, cost, max_delay: None, names_holds }];
    match *what {
        What::Check { cost, sees_holds } => {
            let group = Group { n: 1, items: item(cost, sees_holds), hold: None };
            if sees_holds { Verb::Take(vec![group]) } else { Verb::Check(group) }
        }
        What::Reserve { units, ttl_us, is_refunded } => {
            let token = Token { id: format!("reservation{:05}", reserved.len()), ttl_us, is_refunded };
            reserved.push(Group { n: 1, items: item(units, true), hold: Some(token) });
            Verb::Take(reserved[reserved.len() - 1..].to_vec())
        }
        What::Repeat(_) | What::Settle(..) if reserved.is_empty() => {
            Verb::Check(Group { n: 0, items: item(1, false), hold: None })
        }
        What::Repeat(back) => Verb::Take(vec![reserved[reserved.len() - 1 - back % reserved.len()].clone()]),
        What::Settle(back, quarters) => {
            let group = &reserved[reserved.len() - 1 - back % reserved.len()];
            let units = group.items[0].cost;
            let item = SettleItem { gate: 0, units, actual: units * quarters / 4 };
            Verb::Settle(vec![item], group.hold.clone().unwrap())
        }
    }
}

fn admit(group: &Group, taken: &Taken, now: u64, ledger: &mut Ledger) -> Result<(), String> {
    if taken.k == 0 || !taken.repeated.is_empty() {
        return Ok(());
    }
    let id = group.hold.as_ref().map(|token| token.id.clone()).unwrap_or_default();
    if !id.is_empty() {
        // A repeat after the end is a new hold with the same id. The old charge keeps its units.
        ledger.forget(&id);
    }
    let window_end_ms = taken.before[0].raw[1];
    ledger.admit(Charge { at_us: now, units: taken.k * group.items[0].cost, window_end_ms, id })
}

fn assert_obeyed(family: Family, mut run: impl FnMut(&Acts) -> Result<(), String>) {
    let config = Config { cases: sequences() / 4, source_file: Some(file!()), ..Config::default() };
    let run = std::cell::RefCell::new(&mut run);
    let obey = |acts: Acts| (run.borrow_mut())(&acts).map_err(TestCaseError::fail);
    match TestRunner::new(config).run(&acts(family), obey) {
        Ok(()) => {}
        Err(TestError::Fail(reason, acts)) => panic!("{reason}\n{acts:?}"),
        Err(error) => panic!("{error}"),
    }
}

fn assert_scripts_obey(family: Family) {
    let server = tidegate_testkit::Server::process(&[]).unwrap();
    let mut scripts = HoldScripts::load(server.url(), str::to_owned);
    assert_obeyed(family, |acts| {
        scripts.start(&[acts.quota]);
        obeys(acts, &mut scripts)
    });
}

mod scripts {
    use super::assert_scripts_obey;

    crate::support::for_each_family!(assert_scripts_obey);
}

mod reference {
    use super::{Family, HoldReference, assert_obeyed, obeys};

    fn assert_reference_obeys(family: Family) {
        assert_obeyed(family, |acts| obeys(acts, &mut HoldReference::new(&[acts.quota])));
    }

    crate::support::for_each_family!(assert_reference_obeys);
}
