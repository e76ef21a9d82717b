//! Parses YAML into values with their positions in the file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

use super::config_error::{ConfigError, SourceSpan};
use super::source::SourceFile;

/// A value and its position.
pub(super) struct YamlNode {
    pub(super) value: Value,
    pub(super) span: SourceSpan,
}

pub(super) enum Value {
    Null,
    /// A Boolean and its source text: `yes` can be meant as a string.
    Bool(bool, String),
    /// A non-negative whole number and its source text.
    Number(u64, String),
    /// The source text of any other number.
    Other(String),
    Text(String),
    List(Vec<YamlNode>),
    /// The entries in the order of the file, duplicate keys included.
    Map(Vec<(YamlNode, YamlNode)>),
}

impl YamlNode {
    /// Returns the documents of a file, without the empty ones.
    ///
    /// # Errors
    ///
    /// The first syntax error. The parser stops there.
    pub(super) fn documents(source: &SourceFile) -> Result<Vec<Self>, Box<ConfigError>> {
        let options = serde_saphyr::options! {
            // The reader reports the duplicate and needs the position of the first one.
            duplicate_keys: DuplicateKeyPolicy::PassThrough,
            budget: serde_saphyr::budget! {
                max_events: 20_000_000,
                max_nodes: 10_000_000,
                max_documents: 100_000,
            },
            with_snippet: false,
        };
        let documents: Result<Vec<Spanned<Raw>>, _> =
            serde_saphyr::from_multiple_with_options(&source.text, options);
        match documents {
            Ok(documents) => Ok(documents.into_iter().map(|raw| Self::new(raw, source)).collect()),
            Err(error) => {
                let span = error.location().map(|at| SourceSpan {
                    line: at.line() as usize,
                    column: at.column() as usize,
                    length: 1,
                });
                let text = error.without_snippet().to_string();
                let text = text.split(" at line ").next().unwrap_or_default();
                Err(Box::new(source.error(span.unwrap_or_default(), format!("invalid YAML: {text}"))))
            }
        }
    }

    fn new(spanned: Spanned<Raw>, source: &SourceFile) -> Self {
        let at = spanned.defined;
        let start = at.span().byte_offset().unwrap_or(0) as usize;
        let written = source.text.get(start..start + at.span().byte_len().unwrap_or(0) as usize);
        let written = written.unwrap_or_default().trim_end();
        let length = written.lines().next().unwrap_or_default().chars().count();
        let span = SourceSpan { line: at.line() as usize, column: at.column() as usize, length };
        let value = match spanned.value {
            Raw::Null => Value::Null,
            Raw::Bool(value) => Value::Bool(value, written.to_owned()),
            Raw::Number(value) => Value::Number(value, written.to_owned()),
            Raw::Other => Value::Other(written.to_owned()),
            Raw::Text(text) => Value::Text(text),
            Raw::List(items) => Value::List(items.into_iter().map(|item| Self::new(item, source)).collect()),
            Raw::Map(entries) => {
                let pair = |(key, value)| (Self::new(key, source), Self::new(value, source));
                Value::Map(entries.into_iter().map(pair).collect())
            }
        };
        Self { value, span }
    }
}

enum Raw {
    Null,
    Bool(bool),
    Number(u64),
    Other,
    Text(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<Self>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawVisitor;

        impl<'de> Visitor<'de> for RawVisitor {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("YAML")
            }

            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }

            fn visit_none<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Raw, D::Error> {
                Raw::deserialize(inner)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
                Ok(Raw::Bool(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
                Ok(Raw::Number(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
                Ok(u64::try_from(value).map_or(Raw::Other, Raw::Number))
            }

            fn visit_i128<E>(self, _: i128) -> Result<Raw, E> {
                Ok(Raw::Other)
            }

            fn visit_u128<E>(self, _: u128) -> Result<Raw, E> {
                Ok(Raw::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Raw, E> {
                Ok(Raw::Other)
            }

            fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
                Ok(Raw::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Raw, E> {
                Ok(Raw::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Raw::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(Raw::Map(map))
            }
        }

        deserializer.deserialize_any(RawVisitor)
    }
}
