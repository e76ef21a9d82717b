//! The text of a rule file.

use std::fmt;
use std::ops::Range;

use super::config_error::{ConfigError, MAX_CONTEXT_CHARS, SourceSpan};

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
