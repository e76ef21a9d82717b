//! The measuring loops, one for what is awaited and one for what is not, generic over the subject:
//! nothing is boxed or called through a table between the clock and what is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use crate::case::{Case, Keys, Picker};
use crate::server::{Cost, Target};
use crate::subjects::{Local, Subject, Verdict};
use crate::{Failure, Length};

/// What came of one round of one subject.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) asked: u64,
    pub(crate) allowed: u64,
    /// Of what was asked in this process, how much went to Redis; 0 where nothing else is possible.
    pub(crate) fell_back: u64,
    pub(crate) failed: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) took_ns: Histogram<u64>,
    pub(crate) cost: Option<Cost>,
}

impl Round {
    pub(crate) fn per_second(&self) -> f64 {
        self.asked as f64 / self.seconds
    }

    /// What of a decision the main thread of Redis did, in microseconds.
    pub(crate) fn redis_us(&self) -> Option<f64> {
        self.cost.as_ref().filter(|_| self.asked > 0).map(|cost| cost.cpu_us / self.asked as f64)
    }
}

/// One task's part of a round.
#[derive(Debug, Default)]
struct Tally {
    asked: u64,
    allowed: u64,
    fell_back: u64,
    failed: u64,
    first_error: Option<String>,
    took_ns: Vec<u64>,
}

const WARM: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// Asks with all tasks of the case; measures after a warm-up.
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
        .map(|_| runtime.spawn(ask(subject.clone(), keys.picker(), phase.clone(), case.timed_every())))
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

async fn ask<S: Subject>(subject: Arc<S>, mut keys: Picker, phase: Arc<AtomicU8>, every: usize) -> Tally {
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
        tally.count(answer.map(|allowed| Verdict { allowed, fell_back: false }), measured);
        // One who is answered without a wait must let the runtime do its other work.
        tokio::task::coop::consume_budget().await;
    }
    tally
}

/// Asks with a thread per core; measures after a warm-up.
pub(crate) fn local_round<L: Local>(
    subject: &Arc<L>,
    names: &Arc<Keys>,
    keys: &[L::Key],
    case: Case,
    length: Length,
) -> Result<Round, Failure> {
    let phase = AtomicU8::new(WARM);
    let ((seconds, cost), tallies) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..cores())
            .map(|_| {
                let (picker, phase) = (names.picker(), &phase);
                scope.spawn(move || ask_locally(&**subject, picker, keys, phase, case.timed_every()))
            })
            .collect();
        let conducted = conduct(&phase, None, length);
        let tallies: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        conducted.map(|conducted| (conducted, tallies))
    })?;
    if tallies.len() != cores() {
        return Err("a thread panicked".into());
    }
    sum(tallies, seconds, cost)
}

fn ask_locally<L: Local>(
    subject: &L,
    mut picker: Picker,
    keys: &[L::Key],
    phase: &AtomicU8,
    every: usize,
) -> Tally {
    let mut tally = Tally::default();
    let mut stage = WARM;
    while stage != OVER {
        // The clock and the phase only now and then: an answer takes less than they do, unless Redis
        // was waited for.
        let begun = Instant::now();
        let mut answer = subject.check(&keys[picker.next_index()]);
        if stage == MEASURED {
            tally.took_ns.push(begun.elapsed().as_nanos() as u64);
        }
        for _ in 1..every {
            let waited = matches!(answer, Ok(Verdict { fell_back: true, .. }) | Err(_));
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
    fn count(&mut self, answer: Result<Verdict, Failure>, measured: bool) {
        match answer {
            Ok(verdict) if measured => {
                self.asked += 1;
                self.allowed += u64::from(verdict.allowed);
                self.fell_back += u64::from(verdict.fell_back);
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

/// Lets the tasks warm up, be measured, and end.
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
    // Also if Redis did not answer us: the tasks have to end.
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
        asked: 0,
        allowed: 0,
        fell_back: 0,
        failed: 0,
        first_error: None,
        seconds,
        took_ns: Histogram::new(3)?,
        cost,
    };
    for tally in tallies {
        round.asked += tally.asked;
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

/// Asks once for each key, but for at most so long: a slow subject's keys come in its first rounds.
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
