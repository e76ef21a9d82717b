//! The errors of commands and their exit codes.

use std::fmt;
use std::io;

use tidegate::Error;
use tidegate_rules::ConfigErrors;

#[derive(Debug)]
pub(crate) enum Failure {
    /// An error in the arguments, or in a file that they name.
    Usage(String),
    /// Errors in rule files.
    ConfigErrors(ConfigErrors),
    /// A change that would have no effect, such as of a gate that does not exist. Nothing was changed.
    NoEffect(String),
    Limiter(Error),
    /// A failed write. A closed pipe is not a failure: it exits with 0.
    Output(io::Error),
}

/// A part of the error of a server that --cluster must not name.
pub(crate) const NOT_A_NODE: &str = "is not a node of a Redis Cluster";

/// Parts of an error of the limiter, each with the option that mends it.
const ADVICE: [(&str, &str); 4] = [
    // A cluster node replies MOVED to a call for a key of another node.
    ("MOVED ", "; this server is a cluster node: add --cluster"),
    (NOT_A_NODE, "; remove --cluster"),
    ("is a Redis, not a sentinel", ", or remove --sentinel"),
    ("NOAUTH ", "; this Redis needs a password: add --password-file FILE"),
];

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Returns whether the server answered, so that another one is not what is missing.
    pub(crate) fn is_answer(&self) -> bool {
        let text = self.to_string();
        let codes = ["ERR ", "WRONGPASS ", "NOPERM ", "OOM "];
        codes.into_iter().chain(ADVICE.map(|(part, _)| part)).any(|part| text.contains(part))
    }

    /// Returns the exit code, as documented in `--help`.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::ConfigErrors(_) | Self::NoEffect(_) => 1,
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
            Self::Usage(text) | Self::NoEffect(text) => f.write_str(text),
            Self::ConfigErrors(errors) => write!(f, "{errors}"),
            Self::Limiter(error) => {
                let message = error.to_string();
                let advice = ADVICE.iter().find(|(part, _)| message.contains(part));
                write!(f, "{message}{}", advice.map_or("", |(_, advice)| advice))
            }
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}
