//! Histories of concurrent checks by several processes are linearizable against the reference, in the order
//! of the server's clock, with and without lost replies. The checker detects planted mistakes.

mod checker;
mod raw;

use std::time::Duration;

use harness::{Fault, Proxy, Server};
use tidegate::internals::{Item, Record, Taken, take};
use tidegate::{Quota, Rate};

use self::checker::{Answered, check};
use crate::support::fixture::{HOUR, namespace, quotas};
use crate::support::fleet::Fleet;
use crate::support::load::{Asked, Fallback, Job, Report, To};

/// The environment variable that holds a process's job as JSON.
const ORDERS: &str = "TIDEGATE_TEST_HISTORY";
const PROCESSES: u64 = 4;
const WINDOW: Duration = Duration::from_millis(500);
/// Low enough that even a busy machine makes more checks than this.
const LIMIT: u64 = 20;

type Gates = Vec<(&'static str, Quota, usize)>;

fn gates(name: &str) -> Gates {
    let with_tasks = |(name, quota)| (name, quota, 3);
    match name {
        "sound" => quotas(LIMIT, WINDOW).into_iter().map(with_tasks).collect(),
        // A lost check may have been charged at any time since the call. The checker cannot find that time if
        // units of a log or a counter become free meanwhile. A window of a day prevents that.
        "lossy" => {
            let mut gates: Gates = quotas(LIMIT, WINDOW).into_iter().take(4).map(with_tasks).collect();
            gates.push(("log", Quota::sliding_log(100_000, 24 * HOUR), 3));
            gates.push(("counter", Quota::sliding_counter(10_000, 24 * HOUR), 3));
            gates
        }
        _ => panic!("no such gates: {name}"),
    }
}

/// Returns the reports of processes that check while this process runs `work`.
async fn record(url: &str, gates: &str, deadline_ms: u64, work: impl AsyncFnOnce()) -> Vec<Report> {
    let job = Job {
        to: To::Url(url.to_owned()),
        namespace: namespace(),
        gates: gates.to_owned(),
        one_by_one: false,
        on_failure: Fallback::Error,
        instances: PROCESSES,
        connections: 2,
        deadline_ms,
        pause_ms: 1,
    };
    let mut fleet = Fleet::start("histories::instance", ORDERS, &job).await;
    fleet.note().await;
    work().await;
    fleet.end().await.0
}

fn asked(reports: &[Report], gate: usize) -> impl Iterator<Item = &Asked> {
    reports.iter().flat_map(|report| &report.asked).filter(move |asked| asked.gate == gate)
}

fn answered(asked: &Asked) -> Answered {
    let &Asked { called_us, returned_us, now_us, .. } = asked;
    Answered { called_us, returned_us, now_us, answer: asked.answer() }
}

#[tokio::test]
async fn all_that_a_fleet_is_told_is_what_the_reference_says_one_by_one() {
    let server = harness::shared();
    let reports = record(server.url(), "sound", 10_000, async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
    })
    .await;
    for (index, (name, quota, _)) in gates("sound").into_iter().enumerate() {
        let history: Vec<Answered> = asked(&reports, index).map(answered).collect();
        let admitted = history.iter().filter(|asked| asked.answer.allowed).count();
        eprintln!("{name}: {} asked, {admitted} admitted", history.len());
        assert!((20..history.len()).contains(&admitted), "{quota}: {admitted} of {}", history.len());
        assert!(asked(&reports, index).all(Asked::is_redis), "{quota}: {:?}", reports[0].errors);
        assert_eq!(check(&quota, history, Vec::new()), Ok(0), "{quota}");
    }
}

/// Connections are cut at random bytes, then replies are withheld, then they arrive after the deadline.
#[tokio::test]
async fn so_is_what_it_is_told_while_answers_are_lost() {
    let server = Server::process(&[]).unwrap();
    let proxy = Proxy::start(server.url()).unwrap();
    let reports = record(&proxy.url(), "lossy", 100, async || {
        let faults = [Fault::Cut(20_000), Fault::BlackHole, Fault::Slow(Duration::from_millis(150))];
        for fault in faults {
            tokio::time::sleep(WINDOW).await;
            proxy.set(fault);
            tokio::time::sleep(WINDOW).await;
            proxy.set(Fault::None);
        }
        tokio::time::sleep(WINDOW).await;
    })
    .await;
    for (index, (name, quota, _)) in gates("lossy").into_iter().enumerate() {
        let history: Vec<Answered> =
            asked(&reports, index).filter(|asked| asked.is_redis()).map(answered).collect();
        let lost = asked(&reports, index).filter(|asked| !asked.is_redis()).count();
        // Each check was sent once, and a second time if its connection was lost.
        let perhaps = asked(&reports, index)
            .flat_map(|asked| std::iter::repeat_n(asked.called_us, if asked.is_redis() { 1 } else { 2 }));
        let all = history.len();
        let assumed = check(&quota, history, perhaps.collect());
        eprintln!("{name}: {all} answered, {lost} lost, {assumed:?} charges assumed");
        assert!(lost > 0 && all > 20, "{quota}: {all} answered, {lost} lost");
        let assumed = assumed.unwrap_or_else(|error| panic!("{quota}: {error}"));
        assert!(assumed <= 2 * lost as u64, "{quota}: {assumed} charges assumed, {lost} answers lost");
    }
}

