//! The log of the service, on standard error, and its addresses, on standard output. A thread of its own writes to each, so
//! that a reader that stalls holds up neither the start, nor requests, nor the end of the process.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use std::{io, thread};

use tidegate_server::ServiceMetrics;

/// The maximum number of entries that wait for the reader. Further ones are dropped and counted.
const MAX_WAITING: usize = 1_024;

/// How long the end of the process waits for the reader.
const LAST_WAIT: Duration = Duration::from_secs(1);

static LOG: OnceLock<Log> = OnceLock::new();
/// Standard output.
static PRINTED: OnceLock<Log> = OnceLock::new();

/// A log with its thread.
struct Log {
    /// `None` after the end.
    waiting: Mutex<Option<SyncSender<String>>>,
    /// Disconnected once the thread has written all entries.
    written: Mutex<Receiver<()>>,
    /// The dropped entries that the log does not mention yet.
    dropped: Arc<AtomicU64>,
    metrics: OnceLock<ServiceMetrics>,
}

/// Starts the log. `mention` makes the entry that mentions a number of dropped ones. `unprinted` makes the entry of an error
/// of standard output.
pub(crate) fn start(
    mention: impl Fn(u64) -> String + Send + 'static,
    unprinted: impl Fn(&io::Error) -> String + Send + 'static,
) -> io::Result<()> {
    let log = Log::new(MAX_WAITING, mention, io::stderr(), |_| {})?;
    // There is one service in a process.
    let _ = LOG.set(log);
    let printed =
        Log::new(MAX_WAITING, |_| String::new(), io::stdout(), move |error| write(unprinted(error)))?;
    let _ = PRINTED.set(printed);
    Ok(())
}

/// Counts dropped entries in these metrics, too.
pub(crate) fn count_in(metrics: &ServiceMetrics) {
    if let Some(log) = LOG.get() {
        let _ = log.metrics.set(metrics.clone());
    }
}

/// Returns whether there is a log, also after its end.
pub(crate) fn is_started() -> bool {
    LOG.get().is_some()
}

/// Writes an entry, or drops it if too many wait.
pub(crate) fn write(entry: String) {
    if let Some(log) = LOG.get() {
        log.write(entry);
    }
}

/// Prints a text to standard output, once its reader takes it.
pub(crate) fn print(text: String) {
    if let Some(printed) = PRINTED.get() {
        printed.write(text);
    }
}

/// Ends the log: waits until its entries are written, for at most a second. Standard output is first, for half of the time:
/// its errors are entries.
pub(crate) fn end() {
    for log in [&PRINTED, &LOG].into_iter().filter_map(OnceLock::get) {
        log.end(LAST_WAIT / 2);
    }
}

impl Log {
    fn new(
        max_waiting: usize,
        mention: impl Fn(u64) -> String + Send + 'static,
        mut out: impl Write + Send + 'static,
        failed: impl Fn(&io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, entries) = sync_channel::<String>(max_waiting);
        let (is_writing, written) = sync_channel(0);
        let dropped = Arc::<AtomicU64>::default();
        let unmentioned = dropped.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            let _is_writing: SyncSender<()> = is_writing;
            // A closed or full stream must not end the service.
            let mut write = |entry: String| {
                let written = out.write_all((entry + "\n").as_bytes()).and_then(|()| out.flush());
                written.unwrap_or_else(|error| failed(&error));
            };
            for entry in entries {
                write(entry);
                let missing = unmentioned.swap(0, Ordering::Relaxed);
                if missing > 0 {
                    write(mention(missing));
                }
            }
        })?;
        Ok(Self {
            waiting: Mutex::new(Some(sender)),
            written: Mutex::new(written),
            dropped,
            metrics: OnceLock::new(),
        })
    }

    fn write(&self, entry: String) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_queued = waiting.as_ref().is_some_and(|waiting| waiting.try_send(entry).is_ok());
        if !is_queued {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            if let Some(metrics) = self.metrics.get() {
                metrics.count_dropped_log_entry();
            }
        }
    }

    fn end(&self, patience: Duration) {
        drop(self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take());
        // Either the thread has ended, or the reader stalls.
        let _ = self.written.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(patience);
    }
}

/// Returns the time for an entry, in UTC: `2026-11-24T14:03:05.123Z`.
pub(crate) fn now() -> String {
    #[allow(clippy::disallowed_methods, reason = "the time of an entry is shown, and decides nothing")]
    let now = SystemTime::now();
    humantime::format_rfc3339_millis(now).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Receives what the log writes. The log waits until each write is taken.
    struct Reader(SyncSender<String>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            self.0.send(text).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(max_waiting: usize) -> (Log, Receiver<String>) {
        let (sender, read) = sync_channel(0);
        (Log::new(max_waiting, |missing| format!("{missing} missing"), Reader(sender), |_| {}).unwrap(), read)
    }

    #[test]
    fn entries_that_a_stalled_reader_leaves_no_room_for_are_dropped_and_mentioned() {
        let (log, read) = log(2);
        for number in 0..100 {
            log.write(format!("entry {number}"));
        }
        drop(log);
        let text: String = read.iter().collect();
        let entries: Vec<&str> = text.lines().collect();
        // The thread may have taken an entry before the queue was full.
        let written = entries.len() as u64 - 1;
        assert_eq!(entries[0], "entry 0");
        assert_eq!(entries[1], format!("{} missing", 100 - written));
        assert!((2..=3).contains(&written), "{entries:?}");
    }

    #[test]
    fn end_waits_for_entries_but_not_for_a_reader_that_stalls() {
        let (log, read) = log(2);
        log.write("last".to_owned());
        // Ends, although nobody reads.
        log.end(Duration::from_millis(1));
        let (sender, ended) = channel();
        let ending = thread::spawn(move || {
            log.end(Duration::from_secs(600));
            sender.send(()).unwrap();
        });
        let text: String = read.iter().collect();
        assert_eq!(text, "last\n");
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
        ending.join().unwrap();
    }
}
