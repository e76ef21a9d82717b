//! What the limiter does while Redis does not: several processes under steady load, a fault, its
//! repair, and bounds on what they were told. `scripts/test chaos` runs the long form.

mod bounds;
mod faults;
mod figures;
mod report;
mod scenario;

use std::sync::Mutex;
use std::time::Duration;

use self::faults::FAULTS;
use self::figures::Figures;
use self::scenario::Size;
use crate::support::load::{Fallback, Job};

/// What a process is told: a job in JSON.
const ORDERS: &str = "TIDEGATE_TEST_CHAOS";
/// Where the long form writes its page.
const PAGE: &str = "TIDEGATE_CHAOS";

const SHORT: Size = Size {
    processes: 3,
    before: Duration::from_millis(700),
    hold: Duration::from_millis(700),
    after: Duration::from_millis(1_300),
};

const LONG: Size = Size {
    processes: 4,
    before: Duration::from_secs(2),
    hold: Duration::from_secs(5),
    after: Duration::from_secs(4),
};

/// One at a time: each is load enough.
static ALONE: Mutex<()> = Mutex::new(());

fn survive(name: &str, fallback: Fallback) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let fault = FAULTS.iter().find(|fault| fault.name == name).unwrap();
    let figures = run(fault, fallback, SHORT);
    eprintln!(
        "{}{}",
        report::table(std::slice::from_ref(&figures)),
        report::errors(std::slice::from_ref(&figures))
    );
    assert!(figures.wrong.is_empty(), "{name}: {:#?}", figures.wrong);
}

fn run(fault: &'static faults::Fault, fallback: Fallback, size: Size) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Figures::of(&runtime.block_on(scenario::run(fault, fallback, size)))
}

macro_rules! short {
    ($($test:ident: $fault:literal, $fallback:ident;)+) => {
        $(#[test] fn $test() { survive($fault, Fallback::$fallback); })+

        #[test]
        fn each_fault_has_a_short_form() {
            assert!(FAULTS.iter().all(|fault| [$($fault),+].contains(&fault.name)));
        }
    };
}

short! {
    killed_and_restarted_empty: "killed, restarted empty", Error;
    paused: "paused", Error;
    black_holed: "black-holed", Error;
    refused: "refused", Error;
    refused_and_closed: "refused", Closed;
    refused_and_open: "refused", Open;
    half_closed: "half-closed", Error;
    slow: "200 ms a reply", Error;
    cut_at_random_bytes: "cut at random bytes", Error;
    scripts_flushed: "SCRIPT FLUSH in a loop", Error;
    flushed: "FLUSHALL, thrice", Error;
    memory_full: "memory full, noeviction", Error;
    clock_stepped: "clock +1 h, -2 h, +1 h", Error;
    credentials_rotated: "password rotated and back", Error;
    clients_killed: "1,000 CLIENT KILLs", Error;
}

/// The long form, for `scripts/test chaos`.
#[test]
#[ignore = "takes minutes: scripts/test chaos"]
fn long() {
    let all: Vec<Figures> = FAULTS
        .iter()
        .map(|fault| {
            let figures = run(fault, Fallback::Error, LONG);
            eprintln!("{}", report::table(std::slice::from_ref(&figures)));
            figures
        })
        .collect();
    eprintln!("{}\n{}", report::table(&all), report::errors(&all));
    if let Ok(page) = std::env::var(PAGE) {
        std::fs::write(page, report::page(&all, LONG)).unwrap();
    }
    let wrong: Vec<_> = all.iter().map(|figures| (&figures.fault, &figures.wrong)).collect();
    assert!(wrong.iter().all(|(_, wrong)| wrong.is_empty()), "{wrong:#?}");
}

/// Not a test of its own: what the processes of the tests above run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the others"]
async fn instance() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let job: Job = serde_json::from_str(&orders).unwrap();
    job.run(&bounds::gates()).await;
}
