//! Errors in rule files, with their positions.

use std::fmt;
use std::ops::Range;

use annotate_snippets::renderer::DEFAULT_TERM_WIDTH;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet, normalize_untrusted_str};
use tidegate::Error;

/// The maximum number of errors that the message lists; it only counts the others.
const MAX_SHOWN: usize = 100;
/// The maximum number of characters kept on each side of the start of an error: the renderer shows fewer.
const MAX_CONTEXT_CHARS: usize = DEFAULT_TERM_WIDTH;

/// A position in a file. Lines and columns start at 1; 0 means the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceSpan {
    pub(super) line: usize,
    pub(super) column: usize,
    /// In characters, within this line.
    pub(super) length: usize,
}

/// A mistake in a rule file: an error, or one of [`Rules::warnings`](super::Rules::warnings). `Display` formats it for a terminal, and replaces control characters:
///
/// ```text
/// auth.yaml:5:13: there is no unit `minutes`
///   |
/// 5 |       unit: minutes
///   |             ^^^^^^^
///   |
///   = did you mean `minute`?
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    span: SourceSpan,
    snippet: String,
    /// The bytes of the snippet that the span covers.
    marked: Range<usize>,
    message: String,
    hint: Option<String>,
}

impl ConfigError {
    pub(super) fn new(file: &str, span: SourceSpan, line: &str, message: String) -> Self {
        // A line can be very long: generated YAML may put the whole file on one line.
        let start = span.column.saturating_sub(1);
        let hidden = start.saturating_sub(MAX_CONTEXT_CHARS);
        let snippet: String = line.chars().skip(hidden).take(start - hidden + MAX_CONTEXT_CHARS).collect();
        let byte_at = |at| snippet.char_indices().nth(at).map_or(snippet.len(), |(byte, _)| byte);
        let marked = byte_at(start - hidden)..byte_at(start - hidden + span.length);
        Self { file: file.to_owned(), span, snippet, marked, message, hint: None }
    }

    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        self.hint = Some(hint.into());
    }

    /// Returns the file, line and column, by which errors are ordered.
    pub(super) fn position(&self) -> (&str, usize, usize) {
        (&self.file, self.span.line, self.span.column)
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
        let SourceSpan { line, column, .. } = self.span;
        let title = match line {
            0 => format!("{}: {}", self.file, self.message),
            _ => format!("{}:{line}:{column}: {}", self.file, self.message),
        };
        let snippet = (line > 0).then(|| {
            let marked = AnnotationKind::Primary.span(self.marked.clone());
            Snippet::source(&self.snippet).line_start(line).annotation(marked)
        });
        let hint = self.hint.as_deref().map(|hint| Level::HELP.no_name().message(on_one_line(hint)));
        let title = Level::ERROR.no_name().primary_title(on_one_line(&title));
        let text = Renderer::plain().render(&[title.elements(snippet).elements(hint)]);
        // Some terminals obey U+0080 to U+009F, which the renderer keeps.
        f.write_str(&text.replace(|letter: char| letter.is_control() && letter != '\n', "\u{fffd}"))
    }
}

/// Replaces line feeds, and the characters that the renderer replaces in a snippet.
fn on_one_line(text: &str) -> String {
    normalize_untrusted_str(text).replace('\n', "␊")
}

impl std::error::Error for ConfigError {}

/// All errors found in the files, at least one, ordered by file, line and column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// Returns `None` if `errors` is empty.
    pub(super) fn of(mut errors: Vec<ConfigError>) -> Option<Self> {
        errors.sort_by(|a, b| a.position().cmp(&b.position()));
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
