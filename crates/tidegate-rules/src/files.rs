//! Reads rule files. A folder can hold any file: one that blocks, never ends or is huge is a reported error, and
//! never stops the thread that reloads the rules.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::config_error::{ConfigError, SourceSpan};
use super::source::SourceFile;

/// The maximum size of all files together, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// The maximum number of rule files in a folder.
const MAX_FILES: usize = 1_000;

/// The files that were read, and the errors of those that could not be.
#[derive(PartialEq)]
pub(super) struct FilesRead {
    /// Shared with the rules that are compiled from them.
    pub(super) sources: Arc<Vec<SourceFile>>,
    pub(super) errors: Vec<ConfigError>,
    /// Of a folder without rule files, if it may be empty.
    pub(super) warning: Option<ConfigError>,
}

impl FilesRead {
    /// Reads a file or a folder, which `may_be_empty`.
    pub(super) fn new(path: &Path, may_be_empty: bool) -> Self {
        let (mut sources, mut errors, mut warning) = (Vec::new(), Vec::new(), None);
        let files = match files(path) {
            Ok(files) if files.is_empty() => {
                let mut empty = unreadable(path, "no file in this folder ends in .yaml or .yml".to_owned());
                if may_be_empty {
                    empty.hint("add rules: without a file, every request passes");
                    warning = Some(empty);
                } else {
                    errors.push(empty);
                }
                files
            }
            Ok(files) => files,
            Err(reason) => {
                errors.push(unreadable(path, reason));
                Vec::new()
            }
        };
        let mut bytes_left = MAX_BYTES;
        for file in files {
            match read(&file, bytes_left) {
                Ok(text) => {
                    bytes_left -= text.len() as u64;
                    sources.push(SourceFile { name: file.display().to_string(), text });
                }
                Err(reason) => errors.push(unreadable(&file, reason)),
            }
        }
        Self { sources: Arc::new(sources), errors, warning }
    }

    /// Returns the result of a reading that was given up after this time.
    pub(super) fn hanging(path: &Path, timeout: Duration) -> Self {
        let reason =
            format!("cannot be read: it did not end within {timeout:?}. See whether its file server answers");
        Self { sources: Arc::default(), errors: vec![unreadable(path, reason)], warning: None }
    }
}

/// Returns the path of a file, or the paths of the rule files of a folder.
fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !fs::metadata(path).map_err(|error| cannot_read(&error))?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| cannot_read(&error))? {
        let file = entry.map_err(|error| cannot_read(&error))?.path();
        let is_hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_yaml = file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        // `is_dir` follows links.
        if is_yaml && !is_hidden && !file.is_dir() {
            files.push(file);
        }
        if files.len() > MAX_FILES {
            return Err(format!("more than {MAX_FILES} files in this folder end in .yaml or .yml"));
        }
    }
    files.sort();
    Ok(files)
}

/// Reads a regular file of at most `max_bytes`.
fn read(path: &Path, max_bytes: u64) -> Result<String, String> {
    // Opening a device can change its state, so the type is read first. Another process can replace the file
    // before it is opened, so the type of the opened file is what counts.
    ensure_regular(fs::metadata(path).map_err(|error| cannot_read(&error))?.file_type())?;
    let file = open(path).map_err(|error| cannot_read(&error))?;
    let metadata = file.metadata().map_err(|error| cannot_read(&error))?;
    ensure_regular(metadata.file_type())?;
    if metadata.len() > max_bytes {
        return Err(too_large());
    }
    // A file of /proc has no size, and any file can grow meanwhile.
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(|error| cannot_read(&error))?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|_| "this file is not UTF-8".to_owned())
}

/// Opens a file. Does not wait for a writer if the file was replaced by a FIFO.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.read(true).open(path)
}

fn ensure_regular(kind: FileType) -> Result<(), String> {
    if kind.is_file() {
        return Ok(());
    }
    Err(format!("a rule file must be a regular file, not {}", name_of(kind)))
}

#[cfg(unix)]
fn name_of(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "a folder",
    }
}

#[cfg(not(unix))]
fn name_of(_: FileType) -> &'static str {
    "a folder or a device"
}

fn cannot_read(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

fn too_large() -> String {
    format!("too large: all rule files together hold at most {} MiB", MAX_BYTES >> 20)
}

fn unreadable(path: &Path, reason: String) -> ConfigError {
    ConfigError::new(&path.display().to_string(), SourceSpan::default(), String::new(), 0..0, reason)
}
