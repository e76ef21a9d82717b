//! Errors in rule files, with their positions.

use std::fmt;

use crate::error::Error;

/// The maximum number of errors that the message lists; it only counts the others.
const MAX_SHOWN: usize = 100;
/// The maximum number of characters of a line in the message.
const MAX_SNIPPET_CHARS: usize = 120;

/// A position in a file. Lines and columns start at 1; 0 means the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceSpan {
    pub(super) line: usize,
    pub(super) column: usize,
    /// In characters, within this line.
    pub(super) length: usize,
}

/// An error in a rule file. `Display` formats it for a terminal:
///
/// ```text
/// auth.yaml:5:13: there is no unit `minutes`
///   |
/// 5 |       unit: minutes
///   |             ^^^^^^^
///   = did you mean `minute`?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    span: SourceSpan,
    /// The number of characters cut off before the snippet.
    hidden: usize,
    snippet: String,
    message: String,
    hint: Option<String>,
}

impl ConfigError {
    pub(super) fn new(file: &str, span: SourceSpan, snippet: &str, message: String) -> Self {
        // A line can be very long: generated YAML may put the whole file on one line.
        let hidden = if span.column > MAX_SNIPPET_CHARS { span.column - MAX_SNIPPET_CHARS / 2 } else { 0 };
        let snippet = snippet.chars().skip(hidden).take(MAX_SNIPPET_CHARS).collect();
        Self { file: file.to_owned(), span, hidden, snippet, message, hint: None }
    }

    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        self.hint = Some(hint.into());
    }

    /// Returns the name under which the file was loaded.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the line, starting at 1; 0 if the error concerns the whole file.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.span.line
    }

    /// Returns the column in characters, starting at 1; 0 if the error concerns the whole file.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.span.column
    }

    /// Returns the description of the error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns a suggested fix, if one is known.
    #[must_use]
    pub fn suggestion(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourceSpan { line, column, length } = self.span;
        let margin = " ".repeat(line.to_string().len());
        match line {
            0 => write!(f, "{}: {}", self.file, self.message)?,
            _ => {
                write!(f, "{}:{line}:{column}: {}", self.file, self.message)?;
                let before = " ".repeat(column.saturating_sub(self.hidden + 1));
                let marks = "^".repeat(length.clamp(1, MAX_SNIPPET_CHARS));
                write!(f, "\n{margin} |\n{line} | {}\n{margin} | {before}{marks}", self.snippet)?;
            }
        }
        match &self.hint {
            Some(hint) => write!(f, "\n{margin} = {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ConfigError {}

/// All errors found in the files, at least one, ordered by file, line and column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Returns `None` if `errors` is empty.
    pub(super) fn of(mut errors: Vec<ConfigError>) -> Option<Self> {
        errors.sort_by(|a, b| (&a.file, a.line(), a.column()).cmp(&(&b.file, b.line(), b.column())));
        (!errors.is_empty()).then_some(Self(errors))
    }

    /// Iterates over the errors.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().take(MAX_SHOWN).enumerate() {
            let between = if index == 0 { "" } else { "\n\n" };
            write!(f, "{between}{error}")?;
        }
        match self.0.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// Converts to an error for which [`Error::is_config`] is true.
impl From<ConfigErrors> for Error {
    fn from(errors: ConfigErrors) -> Self {
        Self::config(errors.to_string())
    }
}
