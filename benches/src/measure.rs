//! The measuring loops: one for asynchronous and one for synchronous subjects. Both are generic over the
//! subject, so that the timed code has no boxing and no dynamic calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use crate::case::{Case, Keys, Picker};
use crate::server::{Cost, Target};
use crate::subjects::{Local, LocalDecision, Subject};
use crate::{Failure, Length};

/// The results of one round of one subject.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) checks: u64,
    pub(crate) allowed: u64,
    /// Checks of a local subject that waited for Redis; 0 for other subjects.
    pub(crate) fell_back: u64,
    pub(crate) failed: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) took_ns: Histogram<u64>,
    pub(crate) cost: Option<Cost>,
}

impl Round {
    pub(crate) fn per_second(&self) -> f64 {
        self.checks as f64 / self.seconds
    }

    /// Returns the CPU time of Redis's main thread per check, in microseconds.
    pub(crate) fn redis_us(&self) -> Option<f64> {
        self.cost.as_ref().filter(|_| self.checks > 0).map(|cost| cost.cpu_us / self.checks as f64)
    }
}

/// One task's part of a round.
#[derive(Debug, Default)]
struct Tally {
    checks: u64,
    allowed: u64,
    fell_back: u64,
    failed: u64,
    first_error: Option<String>,
    took_ns: Vec<u64>,
}

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// Runs all tasks of the case, and measures after a warm-up.
pub(crate) fn round<S: Subject>(
    runtime: &Runtime,
    subject: &Arc<S>,
    keys: &Arc<Keys>,
    case: Case,
    target: &Target,
    length: Length,
) -> Result<Round, Failure> {
    let phase = Arc::new(AtomicU8::new(WARM));
    let tasks: Vec<_> = (0..case.tasks())
        .map(|_| runtime.spawn(check(subject.clone(), keys.picker(), phase.clone(), case.timed_every())))
        .collect();
    let (seconds, cost) = conduct(&phase, Some(target), length)?;
    let tallies = runtime.block_on(async {
        let mut tallies = Vec::new();
        for task in tasks {
            tallies.push(task.await?);
        }
        Ok::<_, Failure>(tallies)
    })?;
    sum(tallies, seconds, cost)
}

async fn check<S: Subject>(subject: Arc<S>, mut keys: Picker, phase: Arc<AtomicU8>, every: usize) -> Tally {
    let mut tally = Tally::default();
    let mut count = fastrand::usize(..every);
    while phase.load(Ordering::Relaxed) != OVER {
        count += 1;
        let begun = (count % every == 0).then(Instant::now);
        let answer = subject.check(keys.next_key()).await;
        let measured = phase.load(Ordering::Relaxed) == MEASURED;
        if measured && let Some(begun) = begun {
            tally.took_ns.push(begun.elapsed().as_nanos() as u64);
        }
        tally.count(answer.map(|allowed| LocalDecision { allowed, fell_back: false }), measured);
        // A check that completes without waiting must still yield to the runtime's other work.
        tokio::task::coop::consume_budget().await;
    }
    tally
}

/// Runs the threads of the case, and measures after a warm-up.
pub(crate) fn local_round<L: Local>(
    subject: &Arc<L>,
    names: &Arc<Keys>,
    keys: &[L::Key],
    case: Case,
    length: Length,
) -> Result<Round, Failure> {
    let phase = AtomicU8::new(WARM);
    let ((seconds, cost), tallies) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..case.threads())
            .map(|_| {
                let (picker, phase) = (names.picker(), &phase);
                scope.spawn(move || check_locally(&**subject, picker, keys, phase, case.timed_every()))
            })
            .collect();
        let conducted = conduct(&phase, None, length);
        let tallies: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        conducted.map(|conducted| (conducted, tallies))
    })?;
    if tallies.len() != case.threads() {
        return Err("a thread panicked".into());
    }
    sum(tallies, seconds, cost)
}

fn check_locally<L: Local>(
    subject: &L,
    mut picker: Picker,
    keys: &[L::Key],
    phase: &AtomicU8,
    every: usize,
) -> Tally {
    let mut tally = Tally::default();
    let mut stage = WARM;
    while stage != OVER {
        // Reads the clock and the phase once per `every` checks: they take longer than a local decision.
        // After a check that waited for Redis, the phase is read at once.
        let begun = Instant::now();
        let mut answer = subject.check(&keys[picker.next_index()]);
        if stage == MEASURED {
            tally.took_ns.push(begun.elapsed().as_nanos() as u64);
        }
        for _ in 1..every {
            let waited = matches!(answer, Ok(LocalDecision { fell_back: true, .. }) | Err(_));
            tally.count(answer, stage == MEASURED);
            if waited {
                stage = phase.load(Ordering::Relaxed);
            }
            answer = subject.check(&keys[picker.next_index()]);
        }
        tally.count(answer, stage == MEASURED);
        stage = phase.load(Ordering::Relaxed);
    }
    tally
}

impl Tally {
    #[inline]
    fn count(&mut self, answer: Result<LocalDecision, Failure>, measured: bool) {
        match answer {
            Ok(decision) if measured => {
                self.checks += 1;
                self.allowed += u64::from(decision.allowed);
                self.fell_back += u64::from(decision.fell_back);
            }
            Ok(_) => {}
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &Failure) {
        self.failed += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }
}

/// Moves the tasks through warm-up, measurement and end.
fn conduct(
    phase: &AtomicU8,
    target: Option<&Target>,
    length: Length,
) -> Result<(f64, Option<Cost>), Failure> {
    std::thread::sleep(length.warm);
    let before = target.map(Target::begin).transpose();
    phase.store(MEASURED, Ordering::Relaxed);
    let begun = Instant::now();
    std::thread::sleep(length.measured);
    // Ends the tasks even if Redis did not reply to `begin`.
    phase.store(OVER, Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    let cost = match (target, before?) {
        (Some(target), Some(before)) => Some(target.end(&before)?),
        _ => None,
    };
    Ok((seconds, cost))
}

fn sum(tallies: Vec<Tally>, seconds: f64, cost: Option<Cost>) -> Result<Round, Failure> {
    let mut round = Round {
        checks: 0,
        allowed: 0,
        fell_back: 0,
        failed: 0,
        first_error: None,
        seconds,
        took_ns: Histogram::new(3)?,
        cost,
    };
    for tally in tallies {
        round.checks += tally.checks;
        round.allowed += tally.allowed;
        round.fell_back += tally.fell_back;
        round.failed += tally.failed;
        round.first_error = round.first_error.or(tally.first_error);
        for ns in tally.took_ns {
            round.took_ns.record(ns)?;
        }
    }
    Ok(round)
}

/// Checks each key once, for at most `at_most`. A slow subject creates the remaining keys in its first
/// rounds.
pub(crate) fn fill<S: Subject>(
    runtime: &Runtime,
    subject: &Arc<S>,
    keys: &Arc<Keys>,
    at_most: Duration,
) -> Result<(), Failure> {
    let next = Arc::new(AtomicUsize::new(0));
    let end = Instant::now() + at_most;
    let tasks: Vec<_> = (0..512)
        .map(|_| {
            let (subject, keys, next) = (subject.clone(), keys.clone(), next.clone());
            runtime.spawn(async move {
                while let Some(key) = keys.names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    subject.check(key).await?;
                    if Instant::now() > end {
                        break;
                    }
                }
                Ok::<_, Failure>(())
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
