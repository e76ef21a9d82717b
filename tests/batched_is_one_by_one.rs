//! Batching does not change decisions: for every history of batched and merged checks, there is an order in
//! which the same checks, decided one at a time, get the same decisions.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::Rng;
use tidegate::reference::{Item, Record, Taken, take};
use tidegate::{Decision, Gate, Quota};
use tidegate_testkit::Server;

use crate::support::fixture::{builder, quotas};

const TASKS: usize = 64;
const KEYS: usize = 3;

/// The cost and the decision of each check of one key, by the time of the server.
type Decisions = BTreeMap<u64, Vec<(u64, Decision)>>;

async fn load(gate: &Gate, batching: bool) -> Vec<Decisions> {
    let end = Instant::now() + Duration::from_millis(700);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let mut decided = Vec::new();
                while Instant::now() < end {
                    let (key, cost) = (rand::rng().random_range(0..KEYS), rand::rng().random_range(1..=3));
                    decided.push((key, cost, gate.check_cost(format!("{key}"), cost).await.unwrap()));
                }
                decided
            })
        })
        .collect();
    let mut by_key = vec![Decisions::new(); KEYS];
    let mut checks = 0;
    for task in tasks {
        for (key, cost, decision) in task.await.unwrap() {
            checks += 1;
            by_key[key].entry(decision.server_now_us()).or_default().push((cost, decision));
        }
    }
    let instants: usize = by_key.iter().map(BTreeMap::len).sum();
    assert!(!batching || instants < checks / 2, "{checks} checks at {instants} instants: nothing was merged");
    by_key
}

/// Compares the decisions with those of the reference, which decides one check at a time.
///
/// Sorts the decisions of one instant by the remaining units, most first. Of decisions with equal remaining
/// units, the admitted ones come first.
fn assert_one_by_one(quota: &Quota, decisions: Decisions) {
    let mut record = Record::default();
    for (now, mut together) in decisions {
        together
            .sort_by_key(|(cost, decision)| (Reverse(decision.remaining()), !decision.is_allowed(), *cost));
        for (cost, batched) in together {
            let mut items = [Item::new(quota, &mut record, cost, None)];
            let k = take(&mut items, 1, now);
            let taken = Taken { quota, cost, max_delay: None, n: 1, k, before: items[0].before, now };
            let single = taken.answer(0);
            let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap();
            assert_eq!(
                (
                    batched.is_allowed(),
                    batched.remaining(),
                    micros(batched.retry_after()),
                    micros(batched.delay())
                ),
                (single.allowed, single.remaining, single.retry_after_us, single.delay_us),
                "{quota} at {now}, cost {cost}"
            );
            assert_eq!(micros(batched.reset_after()), single.reset_after_us, "{quota} at {now}, cost {cost}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batched_decisions_equal_those_of_some_sequential_order() {
    let server = Server::process(&[]).unwrap();
    for batching in [true, false] {
        let limiter = builder(server.url()).deny_cache(Duration::ZERO).batching(batching).build().unwrap();
        for (name, quota) in quotas(500, Duration::from_millis(200)) {
            for decisions in load(&limiter.gate(name, quota), batching).await {
                assert_one_by_one(&quota, decisions);
            }
        }
    }
}
