//! Captures the events of `tracing` in a test.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

/// With one subscriber in the process, tracing asks it alone whether events of a place are wanted, also if the thread that
/// comes there first has none. With these, it asks all.
static SUBSCRIBERS: LazyLock<[Dispatch; 2]> =
    LazyLock::new(|| [Dispatch::new(NoSubscriber::default()), Dispatch::new(NoSubscriber::default())]);

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the events of this thread while the function runs, one a line.
pub fn captured_events(run: impl FnOnce()) -> String {
    LazyLock::force(&SUBSCRIBERS);
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, run);
    let bytes = buffer.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}
