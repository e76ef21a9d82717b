//! Parses YAML into values with their positions in the file.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Error, Spanned};

use super::config_error::{ConfigError, MAX_CONTEXT_CHARS, SourceSpan};
use crate::files::SourceFile;

/// The minimum number of bytes of a file per YAML node, also if an alias repeats it. A node takes 32 bytes of memory,
/// and even `{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, ` has 6 bytes per node.
const MIN_BYTES_PER_NODE: usize = 5;
/// The minimum number of bytes of a file per node that an alias repeats.
const MIN_BYTES_PER_REPEATED_NODE: usize = 8;
/// The minimum number of bytes of a file per node below an anchor, of which the parser keeps a copy.
const MIN_BYTES_PER_ANCHORED_NODE: usize = 64;
/// The maximum number of items that are copied to memory of their exact size.
const MAX_COPIED_ITEMS: usize = 1_000;
/// The maximum number of bytes of all texts per byte of a file. An alias repeats the text of its anchor.
const MAX_TEXT_FACTOR: usize = 2;

/// The memory that small files may take beyond their size, by aliases. All files of a folder share it.
pub(super) struct SpareBudget {
    nodes: usize,
    text_bytes: usize,
}

impl Default for SpareBudget {
    fn default() -> Self {
        Self { nodes: 10_000, text_bytes: 64 << 10 }
    }
}

/// A value and its position. A flat type has 32 bytes; a value beside a span would have 40.
pub(super) enum YamlNode<'s> {
    Null(Position, u16),
    Bool(Position, u16, bool),
    Number(Position, u16, u64),
    Other(Position, u16),
    Text(Position, u16, &'s str),
    OwnedText(Position, u16, Box<str>),
    List(Position, u16, Box<[Self]>),
    Map(Position, u16, Box<[(Self, Self)]>),
}

