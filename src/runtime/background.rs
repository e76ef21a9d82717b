//! The background thread of a limiter, and the jobs that run on it: probing, heartbeats, following overrides,
//! reconciling after an outage, leases, and the connection of callers on current-thread runtimes.
//!
//! None of these jobs may depend on the runtimes of callers. A current-thread runtime polls its tasks only
//! inside `block_on`, a runtime per call drops them, and a blocked worker delays them. A job that stops there
//! looks as if it were running, so no other task replaces it.

mod job_slot;

use std::sync::mpsc;
use std::{io, thread};

use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub(crate) use self::job_slot::JobSlot;
use crate::runtime::sync::{Mutex, lock};

/// Starts its thread when the first job is spawned. Dropping it ends the thread and all its jobs,
/// without waiting for them.
#[derive(Debug, Default)]
pub(crate) struct Background {
    runtimes: Mutex<Runtimes>,
    uses_callers_runtime: bool,
}

#[derive(Debug, Default)]
struct Runtimes {
    thread: Option<Runtime>,
    /// The multi-thread runtime of the caller that spawned a connection last.
    callers: Option<Handle>,
}

#[derive(Debug)]
struct Runtime {
    handle: Handle,
    /// The thread runs until this is dropped.
    _running: oneshot::Sender<()>,
}

impl Background {
    /// Makes a background without a thread, for tests that move a clock by hand: on a current-thread runtime
    /// the jobs then take turns with the test, in the same order each time.
    pub(crate) fn on_callers_runtime() -> Self {
        Self { uses_callers_runtime: true, ..Self::default() }
    }

    /// Runs the job on the background thread. If the system provides no thread, runs it on the caller's
    /// runtime, if there is one.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) -> Option<JoinHandle<()>> {
        Some(self.thread().or_else(|| Handle::try_current().ok())?.spawn(job))
    }

    /// Runs a connection on a multi-thread runtime of the callers, where a round trip costs no switch of
    /// threads; on the background thread if they have none.
    ///
    /// A job of the background thread that connects does so on the callers' runtime too. So a connection does
    /// not move to the background thread because a probe made it.
    pub(crate) fn spawn_connection(&self, job: impl Future<Output = ()> + Send + 'static) {
        let current = Handle::try_current().ok();
        let is_multi_thread = |runtime: &Handle| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread;
        let callers = match current.filter(is_multi_thread) {
            Some(callers) => Some(lock(&self.runtimes).callers.insert(callers).clone()),
            None => lock(&self.runtimes).callers.clone(),
        };
        match callers {
            Some(callers) => drop(callers.spawn(job)),
            None => drop(self.spawn(job)),
        }
    }

    fn thread(&self) -> Option<Handle> {
        if self.uses_callers_runtime {
            return None;
        }
        let mut runtimes = lock(&self.runtimes);
        if runtimes.thread.is_none() {
            runtimes.thread = Runtime::start().ok();
        }
        runtimes.thread.as_ref().map(|thread| thread.handle.clone())
    }
}

impl Runtime {
    fn start() -> io::Result<Self> {
        let (running, ended) = oneshot::channel();
        // The thread first: if the system provides none, a runtime could not be dropped here, inside of
        // the caller's.
        let (give, take) = mpsc::channel::<tokio::runtime::Runtime>();
        let run = move || {
            if let Ok(runtime) = take.recv() {
                // An error means that the sender was dropped.
                let _ = runtime.block_on(ended);
            }
        };
        thread::Builder::new().name("tidegate".to_owned()).spawn(run)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        if let Err(mpsc::SendError(runtime)) = give.send(runtime) {
            runtime.shutdown_background();
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(Self { handle, _running: running })
    }
}

/// A job that runs once at a time, while there is work for it.
pub(crate) trait Job: Send + 'static {
    /// Ends when there is no more work, or when the limiter was dropped or shut down.
    fn run(&self) -> impl Future<Output = ()> + Send;

    /// Returns whether work was added while the job ended.
    fn is_needed(&self) -> bool;
}

impl JobSlot {
    /// Starts the job unless it is running.
    #[inline]
    pub(crate) fn ensure_running<J: Job>(&self, background: &Background, job: impl FnOnce() -> J) {
        if let Some(mut running) = self.claim() {
            let job = job();
            background.spawn(async move {
                loop {
                    job.run().await;
                    match running.end_unless(|| job.is_needed()) {
                        Some(again) => running = again,
                        None => return,
                    }
                }
            });
        }
    }
}
