//! Errors in rule files, with their positions.

use std::fmt;
use std::ops::Range;

use annotate_snippets::renderer::DEFAULT_TERM_WIDTH;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet, normalize_untrusted_str};
use tidegate::Error;

/// The maximum number of errors that are kept; the others are only counted.
const MAX_ERRORS: usize = 1_000;
/// The maximum number of errors that the message lists.
const MAX_SHOWN: usize = 100;
/// The number of errors with a suggestion. The search for a similar name takes far longer than the error.
const MAX_SUGGESTIONS: usize = 100;
/// The maximum number of characters kept on each side of the start of an error: the renderer shows fewer.
pub(super) const MAX_CONTEXT_CHARS: usize = DEFAULT_TERM_WIDTH;
/// The maximum number of characters of a message and of a hint, which can quote names from a file.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// A position in a file. Lines and columns start at 1; 0 means the whole file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SourceSpan {
    pub(super) line: u32,
    pub(super) column: u32,
    /// In characters, within this line.
    pub(super) length: u32,
    /// The bytes of the file before the span.
    pub(super) offset: u32,
}

/// A mistake in a rule file: an error, or one of [`Rules::warnings`](super::Rules::warnings). `Display` formats it for
/// a terminal, and replaces control characters:
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
    /// `marked` are the bytes of the snippet that the span covers.
    pub(super) fn new(
        file: &str,
        span: SourceSpan,
        snippet: String,
        marked: Range<usize>,
        message: String,
    ) -> Self {
        Self {
            file: file.to_owned(),
            span,
            snippet,
            marked,
            message: cut(message, MAX_MESSAGE_CHARS),
            hint: None,
        }
    }

    pub(super) fn hint(&mut self, hint: impl Into<String>) {
        self.hint = Some(cut(hint.into(), MAX_MESSAGE_CHARS));
    }

    /// Returns the file, line and column, by which errors are ordered.
    pub(super) fn position(&self) -> (&str, u32, u32) {
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
        self.span.line as usize
    }

    /// Returns the column in characters, starting at 1; 0 if the error concerns the whole file.
    #[must_use]
    pub const fn column(&self) -> usize {
        self.span.column as usize
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
            Snippet::source(&self.snippet).line_start(line as usize).annotation(marked)
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

/// Collects errors. Keeps the first 1,000 and counts the others, so that a file of errors costs little memory.
#[derive(Default)]
pub(super) struct ErrorList {
    kept: Vec<ConfigError>,
    total: usize,
}

impl ErrorList {
    pub(super) fn push(&mut self, error: ConfigError) -> &mut ConfigError {
        self.total += 1;
        // The caller can still add a hint to an error that is not kept.
        self.kept.truncate(MAX_ERRORS);
        self.kept.push(error);
        let last = self.kept.len() - 1;
        &mut self.kept[last]
    }

    /// Returns the number of errors, including those that are not kept.
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// Returns whether to search a similar name to suggest.
    pub(super) const fn wants_suggestion(&self) -> bool {
        self.total < MAX_SUGGESTIONS
    }

    /// Returns `Ok` if there is no error.
    pub(super) fn into_result(self) -> Result<(), ConfigErrors> {
        let Self { mut kept, total } = self;
        kept.truncate(MAX_ERRORS);
        kept.sort_by(|a, b| a.position().cmp(&b.position()));
        if total == 0 { Ok(()) } else { Err(ConfigErrors { kept, total }) }
    }
}

impl FromIterator<ConfigError> for ErrorList {
    fn from_iter<I: IntoIterator<Item = ConfigError>>(errors: I) -> Self {
        let mut list = Self::default();
        for error in errors {
            list.push(error);
        }
        list
    }
}

/// Shortens a text that can contain text of a file.
pub(super) fn cut(mut text: String, max_chars: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(max_chars) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The errors found in the files, at least one. Keeps the first 1,000, ordered by file, line and column, and the
/// number of all. `Display` shows the first 100.
///
/// An error contains a part of one line of its file, but only if the file has a field of a rule file: `domain`,
/// `descriptors` or `rate_limits`. Names that it quotes are cut. So a link to a secret file does not reveal it.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    kept: Vec<ConfigError>,
    total: usize,
}

impl ConfigErrors {
    /// Iterates over the errors that are kept.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.kept.iter()
    }

    /// Returns the number of all errors, including those that are not kept.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.total
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.kept.iter().take(MAX_SHOWN).enumerate() {
            let between = if index == 0 { "" } else { "\n\n" };
            write!(f, "{between}{error}")?;
        }
        match self.total.saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n\n... and {more} more"),
        }
    }
}

/// The message: it is what the standard library prints of an error that `main` returns.
impl fmt::Debug for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for ConfigErrors {}

/// Converts to an error for which [`Error::is_config`] is true.
impl From<ConfigErrors> for Error {
    fn from(errors: ConfigErrors) -> Self {
        Self::config(errors.to_string())
    }
}

/// The maximum length of a name that is compared, in bytes: the time is the product of both lengths.
const MAX_COMPARED_BYTES: usize = 64;
/// The maximum number of names that are compared. Only the names of rules can be more.
const MAX_COMPARED_NAMES: usize = 1_000;

/// Returns the known name that is most similar to `word`, if it is similar enough to suggest it in a message. Upper and
/// lower case are alike.
///
/// ```
/// assert_eq!(tidegate_rules::similar_name("Minuet", ["hour", "minute"]), Some("minute"));
/// assert_eq!(tidegate_rules::similar_name("year", ["hour", "minute"]), None);
/// ```
pub fn similar_name<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    let known = known.into_iter().take(MAX_COMPARED_NAMES).filter(|name| name.len() <= MAX_COMPARED_BYTES);
    let near = known.map(|name| (strsim::damerau_levenshtein(&word, &name.to_lowercase()), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.len() / 4).then_some(name)
}
