//! Models of circuits and their probes. A probe runs on the thread that starts it and succeeds at once.

use loom::thread;

use super::circuit::Circuits;
use super::job_slot::JobSlot;
use crate::check::{Model, Preemptions};
use crate::runtime::sync::{Arc, Mutex};

const BOUNDED: Preemptions = Preemptions { quick: Some(3), full: Some(4) };

struct Breaker {
    circuits: Circuits,
    probing: Vec<JobSlot>,
    /// The notifications of the observer.
    notified: Mutex<Vec<bool>>,
}

impl Breaker {
    fn new(circuits: usize) -> Arc<Self> {
        Arc::new(Self {
            circuits: Circuits::new(circuits),
            probing: (0..circuits).map(|_| JobSlot::default()).collect(),
            notified: Mutex::default(),
        })
    }

    /// As `Breaker::count_failure` does in `src/local/breaker.rs`.
    fn count_failure(&self, tag: usize) {
        let circuit = &self.circuits[tag];
        if circuit.count_failure() {
            self.circuits.open(circuit, || self.notify(true));
            self.ensure_probing(tag);
        }
    }

    /// As `JobSlot::ensure_running` does in `src/runtime/background.rs`, without a task.
    fn ensure_probing(&self, tag: usize) {
        let circuit = &self.circuits[tag];
        let mut claimed = self.probing[tag].claim();
        while let Some(running) = claimed {
            self.circuits.close(circuit, || self.notify(false));
            claimed = running.end_unless(|| circuit.is_still_open());
        }
    }

    fn notify(&self, is_open: bool) {
        self.notified.lock().unwrap().push(is_open);
    }
}

fn failing(breaker: &Arc<Breaker>, tag: usize) -> thread::JoinHandle<()> {
    let breaker = breaker.clone();
    thread::spawn(move || breaker.count_failure(tag))
}

/// Two callers open the circuit, and its probes close it. After both return, no probe is running. A circuit
/// that is still open would then stay open.
pub(crate) fn an_open_circuit_has_a_probe() -> Model {
    let execution = || {
        let breaker = Breaker::new(1);
        let other = failing(&breaker, 0);
        breaker.count_failure(0);
        other.join().unwrap();
        assert!(!breaker.circuits[0].is_open(), "violated: open without a probe");
    };
    Model { preemptions: BOUNDED, execution }
}

/// Two circuits open and close at the same time. The observer is notified when the first one opens, and when
/// the last one closes.
pub(crate) fn notifications_alternate_and_end_with_the_state() -> Model {
    let execution = || {
        let breaker = Breaker::new(2);
        let others = [failing(&breaker, 0), failing(&breaker, 1)];
        breaker.count_failure(0);
        others.into_iter().for_each(|other| other.join().unwrap());
        let notified = breaker.notified.lock().unwrap();
        let alternates = notified.iter().enumerate().all(|(number, is_open)| *is_open == (number % 2 == 0));
        assert!(alternates && notified.len().is_multiple_of(2), "violated: notified of {:?}", *notified);
    };
    Model { preemptions: BOUNDED, execution }
}
