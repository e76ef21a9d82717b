//! Whatever was gathered, merged and shared out: there is an order in which the
//! same asks, decided one by one, would have got the very same answers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use harness::Server;
use rand::Rng;
use tidegate::internals::{Item, Record, Taken, take};
use tidegate::{Decision, Gate, Quota};

use crate::support::fixture::{builder, quotas};

const TASKS: usize = 64;
const KEYS: usize = 3;

/// What was asked of one key and answered, by the server's instant.
type Answers = BTreeMap<u64, Vec<(u64, Decision)>>;

async fn load(gate: &Gate, batching: bool) -> Vec<Answers> {
    let end = Instant::now() + Duration::from_millis(700);
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                let mut answered = Vec::new();
                while Instant::now() < end {
                    let (key, cost) = (rand::rng().random_range(0..KEYS), rand::rng().random_range(1..=3));
                    answered.push((key, cost, gate.check_cost(format!("{key}"), cost).await.unwrap()));
                }
                answered
            })
        })
        .collect();
    let mut by_key = vec![Answers::new(); KEYS];
    let mut asked = 0;
    for task in tasks {
        for (key, cost, decision) in task.await.unwrap() {
            asked += 1;
            by_key[key].entry(decision.server_now_us()).or_default().push((cost, decision));
        }
    }
    let instants: usize = by_key.iter().map(BTreeMap::len).sum();
    assert!(!batching || instants < asked / 2, "{asked} asks at {instants} instants: nothing was merged");
    by_key
}

/// Of the answers of one instant the order is told by what was left after each;
/// who was denied came after whoever left so much.
fn assert_one_by_one(quota: &Quota, answers: Answers) {
    let mut record = Record::default();
    for (now, mut together) in answers {
        together
            .sort_by_key(|(cost, decision)| (Reverse(decision.remaining()), !decision.is_allowed(), *cost));
        for (cost, told) in together {
            let mut items = [Item { quota, record: &mut record, cost, max_delay: None }];
            let (k, before) = take(&mut items, 1, now);
            let taken = Taken { quota, cost, max_delay: None, n: 1, k, before: before[0], now };
            let alone = taken.answer(0);
            let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap();
            assert_eq!(
                (told.is_allowed(), told.remaining(), micros(told.retry_after()), micros(told.delay())),
                (alone.allowed, alone.remaining, alone.retry_after_us, alone.delay_us),
                "{quota} at {now}, cost {cost}"
            );
            assert_eq!(micros(told.reset_after()), alone.reset_after_us, "{quota} at {now}, cost {cost}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_batches_are_those_of_some_order() {
    let server = Server::process(&[]).unwrap();
    for batching in [true, false] {
        let limiter = builder(server.url()).deny_cache(Duration::ZERO).batching(batching).build().unwrap();
        for (name, quota) in quotas(500, Duration::from_millis(200)) {
            for answers in load(&limiter.gate(name, quota), batching).await {
                assert_one_by_one(&quota, answers);
            }
        }
    }
}
