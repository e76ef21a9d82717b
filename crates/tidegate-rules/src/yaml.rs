//! Parses YAML into values with their positions in the file.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Error, Spanned};

use super::config_error::{ConfigError, MAX_CONTEXT_CHARS, SourceSpan};
use super::source::SourceFile;

/// The minimum number of bytes of a file per YAML node. A node takes 48 bytes of memory, and even
/// `{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, ` has 6 bytes per node.
const MIN_BYTES_PER_NODE: usize = 5;
/// The minimum number of bytes of a file per node that an alias repeats.
const MIN_BYTES_PER_REPEATED_NODE: usize = 8;
/// The minimum number of bytes of a file per node below an anchor, of which the parser keeps a copy.
const MIN_BYTES_PER_ANCHORED_NODE: usize = 64;
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

/// A value and its position.
pub(super) struct YamlNode<'s> {
    pub(super) value: Value<'s>,
    pub(super) span: SourceSpan,
}

pub(super) enum Value<'s> {
    Null,
    /// A Boolean and its source text: `yes` can be meant as a string.
    Bool(bool, &'s str),
    /// A non-negative whole number and its source text.
    Number(u64, &'s str),
    /// The source text of any other number.
    Other(&'s str),
    Text(Cow<'s, str>),
    List(Box<[YamlNode<'s>]>),
    /// The entries in the order of the file, duplicate keys included.
    Map(Box<[(YamlNode<'s>, YamlNode<'s>)]>),
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

    /// Fills in what the deserializer does not know: source texts, and lengths in characters.
    fn complete(&mut self, text: &'s str) {
        let (start, bytes) = (self.span.offset as usize, self.span.length as usize);
        let source = text.get(start..start + bytes).unwrap_or_default();
        let letters =
            source.chars().take(MAX_CONTEXT_CHARS).take_while(|letter| !matches!(letter, '\n' | '\r'));
        let visible = letters.enumerate().filter(|(_, letter)| !letter.is_whitespace());
        self.span.length = visible.last().map_or(0, |(index, _)| index as u32 + 1);
        match &mut self.value {
            Value::Bool(_, written) | Value::Number(_, written) | Value::Other(written) => {
                *written = source.trim_end();
            }
            Value::List(items) => items.iter_mut().for_each(|item| item.complete(text)),
            Value::Map(entries) => entries.iter_mut().for_each(|(key, value)| {
                key.complete(text);
                value.complete(text);
            }),
            Value::Null | Value::Text(_) => {}
        }
    }
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
    } else {
        format!("invalid YAML: {text}")
    };
    source.error(span.unwrap_or_default(), message)
}

impl<'de> Deserialize<'de> for YamlNode<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, defined: at, .. } = Spanned::deserialize(deserializer)?;
        let span = SourceSpan {
            line: at.line() as u32,
            column: at.column() as u32,
            length: at.span().byte_len().unwrap_or(0) as u32,
            offset: at.span().byte_offset().unwrap_or(0) as u32,
        };
        Ok(Self { value, span })
    }
}

impl<'de> Deserialize<'de> for Value<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;

        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = Value<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("YAML")
            }

            fn visit_unit<E>(self) -> Result<Value<'de>, E> {
                Ok(Value::Null)
            }

            fn visit_none<E>(self) -> Result<Value<'de>, E> {
                Ok(Value::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Value<'de>, D::Error> {
                Value::deserialize(inner)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Value<'de>, E> {
                Ok(Value::Bool(value, ""))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Value<'de>, E> {
                Ok(Value::Number(value, ""))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Value<'de>, E> {
                Ok(u64::try_from(value).map_or(Value::Other(""), |value| Value::Number(value, "")))
            }

            fn visit_i128<E>(self, _: i128) -> Result<Value<'de>, E> {
                Ok(Value::Other(""))
            }

            fn visit_u128<E>(self, _: u128) -> Result<Value<'de>, E> {
                Ok(Value::Other(""))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Value<'de>, E> {
                Ok(Value::Other(""))
            }

            fn visit_str<E>(self, text: &str) -> Result<Value<'de>, E> {
                Ok(Value::Text(Cow::Owned(text.to_owned())))
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Value<'de>, E> {
                Ok(Value::Text(Cow::Borrowed(text)))
            }

            fn visit_string<E>(self, text: String) -> Result<Value<'de>, E> {
                Ok(Value::Text(Cow::Owned(text)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value<'de>, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Value::List(list.into_boxed_slice()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value<'de>, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(Value::Map(map.into_boxed_slice()))
            }
        }

        deserializer.deserialize_any(ValueVisitor)
    }
}
