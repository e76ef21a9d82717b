//! Reads the files that options name: certificates, keys, secrets and the configuration of the service.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::failure::Failure;
use crate::units::human;

/// The maximum size of a file of an option. Certificates and secrets are far smaller.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads the file of an option, which can also be a pipe. The error omits the path: it may be a secret itself.
/// Opening or reading a pipe can block forever, so another thread does it, and may outlive this call.
pub(crate) fn read(option: &str, path: &Path, timeout: Duration) -> Result<Vec<u8>, Failure> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    thread::Builder::new().spawn(move || sender.send(read_file(&path)))?;
    let bytes = receiver.recv_timeout(timeout).map_err(|_| {
        let timeout = human(timeout);
        Failure::usage(format!(
            "the file of {option} did not end within {timeout}: give another file, or increase --timeout"
        ))
    })?;
    let bytes = bytes.map_err(|error| {
        Failure::usage(format!("cannot read the file of {option}: {error}; the option takes a file's path"))
    })?;
    match bytes.len() as u64 > MAX_FILE_BYTES {
        true => Err(Failure::usage(format!("the file of {option} has more than 1 MiB: give another file"))),
        false => Ok(bytes),
    }
}

/// Reads at most one byte more than the maximum.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
