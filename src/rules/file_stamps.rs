//! Detects changed files without reading them.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::load::files;

/// The metadata of all rule files. Two values differ if a file was edited, replaced, created or removed
/// between them.
#[derive(Clone, PartialEq)]
pub(super) struct FileStamps(Result<Vec<File>, ErrorKind>);

/// A file's path and stamp, or the error of reading its metadata.
type File = (PathBuf, Result<FileStamp, ErrorKind>);

#[derive(Clone, PartialEq)]
struct FileStamp {
    length: u64,
    modified: Option<SystemTime>,
    /// The device, inode and status change time. They detect a link that now points to an older file.
    #[cfg(unix)]
    identity: (u64, u64, i64, i64),
}

impl FileStamps {
    pub(super) fn new(path: &Path) -> Self {
        // `metadata` follows links, so a stamp describes the link's target.
        let stamp = |file: PathBuf| {
            let metadata = fs::metadata(&file);
            let stamp = metadata.map(|metadata| FileStamp::new(&metadata)).map_err(|error| error.kind());
            (file, stamp)
        };
        let files = files(path).map_err(|error| error.kind());
        Self(files.map(|files| files.into_iter().map(stamp).collect()))
    }
}

impl FileStamp {
    fn new(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            length: metadata.len(),
            modified: metadata.modified().ok(),
            #[cfg(unix)]
            identity: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
