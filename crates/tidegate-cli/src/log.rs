//! The log of the service, on standard error. A thread of its own writes it, so that a reader that stalls holds up neither
//! requests nor the end of the process.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use std::{io, thread};

use tidegate_server::ServiceMetrics;

use crate::output::{Level, line};

/// The maximum number of entries that wait for the reader. Further ones are dropped and counted.
const MAX_WAITING: usize = 1_024;

/// How long the end of the process waits for the reader.
const LAST_WAIT: Duration = Duration::from_secs(1);

static LOG: OnceLock<Log> = OnceLock::new();

/// A log with its thread.
struct Log {
    /// Whether entries are JSON.
    json: bool,
    /// `None` after the end.
    waiting: Mutex<Option<SyncSender<String>>>,
    /// Disconnected once the thread has written all entries.
    written: Mutex<Receiver<()>>,
    /// The dropped entries that the log does not mention yet.
    dropped: Arc<AtomicU64>,
    metrics: OnceLock<ServiceMetrics>,
}

/// Makes all further output to standard error entries of the log.
pub(crate) fn start(json: bool) -> io::Result<()> {
    let log = Log::new(json, MAX_WAITING, io::stderr())?;
    // There is one service in a process.
    let _ = LOG.set(log);
    Ok(())
}

/// Counts dropped entries in these metrics, too.
pub(crate) fn count_in(metrics: &ServiceMetrics) {
    if let Some(log) = LOG.get() {
        let _ = log.metrics.set(metrics.clone());
    }
}

/// Writes an entry, or drops it if too many wait. Returns false if there is no log.
pub(crate) fn write(level: Level, message: &str, object: &serde_json::Value) -> bool {
    LOG.get().map(|log| log.write(level, message, object)).is_some()
}

/// Ends the log: waits until its entries are written, for at most a second.
pub(crate) fn end() {
    if let Some(log) = LOG.get() {
        log.end(LAST_WAIT);
    }
}

impl Log {
    fn new(json: bool, max_waiting: usize, mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, entries) = sync_channel::<String>(max_waiting);
        let (is_writing, written) = sync_channel(0);
        let dropped = Arc::<AtomicU64>::default();
        let unmentioned = dropped.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            let _is_writing: SyncSender<()> = is_writing;
            // A closed standard error must not end the service.
            let mut write = |entry: String| drop(out.write_all((entry + "\n").as_bytes()));
            for entry in entries {
                write(entry);
                let missing = unmentioned.swap(0, Ordering::Relaxed);
                if missing > 0 {
                    write(entry_of_dropped(json, missing));
                }
            }
        })?;
        Ok(Self {
            json,
            waiting: Mutex::new(Some(sender)),
            written: Mutex::new(written),
            dropped,
            metrics: OnceLock::new(),
        })
    }

    fn write(&self, level: Level, message: &str, object: &serde_json::Value) {
        let entry = line(self.json, level, &now(), message, object);
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

fn entry_of_dropped(json: bool, missing: u64) -> String {
    let entries = if missing == 1 { "entry is" } else { "entries are" };
    let message = format!("standard error was not read in time: {missing} {entries} missing here");
    let object = serde_json::json!({ "warning": { "message": message, "dropped": missing } });
    line(json, Level::Warn, &now(), &message, &object)
}

/// Returns the time of an entry, in UTC: `2026-11-24T14:03:05.123Z`.
fn now() -> String {
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
        (Log::new(false, max_waiting, Reader(sender)).unwrap(), read)
    }

    fn warn(log: &Log, message: &str) {
        log.write(Level::Warn, message, &serde_json::Value::Null);
    }

    #[test]
    fn entries_that_a_stalled_reader_leaves_no_room_for_are_dropped_and_mentioned() {
        let (log, read) = log(2);
        for number in 0..100 {
            warn(&log, &format!("entry {number}"));
        }
        drop(log);
        let text: String = read.iter().collect();
        let entries: Vec<&str> = text.lines().map(|line| line.split_once(" WARN ").unwrap().1).collect();
        // The thread may have taken an entry before the queue was full.
        let written = entries.len() as u64 - 1;
        assert_eq!(entries[0], "entry 0");
        let mentioned =
            format!("standard error was not read in time: {} entries are missing here", 100 - written);
        assert_eq!(entries[1], mentioned);
        assert!((2..=3).contains(&written), "{entries:?}");
    }

    #[test]
    fn end_waits_for_entries_but_not_for_a_reader_that_stalls() {
        let (log, read) = log(2);
        warn(&log, "last");
        // Ends, although nobody reads.
        log.end(Duration::from_millis(1));
        let (sender, ended) = channel();
        let ending = thread::spawn(move || {
            log.end(Duration::from_secs(600));
            sender.send(()).unwrap();
        });
        let text: String = read.iter().collect();
        assert!(text.ends_with(" WARN last\n") && text.lines().count() == 1, "{text}");
        ended.recv_timeout(Duration::from_secs(60)).unwrap();
        ending.join().unwrap();
    }
}
