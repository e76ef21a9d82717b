//! Reads rule files. A folder can hold any file: one that blocks, never ends or is huge is a reported error, and
//! never stops the thread that reloads the rules.

use std::fs::{File, FileType, OpenOptions};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use super::config_error::{ConfigError, MAX_CONTEXT_CHARS, SourceSpan};

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

    /// Returns the result of a reading that failed as a whole.
    pub(super) fn failed(path: &Path, error: &io::Error) -> Self {
        Self { sources: Arc::default(), errors: vec![unreadable(path, cannot_read(error))], warning: None }
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

/// The fields of a document. A file with none of them is not a rule file.
const FIELDS: [&str; 3] = ["domain", "descriptors", "rate_limits"];

/// A file's display name and its text.
#[derive(PartialEq)]
pub(super) struct SourceFile {
    pub(super) name: String,
    pub(super) text: String,
}

/// The text can be long.
impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SourceFile {
    pub(super) fn error(&self, span: SourceSpan, message: impl Into<String>) -> ConfigError {
        let (snippet, marked) = match span.line {
            0 => (String::new(), 0..0),
            _ => self.snippet(span),
        };
        ConfigError::new(&self.name, span, snippet, marked, message.into())
    }

    /// Returns the text of a Boolean or a number, as written.
    pub(super) fn written(&self, span: SourceSpan) -> &str {
        let start = span.offset as usize;
        self.text.get(start..start + span.length as usize).unwrap_or_default()
    }

    /// Returns whether the text has a field of a rule file, at any position and even if it is no valid YAML. The
    /// text of any other file is never shown: it can be `/etc/shadow`, by a link.
    pub(super) fn is_rule_file(&self) -> bool {
        FIELDS.iter().any(|field| {
            self.text.match_indices(field).any(|(start, _)| {
                let (before, after) = (&self.text[..start], &self.text[start + field.len()..]);
                let is_word_end =
                    !before.ends_with(|last: char| last.is_alphanumeric() || "_-.".contains(last));
                is_word_end && after.trim_start_matches(['"', '\'', ' ']).starts_with(':')
            })
        })
    }

    /// Returns a part of the line around the span, and the bytes of it that the span covers. A line can be very
    /// long: generated YAML may put the whole file on one line. So the cost must not depend on the line.
    fn snippet(&self, span: SourceSpan) -> (String, Range<usize>) {
        let Some((before, after)) = self.text.split_at_checked(span.offset as usize) else {
            return (String::new(), 0..0);
        };
        let is_in_line = |letter: &char| !matches!(letter, '\n' | '\r');
        let before = before.chars().rev().take(MAX_CONTEXT_CHARS).take_while(is_in_line);
        let start: usize = before.map(char::len_utf8).sum();
        let after = after.chars().take(MAX_CONTEXT_CHARS).take_while(is_in_line);
        let lengths: Vec<usize> = after.map(char::len_utf8).collect();
        let from = span.offset as usize - start;
        let snippet = &self.text[from..from + start + lengths.iter().sum::<usize>()];
        let marked: usize = lengths.iter().take(span.length as usize).sum();
        (snippet.to_owned(), start..start + marked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_with_a_field_of_a_document_is_a_rule_file() {
        let is_rule_file =
            |text: &str| SourceFile { name: String::new(), text: text.to_owned() }.is_rule_file();
        for text in ["domain: a", "{\"domain\" : 1}", "x\n  descriptors: [", "'rate_limits':"] {
            assert!(is_rule_file(text), "{text}");
        }
        for text in ["", "domain", "root:x:0:0", "subdomain: a", "my.domain: a", "the domain is: a"] {
            assert!(!is_rule_file(text), "{text}");
        }
    }
}
