//! Why a command did not do what it was told.

use std::fmt;
use std::io;
use std::path::Path;

use tidegate::Error;
use tidegate::rules::Mistakes;

#[derive(Debug)]
pub(crate) enum Failure {
    /// It cannot be done as it was said.
    Usage(String),
    /// In files of rules.
    Mistakes(Mistakes),
    Limiter(Error),
    /// What was to be written could not be; a reader that has gone is none.
    Output(io::Error),
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::usage(format!("{}: this cannot be read: {error}", path.display()))
    }

    /// As `--help` tells them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Mistakes(_) => 1,
            Self::Limiter(error) if error.is_corrupt_state() => 4,
            Self::Limiter(error) if !error.is_config() && !error.is_over_capacity() => 3,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            Self::Usage(_) | Self::Limiter(_) | Self::Output(_) => 2,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Limiter(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Mistakes(mistakes) => write!(f, "{mistakes}"),
            Self::Limiter(error) => {
                write!(f, "{error}")?;
                let said = error.to_string();
                // A cluster says so whoever asks for a key of another node.
                match said.contains("MOVED ") {
                    true => f.write_str("; this is a node of a cluster: add --cluster (feature `cluster`)"),
                    false => Ok(()),
                }
            }
            Self::Output(error) => write!(f, "the output cannot be written: {error}"),
        }
    }
}