const _: () = assert!(size_of::<YamlNode<'_>>() <= 32);

/// A [`SourceSpan`] without its length.
#[derive(Clone, Copy, Default)]
pub(super) struct Position {
    line: u32,
    column: u32,
    offset: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Value<'n> {
    Null,
    Bool(bool),
    /// A non-negative whole number.
    Number(u64),
    /// Any other number.
    Other,
    Text(&'n str),
    List(&'n [YamlNode<'n>]),
    /// The entries in the order of the file, duplicate keys included.
    Map(&'n [(YamlNode<'n>, YamlNode<'n>)]),
}

impl<'s> YamlNode<'s> {
    /// Returns the documents of a file, without the empty ones. Takes from `spare` what the file needs beyond its
    /// size.
    ///
    /// # Errors
    ///
    /// The first syntax error, where the parser stops, or the start of a value that takes too much memory.
    pub(super) fn documents(
        source: &'s SourceFile,
        spare: &mut SpareBudget,
    ) -> Result<Vec<Self>, Box<ConfigError>> {
        let bytes = source.text.len();
        let max_nodes = bytes / MIN_BYTES_PER_NODE + spare.nodes;
        let max_repeated_nodes = bytes / MIN_BYTES_PER_REPEATED_NODE + spare.nodes;
        let max_anchored_nodes = bytes / MIN_BYTES_PER_ANCHORED_NODE + spare.nodes;
        let max_text_bytes = MAX_TEXT_FACTOR * bytes + spare.text_bytes;
        // The nodes and the bytes of all texts, with those that aliases repeat.
        let used = Rc::new(Cell::new((0, 0)));
        let report = used.clone();
        let options = serde_saphyr::options! {
            // The reader reports the duplicate and needs the position of the first one.
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            alias_limits: serde_saphyr::alias_limits! {
                max_total_replayed_events: max_repeated_nodes,
            },
            budget: serde_saphyr::budget! {
                // Each list and map has two events, and each document, too.
                max_events: 4 * max_nodes,
                max_nodes: max_nodes,
                max_total_scalar_bytes: max_text_bytes,
                max_documents: 100_000,
                max_aliases: max_repeated_nodes,
                max_anchors: max_anchored_nodes,
                max_recorded_anchor_events: max_anchored_nodes,
                // Each alias would copy a text that is not in the file as it is, such as one with escapes.
                max_recorded_anchor_bytes: 0,
                enforce_alias_anchor_ratio: false,
            },
            with_snippet: false,
        }
        .with_budget_report(move |used| report.set((used.nodes, used.total_scalar_bytes)));
        let mut documents: Vec<Self> = serde_saphyr::from_multiple_with_options(&source.text, options)
            .map_err(|error| Box::new(invalid(&error, source)))?;
        let (nodes, text_bytes) = used.get();
        spare.nodes = spare.nodes.min(max_nodes.saturating_sub(nodes));
        spare.text_bytes = spare.text_bytes.min(max_text_bytes.saturating_sub(text_bytes));
        documents.iter_mut().for_each(|document| document.complete(&source.text));
        Ok(documents)
    }

    pub(super) fn value(&self) -> Value<'_> {
        match self {
            Self::Null(..) => Value::Null,
            Self::Bool(.., flag) => Value::Bool(*flag),
            Self::Number(.., number) => Value::Number(*number),
            Self::Other(..) => Value::Other,
            Self::Text(.., text) => Value::Text(text),
            Self::OwnedText(.., text) => Value::Text(text),
            Self::List(.., items) => Value::List(items),
            Self::Map(.., entries) => Value::Map(entries),
        }
    }

    pub(super) fn span(&self) -> SourceSpan {
        let (Self::Null(at, length)
        | Self::Bool(at, length, _)
        | Self::Number(at, length, _)
        | Self::Other(at, length)
        | Self::Text(at, length, _)
        | Self::OwnedText(at, length, _)
        | Self::List(at, length, _)
        | Self::Map(at, length, _)) = self;
        SourceSpan { line: at.line, column: at.column, length: (*length).into(), offset: at.offset }
    }

    fn set_span(&mut self, span: SourceSpan) {
        let (Self::Null(at, length)
        | Self::Bool(at, length, _)
        | Self::Number(at, length, _)
        | Self::Other(at, length)
        | Self::Text(at, length, _)
        | Self::OwnedText(at, length, _)
        | Self::List(at, length, _)
        | Self::Map(at, length, _)) = self;
        *at = Position { line: span.line, column: span.column, offset: span.offset };
        *length = span.length.try_into().unwrap_or(u16::MAX);
    }

    /// Returns whether this is a map with a field of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let is_field = |key: &YamlNode<'_>| matches!(key.value(), Value::Text(field) if field == name);
        matches!(self.value(), Value::Map(entries) if entries.iter().any(|(key, _)| is_field(key)))
    }

    /// Returns whether a map is the key of another one, as `{{ name }}` is.
    fn has_map_as_key(&self) -> bool {
        match self.value() {
            Value::Map(entries) => entries
                .iter()
                .any(|(key, value)| matches!(key.value(), Value::Map(_)) || value.has_map_as_key()),
            Value::List(items) => items.iter().any(|item| item.has_map_as_key()),
            _ => false,
        }
    }

    /// Removes the value of the last field of this name, and leaves null. So its memory can be released early.
    pub(super) fn take(&mut self, name: &str) -> Option<Self> {
        let Self::Map(.., entries) = self else { return None };
        let is_field = |key: &Self| matches!(key.value(), Value::Text(field) if field == name);
        let (_, node) = entries.iter_mut().rfind(|(key, _)| is_field(key))?;
        Some(std::mem::replace(node, Self::Null(Position::default(), 0)))
    }

    /// Fills in what the deserializer does not know: lengths in characters.
    fn complete(&mut self, text: &'s str) {
        let mut span = self.span();
        let (start, bytes) = (span.offset as usize, span.length as usize);
        let source = text.get(start..).unwrap_or_default();
        if let Value::Bool(_) | Value::Number(_) | Value::Other = self.value() {
            if span.length == u32::from(u16::MAX) {
                // The length does not fit. No text of a number contains other characters.
                let is_end = |letter: char| !letter.is_ascii_alphanumeric() && !"+-._".contains(letter);
                *self = Self::Text(Position::default(), 0, source.split(is_end).next().unwrap_or_default());
                self.set_span(span);
                return;
            }
            // All of its text: the reader takes it from the file.
            let source = source.get(..bytes).unwrap_or_default().trim_end();
            span.length = source.len() as u32;
            self.set_span(span);
            return;
        }
        let letters = source
            .char_indices()
            .take(MAX_CONTEXT_CHARS)
            .take_while(|(at, letter)| *at < bytes && !matches!(letter, '\n' | '\r'));
        let visible = letters.enumerate().filter(|(_, (_, letter))| !letter.is_whitespace());
        span.length = visible.last().map_or(0, |(index, _)| index as u32 + 1);
        self.set_span(span);
        match self {
            Self::List(.., items) => items.iter_mut().for_each(|item| item.complete(text)),
            Self::Map(.., entries) => entries.iter_mut().for_each(|(key, value)| {
                key.complete(text);
                value.complete(text);
            }),
            _ => {}
        }
    }
}

