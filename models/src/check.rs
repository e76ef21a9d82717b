//! Explores the executions of a model.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The maximum number of preemptions in one execution of a model. A preemption stops a thread where it could
/// continue. `None` means any number.
#[derive(Clone, Copy)]
pub(crate) struct Preemptions {
    pub(crate) quick: Option<usize>,
    /// Used if the environment variable `TIDEGATE_MODELS` is `full`.
    pub(crate) full: Option<usize>,
}

/// A model. Its execution panics with a message that begins with "violated" if the invariant does not hold.
pub(crate) struct Model {
    pub(crate) preemptions: Preemptions,
    pub(crate) execution: fn(),
}

/// Explores a model of the production code.
pub(crate) fn holds(model: fn() -> Model) {
    let model = model();
    let Preemptions { quick, full } = model.preemptions;
    let is_full = std::env::var("TIDEGATE_MODELS").is_ok_and(|value| value == "full");
    explore(&model, if is_full { full } else { quick });
}

/// Explores a model of weakened code until it fails.
pub(crate) fn is_caught(model: fn() -> Model, name: &str) {
    let model = model();
    let explored = catch_unwind(AssertUnwindSafe(|| explore(&model, model.preemptions.quick)));
    let Err(panic) = explored else { panic!("not caught by {name}") };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_default();
    assert!(message.starts_with("violated"), "failed otherwise: {message}");
}

fn explore(model: &Model, preemptions: Option<usize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let _report = Report { preemptions, count: count.clone(), start: Instant::now() };
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let execution = model.execution;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        execution();
    });
}

/// Prints the number of executions explored, even if the last one panicked.
struct Report {
    preemptions: Option<usize>,
    count: Arc<AtomicUsize>,
    start: Instant,
}

impl Drop for Report {
    fn drop(&mut self) {
        let test = std::thread::current();
        let name = test.name().unwrap_or_default();
        let bound = self.preemptions.map_or("any".to_owned(), |bound| bound.to_string());
        let count = self.count.load(Ordering::Relaxed);
        eprintln!("{name}: {count} executions, {bound} preemptions, {:.2?}", self.start.elapsed());
    }
}
