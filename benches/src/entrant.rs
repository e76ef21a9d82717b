//! A subject in a case. The dynamic call that hides the subject's type happens once per round, not per check.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::case::{Case, Keys};
use crate::measure::{self, Round};
use crate::server::Target;
use crate::subjects::{Info, Local, Subject};
use crate::{Failure, Length};

pub(crate) trait Runs {
    fn info(&self) -> Info;

    /// Connects, and writes the keys to Redis if the case requires it.
    fn prepare(&mut self, runtime: &Runtime) -> Result<(), Failure>;

    fn round(&self, runtime: &Runtime, length: Length) -> Result<Round, Failure>;
}

/// The time limit for filling. A slow subject creates the remaining keys in its first rounds.
const FILLING: Duration = Duration::from_secs(3);

const UNPREPARED: &str = "not prepared";

/// A subject that decides in Redis.
pub(crate) struct Entrant<S> {
    case: Case,
    target: Arc<Target>,
    ready: Option<(Arc<S>, Arc<Keys>)>,
}

impl<S: Subject> Entrant<S> {
    pub(crate) fn boxed(case: Case, target: &Arc<Target>) -> Box<dyn Runs> {
        Box::new(Self { case, target: target.clone(), ready: None })
    }
}

impl<S: Subject> Runs for Entrant<S> {
    fn info(&self) -> Info {
        S::INFO
    }

    fn prepare(&mut self, runtime: &Runtime) -> Result<(), Failure> {
        let subject = Arc::new(runtime.block_on(S::open(self.target.url(), self.case))?);
        let keys = Keys::new(self.case, |number| S::key(self.case, number), S::INFO.max_capacity);
        if self.case.is_filled() {
            measure::fill(runtime, &subject, &keys, FILLING)?;
        }
        self.ready = Some((subject, keys));
        Ok(())
    }

    fn round(&self, runtime: &Runtime, length: Length) -> Result<Round, Failure> {
        let (subject, keys) = self.ready.as_ref().ok_or(UNPREPARED)?;
        measure::round(runtime, subject, keys, self.case, &self.target, length)
    }
}

/// A subject that decides in process.
pub(crate) struct LocalEntrant<L: Local> {
    case: Case,
    target: Arc<Target>,
    ready: Option<Ready<L>>,
    is_warm: AtomicBool,
}

struct Ready<L: Local> {
    subject: Arc<L>,
    names: Arc<Keys>,
    keys: Vec<L::Key>,
}

impl<L: Local> LocalEntrant<L> {
    pub(crate) fn boxed(case: Case, target: &Arc<Target>) -> Box<dyn Runs> {
        Box::new(Self { case, target: target.clone(), ready: None, is_warm: AtomicBool::new(false) })
    }
}

impl<L: Local> Runs for LocalEntrant<L> {
    fn info(&self) -> Info {
        L::INFO
    }

    fn prepare(&mut self, runtime: &Runtime) -> Result<(), Failure> {
        let subject = Arc::new(L::open(self.target.url(), self.case, runtime.handle())?);
        let names = Keys::new(self.case, |number| format!("user:{number}"), L::INFO.max_capacity);
        let keys = names.names.iter().map(|name| L::key(name)).collect::<Result<Vec<_>, _>>()?;
        if L::WARMUP_CHECKS_PER_KEY == 1 {
            warm(&*subject, &keys)?;
        }
        self.ready = Some(Ready { subject, names, keys });
        Ok(())
    }

    fn round(&self, _: &Runtime, length: Length) -> Result<Round, Failure> {
        let Ready { subject, names, keys } = self.ready.as_ref().ok_or(UNPREPARED)?;
        // Runs just before the first round: a lease would expire while other subjects prepare.
        if L::WARMUP_CHECKS_PER_KEY > 1 && !self.is_warm.swap(true, Ordering::Relaxed) {
            warm(&**subject, keys)?;
            let grow = Length { warm: GROW, measured: Duration::ZERO };
            measure::local_round(subject, names, keys, self.case, grow)?;
        }
        measure::local_round(subject, names, keys, self.case, length)
    }
}

/// The number of threads that warm up a subject. It is large, since each thread waits for Redis.
const WARMING: usize = 128;
/// The warm-up after all keys are leased, as long as the measured time: leased blocks grow with the demand.
/// With 1 s instead, one leased key reached a fifth of governor's rate: 100,000 leases had just ended.
const GROW: Duration = Duration::from_secs(8);

/// Checks every key until nearly all checks are decided in process. Subjects that lease units from Redis then
/// hold them.
fn warm<L: Local>(subject: &L, keys: &[L::Key]) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let fell_back = AtomicUsize::new(0);
        let pass = |part: &[L::Key]| {
            let mut checks = part.iter().flat_map(|key| std::iter::repeat_n(key, L::WARMUP_CHECKS_PER_KEY));
            checks.try_for_each(|key| {
                fell_back.fetch_add(subject.check(key)?.fell_back.into(), Ordering::Relaxed);
                Ok::<_, Failure>(())
            })
        };
        std::thread::scope(|scope| {
            let parts = keys.chunks(keys.len().div_ceil(WARMING));
            let threads: Vec<_> = parts.map(|part| scope.spawn(|| pass(part))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })?;
        // With a time limit, since some subjects never hold all their keys at once.
        let checks = keys.len() * L::WARMUP_CHECKS_PER_KEY;
        if fell_back.into_inner() * 1_000 <= checks || begun.elapsed() > FILLING {
            return Ok(());
        }
    }
}