/// Returns the items in memory of their exact size. If each list were shrunk in place, it would leave a hole in which
/// no other list fits.
fn exact<T>(items: Vec<T>) -> Box<[T]> {
    if items.len() > MAX_COPIED_ITEMS {
        return items.into_boxed_slice();
    }
    let mut exact = Vec::with_capacity(items.len());
    exact.extend(items);
    exact.into_boxed_slice()
}

/// Returns the error of a template that was not rendered, if the file has `{{` at the place of an error or in place of a key.
pub(super) fn template(
    source: &SourceFile,
    nodes: &Result<Vec<YamlNode<'_>>, Box<ConfigError>>,
) -> Option<ConfigError> {
    let offset = source.text.find("{{")?;
    let span = span_at(&source.text, offset);
    let is_template = match nodes {
        Ok(nodes) => nodes.iter().any(YamlNode::has_map_as_key),
        Err(error) => {
            let line = source.text.lines().nth(error.line().saturating_sub(1));
            line.is_some_and(|line| line.contains("{{"))
        }
    };
    is_template
        .then(|| source.error(span, "this file is a template: render it first, as `helm template` does"))
}

/// Returns the position of an offset in bytes.
fn span_at(text: &str, offset: usize) -> SourceSpan {
    let before = &text[..offset];
    let line = &before[before.rfind('\n').map_or(0, |end| end + 1)..];
    let (line, column) = (before.matches('\n').count() as u32 + 1, line.chars().count() as u32 + 1);
    SourceSpan { line, column, length: 1, offset: offset as u32 }
}

/// Returns the place and the cause of a mistake that the parser notices later, or describes in its own terms.
fn cause(text: &str, span: SourceSpan, source: &str) -> Option<(SourceSpan, String)> {
    let offset = (span.offset as usize).min(source.len());
    let start = source[..offset].rfind('\n').map_or(0, |end| end + 1);
    let message = match text {
        text if text.contains("tab") => {
            // The parser notices the tab where the text before that line ends.
            let mut at = start;
            for line in source[start..].split_inclusive('\n') {
                let text = line.trim_start_matches([' ', '\t']);
                if let Some(tab) = line[..line.len() - text.len()].find('\t') {
                    return Some((span_at(source, at + tab), "a tab indents this line: use spaces".to_owned()));
                }
                at += line.len();
            }
            return None;
        }
        text if text.contains("did not find expected key") || text.contains("did not find expected '-'") => {
            "this line begins in a column in which nothing above it begins: align it with the lines of its map or list"
                .to_owned()
        }
        text if text.contains("mapping values are not allowed") => {
            let before = source[..start].trim_end();
            let line = before.rfind('\n').map_or(0, |end| end + 1);
            match (before[line..].split_once(':'), source[start..offset].contains(": ")) {
                (_, true) => "a value that contains `: ` needs quotes".to_owned(),
                (Some((_, value)), _) if !value.is_empty() && !value.starts_with(' ') => {
                    let colon = before.len() - value.len() - 1;
                    return Some((span_at(source, colon), "a space is missing after this colon".to_owned()));
                }
                _ => "this line begins too far to the right: align it with the lines of its map".to_owned(),
            }
        }
        text if text.contains("alias") || text.contains("unexpected character") => {
            let first = source[offset..].chars().next()?;
            let anchor = if text.contains("unknown anchor") { "no anchor has this name, and " } else { "" };
            format!("{anchor}a value that begins with `{first}` needs quotes")
        }
        _ => return None,
    };
    Some((span, message))
}

