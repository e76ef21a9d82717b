//! What is wrong in a file, and where.

use std::fmt;

use crate::error::Error;

/// How many mistakes a text tells before it only counts them.
const MOST_SHOWN: usize = 100;
/// How many letters of a line are shown.
const WIDEST: usize = 120;

/// Where something stands. Lines and columns begin at 1; 0 is the file as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
    /// In letters, on this line.
    pub(super) length: usize,
}

/// One mistake in a file of rules. Its text is made for a terminal:
///
/// ```text
/// auth.yaml:5:13: there is no unit `minutes`
///   |
/// 5 |       unit: minutes
///   |             ^^^^^^^
///   = did you mean `minute`?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    file: String,
    place: Place,
    /// How many letters of the line stand before the snippet.
    hidden: usize,
    snippet: String,
    message: String,
    hint: Option<String>,
}

impl Mistake {
    pub(super) fn new(file: &str, place: Place, snippet: &str, message: String) -> Self {
        // A file can be all on one line.
        let hidden = if place.column > WIDEST { place.column - WIDEST / 2 } else { 0 };
        let snippet = snippet.chars().skip(hidden).take(WIDEST).collect();
        Self { file: file.to_owned(), place, hidden, snippet, message, hint: None }
    }

    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        self.hint = Some(hint.into());
    }

    /// The file, as it was named when it was loaded.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1; 0 where the file as a whole is meant.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.place.line
    }

    /// The column, from 1, in letters; 0 where the file as a whole is meant.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.place.column
    }

    /// What is wrong.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to do about it, where that can be guessed.
    #[must_use]
    pub fn suggestion(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { line, column, length } = self.place;
        let margin = " ".repeat(line.to_string().len());
        match line {
            0 => write!(f, "{}: {}", self.file, self.message)?,
            _ => {
                write!(f, "{}:{line}:{column}: {}", self.file, self.message)?;
                let before = " ".repeat(column.saturating_sub(self.hidden + 1));
                let marks = "^".repeat(length.clamp(1, WIDEST));
                write!(f, "\n{margin} |\n{line} | {}\n{margin} | {before}{marks}", self.snippet)?;
            }
        }
        match &self.hint {
            Some(hint) => write!(f, "\n{margin} = {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Mistake {}

/// All mistakes that were found, at least one, in the order of files and lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(Vec<Mistake>);

impl Mistakes {
    /// `None` where there are none.
    pub(super) fn of(mut mistakes: Vec<Mistake>) -> Option<Self> {
        mistakes.sort_by(|a, b| (&a.file, a.line(), a.column()).cmp(&(&b.file, b.line(), b.column())));
        (!mistakes.is_empty()).then_some(Self(mistakes))
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Mistake> {
        self.0.iter()
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.0.iter().take(MOST_SHOWN).enumerate() {
            let between = if index == 0 { "" } else { "\n\n" };
            write!(f, "{between}{mistake}")?;
        }
        match self.0.len().saturating_sub(MOST_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n\nand {more} more"),
        }
    }
}

impl std::error::Error for Mistakes {}

/// An error that [is of the configuration](Error::is_config).
impl From<Mistakes> for Error {
    fn from(mistakes: Mistakes) -> Self {
        Self::config(mistakes.to_string())
    }
}
