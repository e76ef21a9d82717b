//! Hot reload of rule files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use arc_swap::ArcSwap;

use super::file_stamps::FileStamps;
use super::load::{FilesRead, Loader, Rules};
use super::ruled::RulesLimiter;
use crate::error::Error;
use crate::limiter::Limiter;

/// The time between two polls of the files' metadata. Changed files are read once two polls in a row return
/// the same metadata, so that a partly written file is rarely read.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Polls (0.8 s in total) after which the files are read even if their metadata is unchanged: some file
/// systems record modification times in whole seconds.
const POLLS_BEFORE_REREAD: u32 = 16;

/// Rules on a limiter that reload when their files change, from [`Loader::watch`].
///
/// Cheap to clone. Watching ends when the last clone is dropped. A [`RulesLimiter`] converts to this type;
/// its rules never change.
///
/// A change takes effect within a second, by whichever method it is made: an edit, a rename, or a replaced
/// link (Kubernetes swaps the files of a ConfigMap this way). If any file has an error, all rules stay as
/// they were, and the limiter's [`Observer::reloaded`](crate::Observer::reloaded) is notified. Counts are
/// kept: see the [module](super#counts-when-rules-change).
///
/// A file that is written in place and slowly can be read partly written. To avoid this, write a new file and
/// rename it.
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
/// let decision = watched.limits().check("auth", &[Descriptor::from([("user", "ada")])]).await?;
/// # let _ = decision; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReloadingRules {
    shared: Arc<ReloadInner>,
    _watcher: Option<Arc<WatcherThread>>,
}

struct ReloadInner {
    limits: ArcSwap<RulesLimiter>,
    /// The conditions of the rules' users. Locked while new rules are applied, so that no condition is added
    /// between the validation and the swap.
    needs: Mutex<Vec<Weak<Need>>>,
}

/// A condition that new rules must satisfy, set by a user of the rules such as an HTTP layer.
pub(crate) type Need = dyn Fn(&Rules) -> Result<(), Error> + Send + Sync;

/// The thread that watches the files. Drop wakes it, so that it can exit.
#[derive(Debug)]
struct WatcherThread {
    thread: Thread,
}

impl ReloadingRules {
    /// Returns the current rules. Call this once per request. A check in progress is decided by the rules it
    /// started with.
    #[must_use]
    pub fn limits(&self) -> RulesLimiter {
        RulesLimiter::clone(&self.shared.limits.load())
    }

    /// Adds a condition: reloads apply only rules that satisfy it.
    ///
    /// # Errors
    ///
    /// If the current rules do not satisfy the condition.
    #[cfg(feature = "tower")]
    pub(crate) fn require(&self, need: &Arc<Need>) -> Result<(), Error> {
        let mut needs = self.shared.needs.lock().unwrap_or_else(PoisonError::into_inner);
        need(self.shared.limits.load().rules())?;
        needs.push(Arc::downgrade(need));
        Ok(())
    }
}

impl From<&Self> for ReloadingRules {
    fn from(watched: &Self) -> Self {
        watched.clone()
    }
}

impl From<RulesLimiter> for ReloadingRules {
    fn from(limits: RulesLimiter) -> Self {
        Self { shared: Arc::new(ReloadInner::new(limits)), _watcher: None }
    }
}

impl ReloadInner {
    fn new(limits: RulesLimiter) -> Self {
        Self { limits: ArcSwap::from_pointee(limits), needs: Mutex::default() }
    }

    /// Applies the rules if they satisfy all conditions, and returns their number.
    fn apply(&self, rules: &Rules, limiter: &Limiter) -> Result<usize, Error> {
        let mut needs = self.needs.lock().unwrap_or_else(PoisonError::into_inner);
        needs.retain(|need| need.strong_count() > 0);
        needs.iter().filter_map(Weak::upgrade).try_for_each(|need| need(rules))?;
        self.limits.store(Arc::new(rules.bind(limiter)));
        Ok(rules.iter().count())
    }
}

impl std::fmt::Debug for ReloadInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReloadInner").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Drop for WatcherThread {
    fn drop(&mut self) {
        self.thread.unpark();
    }
}

impl Loader {
    /// Loads the rules of a file or a folder, as [`load`](Self::load) does, and watches it for changes.
    ///
    /// A thread polls the files' metadata 20 times a second and reads the files after a change. It does not
    /// depend on change notifications, which some file systems do not send.
    ///
    /// # Errors
    ///
    /// All errors of all files, as one error for which [`Error::is_config`] is true. Also if the thread
    /// cannot be started.
    pub fn watch(&self, path: impl AsRef<Path>, limiter: &Limiter) -> Result<ReloadingRules, Error> {
        let path = path.as_ref().to_owned();
        let loaded = FilesRead::new(&path);
        let limits = self.rules(&loaded)?.bind(limiter);
        limiter.core.notify_loaded(limits.rules().iter().count());
        let shared = Arc::new(ReloadInner::new(limits));
        let watcher = Watcher {
            loader: self.clone(),
            path,
            limiter: limiter.clone(),
            shared: Arc::downgrade(&shared),
            runtime: tokio::runtime::Handle::try_current().ok(),
        };
        let thread = thread::Builder::new().name("tidegate-rules".to_owned());
        let thread = thread
            .spawn(move || watcher.run(loaded))
            .map_err(|error| Error::config(format!("cannot start the rules watcher thread: {error}")))?;
        let watcher = WatcherThread { thread: thread.thread().clone() };
        Ok(ReloadingRules { shared, _watcher: Some(Arc::new(watcher)) })
    }
}

struct Watcher {
    loader: Loader,
    path: PathBuf,
    limiter: Limiter,
    /// Fails to upgrade once the last `ReloadingRules` is dropped.
    shared: Weak<ReloadInner>,
    /// The runtime on which dropped gates return their leases.
    runtime: Option<tokio::runtime::Handle>,
}

impl Watcher {
    fn run(self, mut loaded: FilesRead) {
        let _context = self.runtime.as_ref().map(tokio::runtime::Handle::enter);
        // The stamps of the last poll, the stamps of the last read, and the polls since that read.
        let (mut last, mut last_read, mut polls) = (FileStamps::new(&self.path), None, 0);
        while self.shared.strong_count() > 0 {
            thread::park_timeout(POLL_INTERVAL);
            let now = FileStamps::new(&self.path);
            let is_stable = now == last;
            last = now;
            polls += 1;
            if !is_stable || (last_read.as_ref() == Some(&last) && polls < POLLS_BEFORE_REREAD) {
                continue;
            }
            let read = FilesRead::new(&self.path);
            // Race: a writer replaces a file during the read, so `read` can mix two versions. Try again.
            if FileStamps::new(&self.path) != last {
                continue;
            }
            (last_read, polls) = (Some(last.clone()), 0);
            if read != loaded {
                self.reload(&read);
                loaded = read;
            }
        }
    }

    fn reload(&self, read: &FilesRead) {
        let Some(shared) = self.shared.upgrade() else { return };
        let rules = self.loader.rules(read).map_err(Error::from);
        let applied = rules.and_then(|rules| shared.apply(&rules, &self.limiter));
        self.limiter.core.notify_reloaded(applied.as_ref().copied());
    }
}
