//! The text of a rule file.

use super::config_error::{ConfigError, SourceSpan};

/// A file's display name and its text.
#[derive(Clone, PartialEq)]
pub(super) struct SourceFile {
    pub(super) name: String,
    pub(super) text: String,
}

impl SourceFile {
    pub(super) fn error(&self, span: SourceSpan, message: impl Into<String>) -> ConfigError {
        let line = span.line.checked_sub(1).and_then(|index| self.text.lines().nth(index));
        ConfigError::new(&self.name, span, line.unwrap_or_default(), message.into())
    }
}
