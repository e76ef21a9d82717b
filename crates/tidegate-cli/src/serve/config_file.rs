//! Reads the configuration file: a YAML map of settings to values. Messages show no text of the file but names, since
//! a line can contain a password.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Location, Spanned};

use super::setting::{Kind, Origin, Setting, SettingValue, closest};
use crate::failure::Failure;

/// Returns the settings of a file, in its order.
///
/// # Errors
///
/// All mistakes, each with its line.
pub(crate) fn read(path: &Path, text: &str, known: &[Setting]) -> Result<Vec<SettingValue>, Failure> {
    let file = ConfigFile { name: path.display().to_string(), text, known };
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
    };
    let node: Option<Spanned<Node>> =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let message = error.without_snippet().to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            file.error(error.location().unwrap_or(Location::UNKNOWN), &format!("invalid YAML: {message}"))
        })?;
    let Some(Spanned { value: node, defined, .. }) = node else { return Ok(Vec::new()) };
    match node {
        Node::Null => Ok(Vec::new()),
        Node::Map(entries) => file.values(entries),
        _ => Err(file.error(defined, "expected settings, such as `grpc_addr: 127.0.0.1:8081`")),
    }
}

struct ConfigFile<'f> {
    name: String,
    text: &'f str,
    known: &'f [Setting],
}

impl ConfigFile<'_> {
    fn values(&self, entries: Vec<(Spanned<Node>, Spanned<Node>)>) -> Result<Vec<SettingValue>, Failure> {
        let (mut values, mut mistakes) = (Vec::new(), Vec::new());
        for (key, node) in entries {
            match self.value(&key, &node, &values) {
                Ok(value) => values.push(value),
                Err(mistake) => mistakes.push(mistake.to_string()),
            }
        }
        if mistakes.is_empty() { Ok(values) } else { Err(Failure::usage(mistakes.join("\n"))) }
    }

    /// Returns a value of the file, which also has the `others`.
    fn value(
        &self,
        key: &Spanned<Node>,
        node: &Spanned<Node>,
        others: &[SettingValue],
    ) -> Result<SettingValue, Failure> {
        let name = self.scalar(key).unwrap_or_default();
        let Some(setting) = self.known.iter().find(|setting| setting.name == name) else {
            return Err(self.error(key.defined, &self.unknown(&name)));
        };
        let origin = self.origin(node.defined);
        if let Some(first) = others.iter().find(|value| value.name == name) {
            let message = format!("the setting `{name}` is also at {}: keep one of them", first.origin);
            return Err(self.error(key.defined, &message));
        }
        let texts = match (&node.value, setting.kind) {
            (Node::List(items), Kind::List) => items.iter().map(|item| self.scalar(item)).collect(),
            _ => self.scalar(node).map(|text| vec![text]),
        };
        let Some(texts) = texts else {
            let expected =
                if setting.kind == Kind::List { "a value or a list of values" } else { "one value" };
            return Err(self.error(node.defined, &format!("the setting `{name}` has {expected}")));
        };
        Ok(SettingValue { name, texts, origin })
    }

    /// Returns the text of a value, as written.
    fn scalar(&self, node: &Spanned<Node>) -> Option<String> {
        match &node.value {
            Node::Text(text) => Some(text.clone()),
            Node::Plain => {
                let span = node.defined.span();
                let (start, length) = (span.byte_offset()?, span.byte_len()?);
                let start = usize::try_from(start).ok()?;
                let end = start.checked_add(usize::try_from(length).ok()?)?;
                Some(self.text.get(start..end)?.trim_end().to_owned())
            }
            Node::Null | Node::List(_) | Node::Map(_) => None,
        }
    }

    fn unknown(&self, name: &str) -> String {
        if !is_word(name) {
            return "unknown setting, which is not shown: docs/operate/serve.md lists all settings"
                .to_owned();
        }
        match closest(name, self.known) {
            Some(near) => format!("unknown setting `{name}`: did you mean `{near}`?"),
            None => format!("unknown setting `{name}`: docs/operate/serve.md lists all settings"),
        }
    }

    fn origin(&self, at: Location) -> Origin {
        Origin::File(format!("{}:{}:{}", self.name, at.line(), at.column()))
    }

    fn error(&self, at: Location, message: &str) -> Failure {
        Failure::usage(format!("{}: {message}", self.origin(at)))
    }
}

/// Returns whether a text can be shown: a line of the file, or several, can contain a password.
pub(super) fn is_word(text: &str) -> bool {
    const MAX_BYTES: usize = 40;
    let is_line =
        text.contains(|letter: char| letter.is_whitespace() || letter == '@') || text.contains("://");
    text.len() <= MAX_BYTES && !is_line
}

/// A value of the file.
enum Node {
    Null,
    /// A Boolean or a number, whose text is in the file.
    Plain,
    Text(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<Self>, Spanned<Self>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NodeVisitor;

        impl<'de> Visitor<'de> for NodeVisitor {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a setting")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }

            fn visit_none<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }

            fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Node, D::Error> {
                Node::deserialize(inner)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
                Ok(Node::Plain)
            }

            fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
                Ok(Node::Plain)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
                Ok(Node::Plain)
            }

            fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
                Ok(Node::Plain)
            }

            fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
                Ok(Node::Plain)
            }

            fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
                Ok(Node::Plain)
            }

            fn visit_str<E>(self, text: &str) -> Result<Node, E> {
                Ok(Node::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Node::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(Node::Map(map))
            }
        }

        deserializer.deserialize_any(NodeVisitor)
    }
}
