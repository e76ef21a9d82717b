//! Reads the files that options name: certificates, keys, secrets and the configuration of the service.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::output;
use crate::redis_url::redact_urls;
use crate::units::human;

/// The maximum size of a file of an option. Certificates and secrets are far smaller.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The options whose file is a password, a key or a secret. A user may give the secret in the place of its file.
const SECRET_OPTIONS: [&str; 6] = [
    "--password-file",
    "--hmac-secret-file",
    "--reservation-secret-file",
    "--tls-key",
    "--grpc-key",
    "--admin-tokens",
];

/// The maximum number of readings of a file that have not ended.
const MAX_READINGS: usize = 4;

/// The file of an option, which can be read repeatedly.
///
/// Opening or reading a pipe, or a file of an unreachable file server, can block forever, so another thread does it, and
/// may outlive a call of [`read`](Self::read). The next call begins another reading, of a regular file only: a pipe has
/// its text once, and the call waits for the first reading.
#[derive(Debug)]
pub(crate) struct OptionFile {
    option: String,
    path: PathBuf,
    sender: Sender<Reading>,
    readings: Receiver<Reading>,
    outstanding: usize,
}

/// The result of a reading.
#[derive(Debug)]
enum Reading {
    Of(FileKind, io::Result<Vec<u8>>),
    /// The file is not regular, and another reading of it has not ended.
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Regular,
    Other,
}

