//! Rules that follow their files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::load::{Loader, Read};
use super::ruled::RuledLimiter;
use crate::error::Error;
use crate::limiter::Limiter;

/// How often files are looked at. What has changed counts once it has stood still for as long,
/// so that no file is read that is half written.
const PAUSE: Duration = Duration::from_millis(250);

/// Rules over a limiter that are read anew when their files change: from
/// [`Loader::watch`]. Dropped, it follows them no more.
///
/// What changes is live within a second, however it came: an edit, a rename, a
/// link that leads elsewhere, as Kubernetes swaps the files of a ConfigMap. If there is a
/// mistake in any file, all rules stay as they were, and the limiter's
/// [`Observer::reloaded`](crate::Observer::reloaded) is told. Counts are kept: see the
/// [module](super#counts-when-rules-change).
///
/// ```no_run
/// # async fn example() -> Result<(), tidegate::Error> {
/// use tidegate::Limiter;
/// use tidegate::rules::{Descriptor, Loader};
///
/// let limiter = Limiter::open("redis://127.0.0.1:6379")?;
/// let watched = Loader::new().watch("/etc/tidegate/rules", &limiter)?;
///
/// // For each request:
/// let ruling = watched.limits().check("auth", &[Descriptor::from([("user", "ada")])]).await?;
/// # let _ = ruling; Ok(()) }
/// ```
#[derive(Debug)]
pub struct Watched {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug)]
struct Shared {
    limits: ArcSwap<RuledLimiter>,
    is_over: AtomicBool,
}

impl Watched {
    /// The rules of the moment: to be asked for anew with each request. A check
    /// that has begun ends under the rules with which it began.
    #[must_use]
    pub fn limits(&self) -> RuledLimiter {
        RuledLimiter::clone(&self.shared.limits.load())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Loader {
    /// The rules in a file or a folder, as [`load`](Self::load) reads them, that
    /// follow it from now on. A thread reads the files four times a second: no
    /// notices of a file system are needed, which some do not give.
    ///
    /// # Errors
    ///
    /// All mistakes of all files, as an error that
    /// [is of the configuration](Error::is_config); also if no thread can be had.
    pub fn watch(&self, path: impl AsRef<Path>, limiter: &Limiter) -> Result<Watched, Error> {
        let path = path.as_ref().to_owned();
        let seen = Read::new(&path);
        let limits = self.rules(&seen)?.bind(limiter);
        limiter.core.tell_loaded(limits.rules().iter().count());
        let shared =
            Arc::new(Shared { limits: ArcSwap::from_pointee(limits), is_over: AtomicBool::new(false) });
        let watching = Watching {
            loader: self.clone(),
            path,
            limiter: limiter.clone(),
            shared: shared.clone(),
            runtime: tokio::runtime::Handle::try_current().ok(),
        };
        let thread = thread::Builder::new().name("tidegate-rules".to_owned());
        let thread = thread
            .spawn(move || watching.run(seen))
            .map_err(|error| Error::config(format!("the rules cannot be watched: {error}")))?;
        Ok(Watched { shared, thread: thread.thread().clone() })
    }
}

struct Watching {
    loader: Loader,
    path: PathBuf,
    limiter: Limiter,
    shared: Arc<Shared>,
    /// Where gates that are dropped give back what they lease.
    runtime: Option<tokio::runtime::Handle>,
}

impl Watching {
    fn run(self, mut seen: Read) {
        let _inside = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        let mut settling = None;
        loop {
            thread::park_timeout(PAUSE);
            if self.shared.is_over.load(Ordering::Acquire) {
                return;
            }
            let read = Read::new(&self.path);
            if read == seen {
                settling = None;
            } else if settling.as_ref() == Some(&read) {
                self.reload(&read);
                seen = read;
                settling = None;
            } else {
                settling = Some(read);
            }
        }
    }

    fn reload(&self, read: &Read) {
        match self.loader.rules(read) {
            Ok(rules) => {
                let count = rules.iter().count();
                self.shared.limits.store(Arc::new(rules.bind(&self.limiter)));
                self.limiter.core.tell_reloaded(Ok(count));
            }
            Err(mistakes) => self.limiter.core.tell_reloaded(Err(&mistakes.into())),
        }
    }
}