/// Converts an error of the parser.
fn invalid(error: &Error, source: &SourceFile) -> ConfigError {
    let span = error.location().map(|at| {
        let (line, column) = (at.line() as u32, at.column() as u32);
        let lines = source.text.split_inclusive('\n');
        let before: usize = lines.clone().take(line.saturating_sub(1) as usize).map(str::len).sum();
        let line_text = source.text.get(before..).unwrap_or_default().chars();
        let in_line: usize = line_text.take(column.saturating_sub(1) as usize).map(char::len_utf8).sum();
        SourceSpan { line, column, length: 1, offset: (before + in_line) as u32 }
    });
    let text = error.without_snippet().to_string();
    let text = text.split(" at line ").next().unwrap_or_default();
    // The error of an alias wraps the one of the budget, and only its text tells.
    let message = if text.contains("RecordedAnchorBytes") {
        "an anchor on a text with escapes or of several lines is not supported: each alias would copy the text"
            .to_owned()
    } else if text.contains("budget breached") || text.contains("limit exceeded") {
        "this YAML would take too much memory: too many values for its size, too many aliases, or aliases of long texts"
            .to_owned()
    } else if let Some((span, cause)) = span.and_then(|span| cause(text, span, &source.text)) {
        return source.error(span, format!("invalid YAML: {cause}"));
    } else {
        format!("invalid YAML: {text}")
    };
    source.error(span.unwrap_or_default(), message)
}

impl<'de> Deserialize<'de> for YamlNode<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value: WithoutSpan(mut node), defined: at, .. } = Spanned::deserialize(deserializer)?;
        node.set_span(SourceSpan {
            line: at.line() as u32,
            column: at.column() as u32,
            length: at.span().byte_len().unwrap_or(0) as u32,
            offset: at.span().byte_offset().unwrap_or(0) as u32,
        });
        Ok(node)
    }
}

/// A node whose position is not known yet.
struct WithoutSpan<'s>(YamlNode<'s>);

impl<'de> Deserialize<'de> for WithoutSpan<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;

        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = WithoutSpan<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("YAML")
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Null(Position::default(), 0)))
            }

            fn visit_none<E>(self) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Null(Position::default(), 0)))
            }

            fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
                WithoutSpan::deserialize(inner)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Bool(Position::default(), 0, value)))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Number(Position::default(), 0, value)))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(WithoutSpan(
                    u64::try_from(value).map_or(YamlNode::Other(Position::default(), 0), |value| {
                        YamlNode::Number(Position::default(), 0, value)
                    }),
                ))
            }

            fn visit_i128<E>(self, _: i128) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Other(Position::default(), 0)))
            }

            fn visit_u128<E>(self, _: u128) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Other(Position::default(), 0)))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Other(Position::default(), 0)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::OwnedText(Position::default(), 0, text.into())))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::Text(Position::default(), 0, text)))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(WithoutSpan(YamlNode::OwnedText(Position::default(), 0, text.into())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(WithoutSpan(YamlNode::List(Position::default(), 0, exact(list))))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(WithoutSpan(YamlNode::Map(Position::default(), 0, exact(map))))
            }
        }

        deserializer.deserialize_any(ValueVisitor)
    }
}