impl OptionFile {
    pub(crate) fn new(option: &str, path: &Path) -> Self {
        let (sender, readings) = mpsc::channel();
        Self { option: option.to_owned(), path: path.to_owned(), sender, readings, outstanding: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file. The error names the option, and the path if it cannot be a secret itself.
    pub(crate) fn read(&mut self, timeout: Duration) -> Result<Vec<u8>, Failure> {
        let file = self.shown();
        let Some(bytes) = self.newest(timeout)? else {
            let timeout = human(timeout);
            return Err(Failure::usage(format!(
                "{file} did not end within {timeout}: give another file, or increase --timeout"
            )));
        };
        let bytes = bytes.map_err(|error| {
            Failure::usage(format!("cannot read {file}: {error}; the option takes a file's path"))
        })?;
        match bytes.len() as u64 > MAX_FILE_BYTES {
            true => Err(Failure::usage(format!("{file} has more than 1 MiB: give another file"))),
            false => Ok(bytes),
        }
    }

    /// Returns the bytes of the file, or `None` after the timeout.
    fn newest(&mut self, timeout: Duration) -> io::Result<Option<io::Result<Vec<u8>>>> {
        // Of earlier calls. That of a regular file is old.
        while let Ok(reading) = self.readings.try_recv() {
            self.outstanding -= 1;
            if let Reading::Of(FileKind::Other, bytes) = reading {
                return Ok(Some(bytes));
            }
        }
        if self.outstanding < MAX_READINGS {
            self.start()?;
        }
        let start = Instant::now();
        while let Ok(reading) = self.readings.recv_timeout(timeout.saturating_sub(start.elapsed())) {
            self.outstanding -= 1;
            if let Reading::Of(_, bytes) = reading {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Returns the file as messages name it: `the file of --tls-ca (/etc/ca.pem)`. Omits a path that may be a secret: of a
    /// password, or a key in PEM. A URL has no password.
    pub(crate) fn shown(&self) -> String {
        let path = self.path.display().to_string();
        let is_secret = SECRET_OPTIONS.contains(&&*self.option) || path.contains("-----");
        match is_secret {
            true => format!("the file of {}", self.option),
            false => {
                format!("the file of {} ({})", self.option, redact_urls(path.clone(), [path].into_iter()))
            }
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let (sender, path, is_first) = (self.sender.clone(), self.path.clone(), self.outstanding == 0);
        let name = format!("read {}", self.option.trim_start_matches('-'));
        thread::Builder::new().name(name).spawn(move || {
            let kind = if path.is_file() { FileKind::Regular } else { FileKind::Other };
            sender.send(match kind == FileKind::Regular || is_first {
                true => Reading::Of(kind, read_file(&path)),
                false => Reading::Left,
            })
        })?;
        self.outstanding += 1;
        Ok(())
    }
}

/// Reads the file of an option once, which can also be a pipe.
pub(crate) fn read(option: &str, path: &Path, timeout: Duration) -> Result<Vec<u8>, Failure> {
    OptionFile::new(option, path).read(timeout)
}

/// The time for the metadata of a file, for a warning.
#[cfg(unix)]
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// Warns if every user of this machine can read the file of a secret. Gives up if a file server does not answer.
pub(crate) fn warn_of_readers(option: &str, path: &Path, json: bool) {
    if let Some(warning) = warning_of_readers(option, path) {
        output::warn(json, &warning);
    }
}

/// Returns the warning of [`warn_of_readers`].
#[cfg(unix)]
pub(crate) fn warning_of_readers(option: &str, path: &Path) -> Option<String> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = within(METADATA_TIMEOUT, path, |path| path.metadata().ok())?;
    let mode = metadata.permissions().mode() & 0o777;
    let file = OptionFile::new(option, path).shown();
    (metadata.is_file() && mode & 0o004 != 0).then(|| {
        format!(
            "every user of this machine can read {file} (mode {mode:o}): set 600, or 640 for the group of its readers"
        )
    })
}

#[cfg(not(unix))]
pub(crate) fn warning_of_readers(_: &str, _: &Path) -> Option<String> {
    None
}

/// Calls a function of a path in another thread. Returns `None` after the timeout.
#[cfg(unix)]
fn within<T: Send + 'static>(
    timeout: Duration,
    path: &Path,
    call: impl FnOnce(&Path) -> Option<T> + Send + 'static,
) -> Option<T> {
    let (sender, result) = mpsc::channel();
    let path = path.to_owned();
    thread::Builder::new().name("metadata".to_owned()).spawn(move || sender.send(call(&path))).ok()?;
    result.recv_timeout(timeout).ok()?
}

/// Reads at most one byte more than the maximum.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(all(test, target_os = "linux"))] // reads /proc
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Returns the number of threads that read this file. The system shows 15 letters of a thread's name.
    fn readers(option: &str) -> usize {
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
        names.filter(|name| name.trim_end() == format!("read {option}")).count()
    }

    /// Waits until one thread reads this file: a thread can outlive the result that it has sent.
    fn one_reader_is_left(option: &str) {
        let start = Instant::now();
        while readers(option) != 1 {
            assert!(start.elapsed() < Duration::from_secs(60), "{} threads", readers(option));
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn pipe_that_hangs_is_read_by_one_thread_whose_result_is_used() {
        let path = std::env::temp_dir().join(format!("tidegate-{}-hangs", std::process::id()));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut file = OptionFile::new("--hangs", &path);
        for _ in 0..3 {
            // Without a writer, opening a pipe blocks.
            let error = file.read(Duration::from_millis(200)).unwrap_err();
            assert!(error.to_string().contains("did not end within"), "{error}");
        }
        one_reader_is_left("hangs");
        fs::write(&path, "text").unwrap();
        assert_eq!(file.read(Duration::from_secs(60)).unwrap(), b"text");
        fs::remove_file(&path).unwrap();
        // Then the path is read again.
        fs::write(&path, "other").unwrap();
        assert_eq!(file.read(Duration::from_secs(60)).unwrap(), b"other");
        fs::remove_file(&path).unwrap();
    }

    /// Opening a pipe blocks, as reading a file of a dead file server does.
    #[test]
    fn file_whose_reading_hangs_once_is_read_again() {
        let path = std::env::temp_dir().join(format!("tidegate-{}-hangs-once", std::process::id()));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut file = OptionFile::new("--once", &path);
        file.read(Duration::from_millis(200)).unwrap_err();
        one_reader_is_left("once");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "text").unwrap();
        for _ in 0..2 * MAX_READINGS {
            assert_eq!(file.read(Duration::from_secs(60)).unwrap(), b"text");
        }
        one_reader_is_left("once");
        fs::remove_file(&path).unwrap();
    }
}
