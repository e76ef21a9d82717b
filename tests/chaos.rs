//! Behavior of the limiter while Redis fails. The test runs several processes under steady load, injects a
//! fault, repairs it, and asserts bounds on the decisions.

mod bounds;
mod checks;
#[cfg(feature = "cluster")]
mod clusters;
mod faults;
mod figures;
mod ground;
mod report;
mod scenario;

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use self::faults::FAULTS;
use self::figures::Figures;
use self::scenario::Size;
use crate::support::load::{Fallback, Job};

/// The variable that passes a process its job, in JSON.
const JOB: &str = "TIDEGATE_TEST_CHAOS";
/// The variable with the path of the page that the long form writes.
const PAGE: &str = "TIDEGATE_CHAOS";
/// The variable that limits the long form to faults whose name contains this text.
const ONLY: &str = "TIDEGATE_CHAOS_ONLY";

const SHORT: Size = Size {
    processes: 3,
    before: Duration::from_millis(600),
    hold: Duration::from_millis(700),
    times: 60,
    // Covers the time that Redis may need to recover.
    after: Duration::from_millis(2_100),
};

const LONG: Size = Size {
    processes: 4,
    before: Duration::from_millis(1_500),
    hold: Duration::from_secs(5),
    times: 1_000,
    after: Duration::from_secs(4),
};

/// Number of scenarios that may run at once; each one loads the machine.
static FREE: (Mutex<usize>, Condvar) = (Mutex::new(2), Condvar::new());

struct Turn;

impl Turn {
    fn wait() -> Self {
        let (free, freed) = &FREE;
        let free = free.lock().unwrap_or_else(PoisonError::into_inner);
        *freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *FREE.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        FREE.1.notify_one();
    }
}

fn assert_survives(name: &str, fallback: Fallback) {
    let _turn = Turn::wait();
    let fault = FAULTS.iter().find(|fault| fault.name == name).unwrap();
    let figures = run(fault, fallback, SHORT);
    eprintln!("{}{}", report::table([&figures]), report::errors([&figures]));
    assert!(figures.violations.is_empty(), "{name}: {:#?}", figures.violations);
}

fn run(fault: &'static faults::Fault, fallback: Fallback, size: Size) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Figures::of(&runtime.block_on(scenario::run(fault, fallback, size)))
}

macro_rules! short {
    ($($(#[$meta:meta])* $test:ident: $fault:literal, $fallback:ident;)+) => {
        $($(#[$meta])* #[test] fn $test() { assert_survives($fault, Fallback::$fallback); })+

        #[test]
        fn each_fault_has_a_short_form() {
            assert!(FAULTS.iter().all(|fault| [$($fault),+].contains(&fault.name)));
        }
    };
}

short! {
    killed_and_restarted_empty: "killed, restarted empty", Local;
    paused: "paused", Local;
    black_holed: "black-holed", Local;
    refused: "refused", Local;
    refused_and_error: "refused", Error;
    refused_and_closed: "refused", Closed;
    refused_and_open: "refused", Open;
    half_closed: "half-closed", Local;
    slow: "200 ms a reply", Local;
    cut_at_random_bytes: "cut at random bytes", Local;
    scripts_flushed: "SCRIPT FLUSH in a loop", Local;
    flushed: "FLUSHALL, three times", Local;
    memory_full: "memory full, noeviction", Local;
    clock_stepped: "clock +1 h, -2 h, +1 h", Local;
    credentials_rotated: "password rotated and back", Local;
    repeated_reconnects: "repeated reconnects", Local;
    all_network_faults_in_sequence: "all network faults in sequence", Local;
    sentinel_primary_killed: "Sentinel: primary killed", Local;
    sentinel_primary_demoted: "Sentinel: primary demoted", Local;
    #[cfg(feature = "cluster")]
    cluster_primary_killed: "cluster: primary killed", Local;
    #[cfg(feature = "cluster")]
    cluster_slots_moved: "cluster: slots moved", Local;
}

#[test]
#[ignore = "takes 10 minutes: scripts/test full"]
fn long_form() {
    let only = std::env::var(ONLY).unwrap_or_default();
    let mut all = Vec::new();
    for fallback in [Fallback::Local, Fallback::Error] {
        for fault in FAULTS.iter().filter(|fault| fault.name.contains(&only)) {
            let figures = run(fault, fallback, LONG);
            eprintln!("{fallback:?}\n{}{:#?}", report::table([&figures]), figures.violations);
            all.push(figures);
        }
    }
    let page = report::page(&all, LONG);
    eprintln!("{page}");
    if let Ok(file) = std::env::var(PAGE) {
        std::fs::write(file, page).unwrap();
    }
    let violations: Vec<_> =
        all.iter().map(|figures| (figures.fault, figures.fallback, &figures.violations)).collect();
    assert!(violations.iter().all(|(.., violations)| violations.is_empty()), "{violations:#?}");
}

/// Not a test: the entry point of the processes that the tests above start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the other tests as a process"]
async fn instance() {
    let Ok(job) = std::env::var(JOB) else { return };
    let job: Job = serde_json::from_str(&job).unwrap();
    let gates = bounds::gates(job.instances).into_iter();
    job.run(&gates.map(|gate| (gate.name, gate.quota, gate.tasks)).collect::<Vec<_>>()).await;
}