#[test]
fn a_lost_charge_a_stale_read_and_another_clock_are_found() {
    let server = Server::process(&[]).unwrap();
    for (name, quota) in quotas(300, WINDOW) {
        let lost_charge = raw::LOST_CHARGE.iter().find(|(algorithm, ..)| *algorithm == quota.algorithm());
        let &(_, right, wrong) = lost_charge.unwrap();
        let mistakes = [("", ""), (right, wrong), raw::stale_read(quota.algorithm()), raw::OTHER_CLOCK];
        for (number, (right, wrong)) in mistakes.into_iter().enumerate() {
            let change = |text: &str| {
                assert!(text.contains(right), "{name}: no `{right}`");
                if right.is_empty() { text.to_owned() } else { text.replace(right, wrong) }
            };
            let history = raw::history(server.url(), &quota, &format!("{name}:{number}"), change);
            let found = check(&quota, history, Vec::new());
            if right.is_empty() {
                assert_eq!(found, Ok(0), "{quota}");
            } else {
                assert!(found.is_err(), "{quota}: not found: {wrong}");
            }
        }
    }
}

/// Returns the reference's answers to `n` checks at each of these times.
fn made(quota: &Quota, times: &[(u64, u64)]) -> Vec<Answered> {
    let (mut record, mut history) = (Record::default(), Vec::new());
    for &(now, n) in times {
        let item = Item { quota, record: &mut record, cost: 1, max_delay: None };
        let (k, before) = take(&mut [item], n, now);
        let taken = Taken { quota, cost: 1, max_delay: None, n, k, before: before[0], now };
        history.extend((0..n).map(|index| Answered {
            called_us: now - 10,
            returned_us: now + 10,
            now_us: now,
            answer: taken.answer(index),
        }));
    }
    history
}

const START: u64 = 1_700_000_000_000_000;

#[test]
fn any_order_within_a_microsecond_is_found_and_nothing_else_passes() {
    for (name, quota) in quotas(5, WINDOW) {
        let times = [(START, 3), (START + 7, 1), (START + 90_000, 4), (START + 700_000, 2)];
        let mut history = made(&quota, &times);
        history.reverse();
        assert_eq!(check(&quota, history.clone(), Vec::new()), Ok(0), "{name}");
        for wrong in 0..history.len() {
            let mut history = history.clone();
            history[wrong].answer.remaining += 1;
            assert!(check(&quota, history, Vec::new()).is_err(), "{name}, answer {wrong}");
        }
    }
}

#[test]
fn a_charge_is_assumed_where_an_answer_was_lost_and_nowhere_else() {
    let quota = Quota::token_bucket(10, Rate::new(10, WINDOW));
    let fixed = Quota::fixed_window(10, WINDOW);
    for quota in [quota, fixed] {
        let mut history = made(&quota, &[(START, 1), (START + 40, 1), (START + 90, 1), (START + 600_000, 1)]);
        let lost = history.remove(1);
        assert!(check(&quota, history.clone(), Vec::new()).is_err(), "{quota}");
        assert_eq!(check(&quota, history.clone(), vec![lost.called_us]), Ok(1), "{quota}");
        // A check that was called later cannot have been charged before.
        assert!(check(&quota, history, vec![START + 2_000_000]).is_err(), "{quota}");
        // If the reply to the first check is lost, the next reply reports the window or level that it
        // started.
        let mut history = made(&quota, &[(START, 1), (START + 40_000, 1), (START + 90_000, 1)]);
        let lost = history.remove(0);
        assert_eq!(check(&quota, history, vec![lost.called_us]), Ok(1), "{quota}");
    }
}

/// Not a test by itself: the processes that the tests above start run it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the others"]
async fn instance() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let job: Job = serde_json::from_str(&orders).unwrap();
    job.run(&gates(&job.gates)).await;
}
