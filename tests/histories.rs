//! Histories of concurrent checks by several processes are linearizable against the reference, in the order
//! of the server's clock, with and without lost replies. The checker detects planted mistakes.

mod checker;
mod raw;

use std::time::Duration;

use tidegate::reference::{Item, Record, Taken, take};
use tidegate::{Quota, Rate};
use tidegate_testkit::{Fault, Proxy, Server};

use self::checker::{Answered, check};
use crate::support::fixture::{HOUR, namespace, quotas};
use crate::support::fleet::Fleet;
use crate::support::load::{Checked, Fallback, Job, Report, To};

/// The environment variable that holds a process's job as JSON.
const JOB: &str = "TIDEGATE_TEST_HISTORY";
const PROCESSES: u64 = 4;
const WINDOW: Duration = Duration::from_millis(500);
/// Low enough that even a busy machine makes more checks than this.
const LIMIT: u64 = 20;

type Gates = Vec<(&'static str, Quota, usize)>;

fn gates(name: &str) -> Gates {
    let with_tasks = |(name, quota)| (name, quota, 3);
    match name {
        "sound" => quotas(LIMIT, WINDOW).into_iter().map(with_tasks).collect(),
        // A check whose reply is lost may have been charged at any time after the call. The checker cannot
        // find that time if units of a log or a counter become free meanwhile. A window of a day prevents
        // that.
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
    let mut fleet = Fleet::start("histories::instance", JOB, &job).await;
    fleet.note().await;
    work().await;
    fleet.end().await.0
}

fn checks_of(reports: &[Report], gate: usize) -> impl Iterator<Item = &Checked> {
    reports.iter().flat_map(|report| &report.checks).filter(move |check| check.gate == gate)
}

fn answered(check: &Checked) -> Answered {
    let &Checked { called_us, returned_us, now_us, .. } = check;
    Answered { called_us, returned_us, now_us, answer: check.answer() }
}

#[tokio::test]
async fn history_of_a_fleet_is_linearizable() {
    let server = tidegate_testkit::shared();
    let reports = record(server.url(), "sound", 10_000, async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
    })
    .await;
    for (index, (name, quota, _)) in gates("sound").into_iter().enumerate() {
        let history: Vec<Answered> = checks_of(&reports, index).map(answered).collect();
        let admitted = history.iter().filter(|answered| answered.answer.allowed).count();
        eprintln!("{name}: {} checks, {admitted} admitted", history.len());
        assert!((20..history.len()).contains(&admitted), "{quota}: {admitted} of {}", history.len());
        assert!(checks_of(&reports, index).all(Checked::is_redis), "{quota}: {:?}", reports[0].errors);
        assert_eq!(check(&quota, history, Vec::new()), Ok(0), "{quota}");
    }
}

/// The proxy cuts connections at random bytes, then withholds replies, then delays them beyond the deadline.
#[tokio::test]
async fn history_with_lost_replies_is_linearizable() {
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
            checks_of(&reports, index).filter(|check| check.is_redis()).map(answered).collect();
        let lost = checks_of(&reports, index).filter(|check| !check.is_redis()).count();
        // A check is sent once, and a second time if its connection is lost. So an answered check may have
        // one charge that no answer reports, and a lost check may have two.
        let possible_charges = checks_of(&reports, index)
            .flat_map(|check| std::iter::repeat_n(check.called_us, if check.is_redis() { 1 } else { 2 }));
        let answers = history.len();
        let assumed = check(&quota, history, possible_charges.collect());
        eprintln!("{name}: {answers} answered, {lost} lost, {assumed:?} charges assumed");
        assert!(lost > 0 && answers > 20, "{quota}: {answers} answered, {lost} lost");
        let assumed = assumed.unwrap_or_else(|error| panic!("{quota}: {error}"));
        assert!(assumed <= 2 * lost as u64, "{quota}: {assumed} charges assumed, {lost} answers lost");
    }
}

