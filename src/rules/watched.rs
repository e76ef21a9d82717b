//! Rules that follow their files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::glance::Glance;
use super::load::{Loader, Read, Rules};
use super::ruled::RuledLimiter;
use crate::error::Error;
use crate::limiter::Limiter;

/// How often files are glanced at. What has changed counts once it has stood still for as long,
/// so that hardly a file is read that is half written.
const PAUSE: Duration = Duration::from_millis(50);

/// So many glances may look the same before files are read all the same: some file systems date
/// changes by the second.
const MOST_GLANCES: u32 = 16;

/// Rules over a limiter that are read anew when their files change: from
/// [`Loader::watch`]. Cheap to clone; when the last clone is dropped, it follows them no more. A
/// [`RuledLimiter`] is one too, which never changes.
///
/// What changes is live within a second, however it came: an edit, a rename, a
/// link that leads elsewhere, as Kubernetes swaps the files of a ConfigMap. If there is a
/// mistake in any file, all rules stay as they were, and the limiter's
/// [`Observer::reloaded`](crate::Observer::reloaded) is told. Counts are kept: see the
/// [module](super#counts-when-rules-change).
///
/// Files that are written in place and slowly can be read half written: write another and rename it.
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
#[derive(Clone, Debug)]
pub struct Watched {
    shared: Arc<Shared>,
    _following: Option<Arc<Following>>,
}

struct Shared {
    limits: ArcSwap<RuledLimiter>,
    /// What those who use the rules need of them. Locked while rules are taken.
    needs: Mutex<Vec<Weak<Need>>>,
}

/// What has to be true of rules that somebody uses.
pub(crate) type Need = dyn Fn(&Rules) -> Result<(), Error> + Send + Sync;

/// The thread that looks at the files, for as long as this lives.
#[derive(Debug)]
struct Following {
    thread: Thread,
}

impl Watched {
    /// The rules of the moment: to be asked for anew with each request. A check
    /// that has begun ends under the rules with which it began.
    #[must_use]
    pub fn limits(&self) -> RuledLimiter {
        RuledLimiter::clone(&self.shared.limits.load())
    }

    /// From now on only rules are taken of which this is true.
    ///
    /// # Errors
    ///
    /// If it is not true of those in force.
    #[cfg(feature = "tower")]
    pub(crate) fn require(&self, need: &Arc<Need>) -> Result<(), Error> {
        let mut needs = self.shared.needs.lock().unwrap_or_else(PoisonError::into_inner);
        need(self.shared.limits.load().rules())?;
        needs.push(Arc::downgrade(need));
        Ok(())
    }
}

impl From<&Self> for Watched {
    fn from(watched: &Self) -> Self {
        watched.clone()
    }
}

impl From<RuledLimiter> for Watched {
    fn from(limits: RuledLimiter) -> Self {
        Self { shared: Arc::new(Shared::new(limits)), _following: None }
    }
}

impl Shared {
    fn new(limits: RuledLimiter) -> Self {
        Self { limits: ArcSwap::from_pointee(limits), needs: Mutex::default() }
    }

    /// Puts them in force, and says how many they are.
    fn take(&self, rules: &Rules, limiter: &Limiter) -> Result<usize, Error> {
        let mut needs = self.needs.lock().unwrap_or_else(PoisonError::into_inner);
        needs.retain(|need| need.strong_count() > 0);
        needs.iter().filter_map(Weak::upgrade).try_for_each(|need| need(rules))?;
        self.limits.store(Arc::new(rules.bind(limiter)));
        Ok(rules.iter().count())
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.thread.unpark();
    }
}

impl Loader {
    /// The rules in a file or a folder, as [`load`](Self::load) reads them, that
    /// follow it from now on. A thread glances at the files 20 times a second and reads those that
    /// have changed: no notices of a file system are needed, which some do not give.
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
        let shared = Arc::new(Shared::new(limits));
        let watching = Watching {
            loader: self.clone(),
            path,
            limiter: limiter.clone(),
            shared: Arc::downgrade(&shared),
            runtime: tokio::runtime::Handle::try_current().ok(),
        };
        let thread = thread::Builder::new().name("tidegate-rules".to_owned());
        let thread = thread
            .spawn(move || watching.run(seen))
            .map_err(|error| Error::config(format!("the rules cannot be watched: {error}")))?;
        let following = Following { thread: thread.thread().clone() };
        Ok(Watched { shared, _following: Some(Arc::new(following)) })
    }
}

struct Watching {
    loader: Loader,
    path: PathBuf,
    limiter: Limiter,
    /// Gone when nobody uses the rules any more.
    shared: Weak<Shared>,
    /// Where gates that are dropped give back what they lease.
    runtime: Option<tokio::runtime::Handle>,
}

impl Watching {
    fn run(self, mut seen: Read) {
        let _inside = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        // What was glanced at last, and when the files that were read last looked so.
        let (mut last, mut known, mut same) = (Glance::new(&self.path), None, 0);
        while self.shared.strong_count() > 0 {
            thread::park_timeout(PAUSE);
            let now = Glance::new(&self.path);
            let stands_still = now == last;
            last = now;
            same += 1;
            if !stands_still || (known.as_ref() == Some(&last) && same < MOST_GLANCES) {
                continue;
            }
            let read = Read::new(&self.path);
            // Else some of them were swapped meanwhile.
            if Glance::new(&self.path) != last {
                continue;
            }
            (known, same) = (Some(last.clone()), 0);
            if read != seen {
                self.reload(&read);
                seen = read;
            }
        }
    }

    fn reload(&self, read: &Read) {
        let Some(shared) = self.shared.upgrade() else { return };
        let taken = self.loader.rules(read).map_err(Error::from);
        let taken = taken.and_then(|rules| shared.take(&rules, &self.limiter));
        self.limiter.core.tell_reloaded(taken.as_ref().copied());
    }
}
