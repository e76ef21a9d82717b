use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Mutex, PoisonError},
};

use crate::Error;

/// Controls a server's wall clock: writes the file that `clock.c`, preloaded into the server, reads.
#[derive(Debug)]
pub(crate) struct Clock {
    file: File,
    offset: Mutex<i64>,
}

/// Options of every server. Without the last one, a thread of the allocator sleeps until a time of the server's
/// clock: where that is stopped in the past, the thread never sleeps and takes a processor.
pub(crate) const OPTIONS: [&str; 6] = ["--save", "", "--appendonly", "no", "--jemalloc-bg-thread", "no"];

/// Returns the library that `build.rs` builds.
pub(crate) fn library() -> Result<&'static Path, Error> {
    option_env!("CLOCK_LIBRARY").map(Path::new).ok_or(Error::NoClock)
}

impl Clock {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = File::options().write(true).open(path).map_err(|error| Error::io(path, error))?;
        Ok(Self { file, offset: Mutex::new(0) })
    }

    // The server maps the file, and observes a write the next time it reads the clock.

    pub(crate) fn shift(&self, micros: i64) -> bool {
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        *offset += micros;
        self.file.write_all_at(&offset.to_ne_bytes(), 0).is_ok()
    }

    pub(crate) fn freeze(&self, micros: u64) -> bool {
        self.file.write_all_at(&micros.to_ne_bytes(), 8).is_ok()
    }
}
