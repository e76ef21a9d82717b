//! Hot reload of rule files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::thread::Thread;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tidegate::{Error, Event, Limiter};

use super::config_error::{ConfigError, ConfigErrors};
use super::files::FilesRead;
use super::limiter::RulesLimiter;
use super::load::{Loader, Rules};
use super::timed_reader::{READ_TIMEOUT, TimedReader};
use crate::files::SourceFile;

/// The time between two readings of the files. A change takes effect once two readings in a row are equal, so
/// that a partly written file, or two versions of files that are swapped together, rarely or never does.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Rules on a limiter that reload when their files change, from [`Loader::watch`].
///
/// Cheap to clone. Watching ends when the last clone is dropped. A [`RulesLimiter`] converts to this type;
/// its rules never change.
///
/// A change takes effect within a second, by whichever method it is made: an edit, a rename, or a replaced
/// link (Kubernetes swaps the files of a ConfigMap this way). If any file has an error, all rules stay as
/// they were, and the limiter's [observer](tidegate::Event::RulesReloaded) is notified. Counts, and
/// the leases of unchanged rules, are kept: see the [module](super#counts-when-rules-change).
///
/// A file that is written in place and slowly can be read partly written. To avoid this, write a new file and
/// rename it.
///
/// ```no_run
/// # async fn example() -> Result<(), tidegate::Error> {
/// use tidegate::Limiter;
/// use tidegate_rules::{Descriptor, Loader};
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
    last_reload: ArcSwapOption<Reload>,
}

/// The last change of the files, from [`ReloadingRules::last_reload`].
#[derive(Debug)]
pub struct Reload {
    at: Instant,
    result: Result<usize, Error>,
    errors: Option<ConfigErrors>,
    sources: Arc<Vec<SourceFile>>,
}

impl Reload {
    /// Returns the time since then.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Returns the number of rules, which are in force. An error names all mistakes in the files; then the previous
    /// rules stay in force.
    ///
    /// # Errors
    ///
    /// The error with which the files were rejected.
    pub fn result(&self) -> Result<usize, &Error> {
        self.result.as_ref().copied()
    }

    /// Iterates over the errors in the files, with their positions. Empty if the rules were valid, also if a
    /// [condition](ReloadingRules::require) rejected them.
    pub fn errors(&self) -> impl Iterator<Item = &ConfigError> {
        self.errors.iter().flat_map(ConfigErrors::iter)
    }

    /// Returns the name and the text of each file that was read then. Leaves out files that are no rule files.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        let of_rules = self.sources.iter().filter(|source| source.is_rule_file());
        of_rules.map(|source| (&*source.name, &*source.text))
    }
}

/// A condition that new rules must satisfy, set by a user of the rules such as an HTTP layer.
pub type Need = dyn Fn(&Rules) -> Result<(), Error> + Send + Sync;

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

    /// Returns the last change of the files; `None` if they are as they were loaded first.
    #[must_use]
    pub fn last_reload(&self) -> Option<Arc<Reload>> {
        self.shared.last_reload.load_full()
    }

    /// Adds a condition: reloads apply only rules that satisfy it. It ends when the last `Arc` of it is
    /// dropped.
    ///
    /// # Errors
    ///
    /// If the current rules do not satisfy the condition.
    pub fn require(&self, need: &Arc<Need>) -> Result<(), Error> {
        let mut needs = self.shared.lock_needs();
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
    /// Locks the conditions. Ignores poisoning: a condition that panics must not make later reloads panic.
    fn lock_needs(&self) -> MutexGuard<'_, Vec<Weak<Need>>> {
        self.needs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new(limits: RulesLimiter) -> Self {
        Self {
            limits: ArcSwap::from_pointee(limits),
            needs: Mutex::default(),
            last_reload: ArcSwapOption::empty(),
        }
    }

    /// Applies the rules if they satisfy all conditions, and returns their number.
    fn apply(&self, rules: &Rules) -> Result<usize, Error> {
        let mut needs = self.lock_needs();
        needs.retain(|need| need.strong_count() > 0);
        needs.iter().filter_map(Weak::upgrade).try_for_each(|need| need(rules))?;
        let limits = self.limits.load().rebind(rules);
        self.limits.store(Arc::new(limits));
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
    /// A thread has the files read 20 times a second, by another one. It does not depend on change notifications, which some file
    /// systems do not send, nor on modification times, which some record in whole seconds. It keeps their text.
    /// A file that [`load`](Self::load) rejects never blocks the thread. A reading that hangs for 5 s, as on a dead file
    /// server, is reported as an error of the files, and another one begins.
    ///
    /// # Errors
    ///
    /// All errors of all files, as one error for which [`Error::is_config`] is true. Also if the thread
    /// cannot be started.
    pub fn watch(&self, path: impl AsRef<Path>, limiter: &Limiter) -> Result<ReloadingRules, Error> {
        let path = path.as_ref().to_owned();
        let loaded = self.read(&path);
        let limits = self.rules(&loaded)?.bind(limiter);
        limiter.notify(&Event::RulesLoaded(limits.rules().iter().count()));
        let shared = Arc::new(ReloadInner::new(limits));
        let watcher =
            Watcher { loader: self.clone(), path, limiter: limiter.clone(), shared: Arc::downgrade(&shared) };
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
}

impl Watcher {
    fn run(self, loaded: FilesRead) {
        let (loader, path) = (self.loader.clone(), self.path.clone());
        let mut reader = TimedReader::new(READ_TIMEOUT, move || loader.read(&path));
        let mut loaded = Arc::new(loaded);
        // Shared if they are equal, so that the text of the files is held once.
        let mut last = loaded.clone();
        while self.shared.strong_count() > 0 {
            thread::park_timeout(POLL_INTERVAL);
            let now = reader.read().unwrap_or_else(|error| FilesRead::failed(&self.path, &error));
            if now != *last {
                last = Arc::new(now);
            } else if !Arc::ptr_eq(&last, &loaded) {
                if last != loaded {
                    self.reload(&last);
                }
                loaded = last.clone();
            }
        }
    }

    fn reload(&self, read: &FilesRead) {
        let Some(shared) = self.shared.upgrade() else { return };
        let (result, errors) = match self.loader.rules(read) {
            Ok(rules) => (shared.apply(&rules), None),
            Err(errors) => (Err(Error::from(errors.clone())), Some(errors)),
        };
        let reload = Arc::new(Reload { at: Instant::now(), result, errors, sources: read.sources.clone() });
        shared.last_reload.store(Some(reload.clone()));
        self.limiter.notify(&Event::RulesReloaded(reload.result()));
    }
}
