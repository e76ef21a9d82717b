//! Reads repeatedly by another thread, and goes on when a reading hangs, as that of a file on a dead file server does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use std::{io, thread};

/// The time after which a reading is given up.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of readings that were given up and have not ended. With more, none begins.
const MAX_HANGING: usize = 4;

/// A function that reads, and the thread that calls it. A thread whose reading hangs is left alone, and ends with it.
pub(super) struct TimedReader<T> {
    read: Arc<dyn Fn() -> T + Send + Sync>,
    timeout: Duration,
    thread: Option<ReaderThread<T>>,
    /// Has a clone in each thread.
    threads: Arc<()>,
}

/// A thread that waits for the order to read.
struct ReaderThread<T> {
    orders: Sender<()>,
    results: Receiver<T>,
}

impl<T: Send + 'static> TimedReader<T> {
    pub(super) fn new(timeout: Duration, read: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), timeout, thread: None, threads: Arc::default() }
    }

    /// Reads.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::TimedOut`] if that takes too long, or the error with which no thread can be started.
    pub(super) fn read(&mut self) -> io::Result<T> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => self.start()?,
        };
        // A thread that has panicked neither receives nor sends.
        let result =
            thread.orders.send(()).ok().and_then(|()| thread.results.recv_timeout(self.timeout).ok());
        let result = result.ok_or_else(|| self.late())?;
        self.thread = Some(thread);
        Ok(result)
    }

    fn late(&self) -> io::Error {
        let text = format!("it did not end within {:?}. See whether its file server answers", self.timeout);
        io::Error::new(io::ErrorKind::TimedOut, text)
    }

    fn start(&self) -> io::Result<ReaderThread<T>> {
        // One is this value's own.
        if Arc::strong_count(&self.threads) > MAX_HANGING {
            // In place of the reading.
            thread::park_timeout(self.timeout);
            return Err(self.late());
        }
        let (orders, received) = channel();
        let (sender, results) = channel();
        let (read, counted) = (self.read.clone(), self.threads.clone());
        thread::Builder::new()
            .name("tidegate-read".to_owned())
            .spawn(move || {
                let _counted = counted;
                for () in received {
                    if sender.send(read()).is_err() {
                        break;
                    }
                }
            })
            .map_err(|error| io::Error::new(error.kind(), format!("no thread can be started: {error}")))?;
        Ok(ReaderThread { orders, results })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, mpsc};

    use super::*;

    /// Returns a reader that returns the number of its reading, and the ends of those that are told to hang.
    fn reader(hanging: usize) -> (TimedReader<usize>, Sender<()>) {
        let (end, ends) = mpsc::channel();
        let (ends, count) = (Mutex::new(ends), AtomicUsize::default());
        let reader = TimedReader::new(Duration::from_millis(50), move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            if number < hanging {
                let _ = ends.lock().unwrap().recv();
            }
            number
        });
        (reader, end)
    }

    #[test]
    fn reading_that_hangs_does_not_prevent_the_next_one() {
        let (mut reader, end) = reader(1);
        let error = reader.read().unwrap_err().to_string();
        assert_eq!(error, "it did not end within 50ms. See whether its file server answers");
        // On a loaded machine, a reading can be late.
        let next = (0..MAX_HANGING).find_map(|_| reader.read().ok());
        assert!(next.is_some_and(|number| number > 0), "{next:?}");
        drop(end);
    }

    #[test]
    fn number_of_hanging_readings_is_bounded_and_readings_begin_again() {
        let (mut reader, end) = reader(MAX_HANGING);
        for _ in 0..2 * MAX_HANGING {
            assert_eq!(reader.read().unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(Arc::strong_count(&reader.threads), 1 + MAX_HANGING);
        // Ends all of them.
        drop(end);
        let next = (0..100).find_map(|_| reader.read().ok());
        assert!(next.is_some_and(|number| number >= MAX_HANGING), "{next:?}");
    }
}
