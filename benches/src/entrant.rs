//! A subject in a case: what differs from one to the next is hidden once per round, not once per ask.

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

    /// Connects, and puts the keys into Redis where the case wants them there.
    fn prepare(&mut self, runtime: &Runtime) -> Result<(), Failure>;

    fn round(&self, runtime: &Runtime, length: Length) -> Result<Round, Failure>;
}

/// A slow subject's keys come in its first rounds.
const FILLING: Duration = Duration::from_secs(3);

const UNPREPARED: &str = "not prepared";

/// One that asks Redis.
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
        let keys = Keys::new(self.case, |number| S::key(self.case, number), S::INFO.most);
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

/// One that decides in this process.
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
        let names = Keys::new(self.case, |number| format!("user:{number}"), L::INFO.most);
        let keys = names.names.iter().map(|name| L::key(name)).collect::<Result<Vec<_>, _>>()?;
        if L::OFTEN == 1 {
            warm(&*subject, &keys)?;
        }
        self.ready = Some(Ready { subject, names, keys });
        Ok(())
    }

    fn round(&self, _: &Runtime, length: Length) -> Result<Round, Failure> {
        let Ready { subject, names, keys } = self.ready.as_ref().ok_or(UNPREPARED)?;
        // Just before the first round, since a lease does not outlive the preparations of others.
        if L::OFTEN > 1 && !self.is_warm.swap(true, Ordering::Relaxed) {
            warm(&**subject, keys)?;
            let grow = Length { warm: GROW, measured: Duration::ZERO };
            measure::local_round(subject, names, keys, self.case, grow)?;
        }
        measure::local_round(subject, names, keys, self.case, length)
    }
}

/// Threads that warm up a subject: many, since each waits for Redis.
const WARMING: usize = 128;
/// Then for so long as it is going to be measured: blocks of units become as large as the demand. After 1 s
/// instead, one leased key was measured at a fifth of governor's rate: just before, 100,000 leases had ended.
const GROW: Duration = Duration::from_secs(8);

/// Asks for each key until nearly all asks are decided in this process: those who lease units from
/// Redis have them then.
fn warm<L: Local>(subject: &L, keys: &[L::Key]) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let fell_back = AtomicUsize::new(0);
        let pass = |part: &[L::Key]| {
            part.iter().flat_map(|key| std::iter::repeat_n(key, L::OFTEN)).try_for_each(|key| {
                fell_back.fetch_add(subject.check(key)?.fell_back.into(), Ordering::Relaxed);
                Ok::<_, Failure>(())
            })
        };
        std::thread::scope(|scope| {
            let parts = keys.chunks(keys.len().div_ceil(WARMING));
            let threads: Vec<_> = parts.map(|part| scope.spawn(|| pass(part))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
        })?;
        // Not for ever: some never have all of their keys at once.
        if fell_back.into_inner() * 1_000 <= keys.len() * L::OFTEN || begun.elapsed() > FILLING {
            return Ok(());
        }
    }
}
