//! Whether files have changed, without reading them.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::load::files;

/// Files as the file system tells of them: when one is edited, swapped, comes or goes, the next is another.
#[derive(Clone, PartialEq)]
pub(super) struct Glance(Result<Vec<File>, ErrorKind>);

/// Or why it cannot be looked at.
type File = (PathBuf, Result<Look, ErrorKind>);

#[derive(Clone, PartialEq)]
struct Look {
    length: u64,
    modified: Option<SystemTime>,
    /// The file's number, and when anything of it was changed: a link can lead to an older file.
    #[cfg(unix)]
    identity: (u64, u64, i64, i64),
}

impl Glance {
    pub(super) fn new(path: &Path) -> Self {
        // What a link leads to.
        let look = |file: PathBuf| {
            let look = fs::metadata(&file).map(|metadata| Look::new(&metadata)).map_err(|error| error.kind());
            (file, look)
        };
        let files = files(path).map_err(|error| error.kind());
        Self(files.map(|files| files.into_iter().map(look).collect()))
    }
}

impl Look {
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