#[test]
fn lost_charge_stale_read_and_wrong_clock_are_detected() {
    let server = Server::process(&[]).unwrap();
    for (name, quota) in quotas(300, WINDOW) {
        let lost_charge = raw::LOST_CHARGE.iter().find(|(algorithm, ..)| *algorithm == quota.algorithm());
        let &(_, right, wrong) = lost_charge.unwrap();
        let mistakes = [("", ""), (right, wrong), raw::stale_read(quota.algorithm()), raw::WRONG_CLOCK];
        for (number, (right, wrong)) in mistakes.into_iter().enumerate() {
            let change = |text: &str| {
                assert!(text.contains(right), "{name}: the script does not contain `{right}`");
                if right.is_empty() { text.to_owned() } else { text.replace(right, wrong) }
            };
            let history = raw::history(server.url(), &quota, &format!("{name}:{number}"), change);
            let result = check(&quota, history, Vec::new());
            if right.is_empty() {
                assert_eq!(result, Ok(0), "{quota}");
            } else {
                assert!(result.is_err(), "{quota}: not detected: {wrong}");
            }
        }
    }
}

/// Returns the reference's answers to `n` checks at each of these times.
fn reference_history(quota: &Quota, times: &[(u64, u64)]) -> Vec<Answered> {
    let (mut record, mut history) = (Record::default(), Vec::new());
    for &(now, n) in times {
        let mut items = [Item::new(quota, &mut record, 1, None)];
        let k = take(&mut items, n, now);
        let taken = Taken { quota, cost: 1, max_delay: None, n, k, before: items[0].before, now };
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
fn any_order_within_a_microsecond_is_accepted_and_wrong_answers_are_rejected() {
    for (name, quota) in quotas(5, WINDOW) {
        let times = [(START, 3), (START + 7, 1), (START + 90_000, 4), (START + 700_000, 2)];
        let mut history = reference_history(&quota, &times);
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
fn charge_is_assumed_only_if_a_reply_was_lost() {
    let quota = Quota::token_bucket(10, Rate::new(10, WINDOW));
    let fixed = Quota::fixed_window(10, WINDOW);
    for quota in [quota, fixed] {
        let times = [(START, 1), (START + 40, 1), (START + 90, 1), (START + 600_000, 1)];
        let mut history = reference_history(&quota, &times);
        let lost = history.remove(1);
        assert!(check(&quota, history.clone(), Vec::new()).is_err(), "{quota}");
        assert_eq!(check(&quota, history.clone(), vec![lost.called_us]), Ok(1), "{quota}");
        // A check that was called later cannot have been charged before.
        assert!(check(&quota, history, vec![START + 2_000_000]).is_err(), "{quota}");
        // If the reply to the first check is lost, the next reply reports the window or level that the first
        // check started.
        let mut history = reference_history(&quota, &[(START, 1), (START + 40_000, 1), (START + 90_000, 1)]);
        let lost = history.remove(0);
        assert_eq!(check(&quota, history, vec![lost.called_us]), Ok(1), "{quota}");
    }
}

/// The lost checks were called while the window was full, and charged when the next one had begun.
#[test]
fn charge_is_assumed_after_a_full_window_has_ended() {
    for (called, next) in [(100_000, 500_100), (100_000, 501_480), (499_900, 503_200)] {
        let fixed = Quota::fixed_window(LIMIT, WINDOW);
        let times = [(START, LIMIT), (START + 90_000, 1), (START + next - 100, 3), (START + next + 900, 1)];
        let mut history = reference_history(&fixed, &times);
        let lost: Vec<u64> = history.drain(21..24).map(|_| START + called).collect();
        assert_eq!(check(&fixed, history, lost), Ok(3), "called at {called}, charged before {next}");
    }
}

/// Not a test: the processes that the tests above start run it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the other tests"]
async fn instance() {
    let Ok(job) = std::env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    job.run(&gates(&job.gates)).await;
}
