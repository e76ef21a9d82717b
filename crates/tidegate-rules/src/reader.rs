//! Reads typed values from YAML nodes. The reader collects errors and continues, so one run reports all of
//! them.

use std::time::Duration;

use super::config_error::{ConfigError, ErrorList, SourceSpan, cut};
use super::fields::{DESCRIPTOR, DOCUMENT, RATE_LIMIT, REPLACES, TABLES};
use super::yaml::{Value, YamlNode};
use crate::config_error::similar_name;
use crate::fields::FieldTable;
use crate::files::SourceFile;

/// The largest number in a quota.
const MAX_NUMBER: u64 = 1 << 48;
/// The maximum number of characters of a value that a message quotes.
const MAX_QUOTED_CHARS: usize = 60;

/// The maximum number of warnings that are kept: finding the line of each reads its file.
pub(super) const MAX_WARNINGS: usize = 100;

/// The fields of Envoy's service, which ignores them at places where they mean nothing.
const ENVOY_FIELDS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

pub(super) struct Reader<'s> {
    pub(super) source: &'s SourceFile,
    /// Whether the mistakes that Envoy's service accepts are warnings.
    pub(super) is_for_envoy: bool,
    pub(super) errors: ErrorList,
    /// The first [`MAX_WARNINGS`].
    pub(super) warnings: Vec<ConfigError>,
}

/// The known fields of a map.
pub(super) struct Fields<'n> {
    known: Vec<(&'n str, &'n YamlNode<'n>)>,
    /// Whether the map had other fields too, which are reported as errors.
    pub(super) has_unknown: bool,
}

impl<'n> Fields<'n> {
    /// Returns a field's value. A null value counts as absent.
    pub(super) fn get(&self, name: &str) -> Option<&'n YamlNode<'n>> {
        let (_, node) = self.known.iter().find(|(field, _)| *field == name)?;
        (!matches!(node.value(), Value::Null)).then_some(*node)
    }

    pub(super) fn is_null(&self, name: &str) -> bool {
        self.known.iter().any(|(field, node)| *field == name && matches!(node.value(), Value::Null))
    }
}

impl<'s> Reader<'s> {
    pub(super) fn new(source: &'s SourceFile, is_for_envoy: bool, errors: ErrorList) -> Self {
        Self { source, is_for_envoy, errors, warnings: Vec::new() }
    }

    pub(super) fn error(&mut self, span: SourceSpan, message: impl Into<String>) -> &mut ConfigError {
        self.errors.push(self.source.error(span, message))
    }

    /// Returns the name to suggest instead of `word`. After many errors, returns `None`.
    pub(super) fn closest<'a>(
        &self,
        word: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'a str> {
        self.errors.wants_suggestion().then(|| similar_name(word, known)).flatten()
    }

    /// Reports something that is valid, but probably a mistake.
    pub(super) fn warning(&mut self, span: SourceSpan, message: impl Into<String>, hint: impl Into<String>) {
        if self.warnings.len() < MAX_WARNINGS {
            let mut warning = self.source.error(span, message);
            warning.hint(hint);
            self.warnings.push(warning);
        }
    }

    /// Reports a mistake that Envoy's service accepts, with its effect there. Returns whether it is accepted here.
    pub(super) fn mistake(
        &mut self,
        span: SourceSpan,
        message: &str,
        effect: &str,
        hint: impl Into<String>,
    ) -> bool {
        match self.is_for_envoy {
            true => self.warning(span, format!("{message}: {effect}"), hint),
            false => self.error(span, message).hint(hint),
        }
        self.is_for_envoy
    }

    /// Returns the fields that `table` lists. Reports all other fields.
    pub(super) fn map<'n>(&mut self, node: &'n YamlNode<'n>, table: &FieldTable) -> Option<Fields<'n>> {
        let Value::Map(entries) = node.value() else {
            let fields: Vec<_> = table.fields.iter().map(|field| field.name).collect();
            let (label, fields) = (table.label, fields.join(", "));
            let message =
                format!("{label} must be a map with the fields {fields}, not {}", self.kind_of(node));
            self.error(node.span(), message);
            return None;
        };
        let mut fields: Vec<(&'n str, &'n YamlNode<'n>)> = Vec::with_capacity(entries.len());
        let mut spans: Vec<SourceSpan> = Vec::with_capacity(entries.len());
        let errors_before = self.errors.total();
        for (key, value) in entries {
            let Value::Text(name) = key.value() else {
                self.error(key.span(), format!("a field name must be a string, not {}", self.kind_of(key)));
                continue;
            };
            if let Some(first) = fields.iter().position(|(field, _)| *field == name) {
                let message = format!("duplicate field `{name}`: the first is on line {}", spans[first].line);
                if self.mistake(key.span(), &message, "this one counts", "remove one of them") {
                    fields[first].1 = value;
                }
            } else if table.fields.iter().any(|field| field.name == name) {
                fields.push((name, value));
                spans.push(key.span());
            } else {
                self.unknown(name, key.span(), table);
            }
        }
        Some(Fields { known: fields, has_unknown: self.errors.total() > errors_before })
    }

    fn unknown(&mut self, name: &str, span: SourceSpan, table: &FieldTable) {
        if let Some((_, reason)) = table.unsupported.iter().find(|(field, _)| *field == name) {
            self.error(span, format!("`{name}` is not supported: {reason}"));
            return;
        }
        let has_field = |other: &&&FieldTable| other.fields.iter().any(|field| field.name == name);
        let own = table.fields.iter().map(|field| field.name);
        let hint = match (self.closest(name, own.clone()), TABLES.iter().find(has_field)) {
            (Some(near), Some(other)) => {
                format!("did you mean `{near}`? `{name}` belongs in {}", other.label)
            }
            (None, Some(other)) => format!("it belongs in {}", other.label),
            (Some(near), None) => format!("did you mean `{near}`?"),
            (None, None) => format!("known fields: {}", own.collect::<Vec<_>>().join(", ")),
        };
        let message = format!("{} has no field `{}`", table.label, quoted(name));
        // Its service rejects files with any other table.
        let tables = [&DOCUMENT, &DESCRIPTOR, &RATE_LIMIT, &REPLACES];
        if tables.iter().any(|of| of.label == table.label) && ENVOY_FIELDS.contains(&name) {
            self.mistake(span, &message, "it has no effect", hint);
        } else {
            self.error(span, message).hint(hint);
        }
    }

    /// Reads a string. Accepts a number or a Boolean too, as written.
    pub(super) fn text<'n>(&mut self, name: &str, node: &'n YamlNode<'n>) -> Option<&'n str>
    where
        's: 'n,
    {
        match node.value() {
            Value::Text(text) => Some(text),
            Value::Bool(_) | Value::Number(_) | Value::Other => Some(self.source.written(node.span())),
            Value::Null | Value::List(_) | Value::Map(_) => {
                self.error(node.span(), format!("`{name}` must be a string, not {}", self.kind_of(node)));
                None
            }
        }
    }

    /// Reads a required string and returns it with its position. Reports an error and returns an empty string
    /// if it is absent.
    pub(super) fn required<'n>(
        &mut self,
        name: &str,
        fields: &Fields<'n>,
        map: &YamlNode,
        table: &FieldTable,
    ) -> (&'n str, SourceSpan)
    where
        's: 'n,
    {
        let Some(node) = fields.get(name) else {
            self.error(map.span(), format!("{} needs a `{name}`", table.label));
            return ("", map.span());
        };
        let text = self.text(name, node);
        if text == Some("") {
            self.error(node.span(), format!("the `{name}` is empty"));
        }
        (text.unwrap_or_default(), node.span())
    }

    pub(super) fn flag(&mut self, name: &str, node: Option<&YamlNode>) -> bool {
        match node.map(|node| (node.value(), node)) {
            None => false,
            Some((Value::Bool(flag), _)) => flag,
            Some((_, node)) => {
                self.error(
                    node.span(),
                    format!("`{name}` must be true or false, not {}", self.kind_of(node)),
                );
                false
            }
        }
    }

    /// Reads a whole number from `min` to 2^48.
    pub(super) fn count(&mut self, name: &str, min: u64, node: &YamlNode) -> Option<u64> {
        let message = match node.value() {
            Value::Number(number) if (min..=MAX_NUMBER).contains(&number) => return Some(number),
            Value::Number(number) if number < min => format!("`{name}` must be at least {min}"),
            Value::Number(_) => format!("`{name}` must be at most 2^48"),
            Value::Other | Value::Text(_) if self.is_whole_and_large(node) => {
                format!("`{name}` must be at most 2^48")
            }
            Value::Other if self.source.written(node.span()).starts_with('-') => {
                format!("`{name}` must be at least {min}, not {}", quoted(self.source.written(node.span())))
            }
            _ => format!("`{name}` must be a whole number, not {}", self.kind_of(node)),
        };
        self.error(node.span(), message);
        None
    }

    /// Returns whether a value is written as a whole number with more digits than any that YAML reads as one.
    fn is_whole_and_large(&self, node: &YamlNode) -> bool {
        let written = self.source.written(node.span());
        written.len() >= 20 && written.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// Reads one of `choices` and returns its index. Ignores case, as Envoy does.
    pub(super) fn choice(&mut self, name: &str, choices: &[&str], node: &YamlNode) -> Option<usize> {
        let word = self.text(name, node)?;
        let found = choices.iter().position(|choice| choice.eq_ignore_ascii_case(word));
        if found.is_none() {
            let hint = match self.closest(word, choices.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None if word.eq_ignore_ascii_case("gcra") => {
                    "write `token_bucket`, which decides as GCRA does".to_owned()
                }
                None => format!("expected one of {}", choices.join(", ")),
            };
            self.error(node.span(), format!("there is no {name} `{}`", quoted(word))).hint(hint);
        }
        found
    }

    pub(super) fn duration(&mut self, name: &str, node: &YamlNode) -> Option<Duration> {
        self.duration_or(name, "", node)
    }

    /// Reads a duration. The hint of an error ends with the other values of this field.
    pub(super) fn duration_or(&mut self, name: &str, others: &str, node: &YamlNode) -> Option<Duration> {
        let text = self.text(name, node)?;
        let duration = parse_duration(text);
        if duration.is_none() {
            let hint = format!("write a duration such as 500ms, 90s, 15m, 1h30m, 7d or 2w{others}");
            self.error(node.span(), format!("`{name}` must be a duration, not `{}`", quoted(text)))
                .hint(hint);
        }
        duration
    }

    pub(super) fn list<'n>(&mut self, name: &str, node: Option<&'n YamlNode<'n>>) -> &'n [YamlNode<'n>] {
        match node.map(|node| (node.value(), node)) {
            None => &[],
            Some((Value::List(items), _)) => items,
            Some((_, node)) => {
                let message = format!("`{name}` must be a list, not {}", self.kind_of(node));
                self.error(node.span(), message).hint("begin each item with `- `");
                &[]
            }
        }
    }

    /// Returns the items of a list. Each is freed when it is dropped.
    pub(super) fn take_list<'n>(&mut self, name: &str, node: Option<YamlNode<'n>>) -> Vec<YamlNode<'n>> {
        match node.filter(|node| !matches!(node.value(), Value::Null)) {
            Some(YamlNode::List(.., items)) => items.into_vec(),
            other => {
                // Reports any other kind of value.
                self.list(name, other.as_ref());
                Vec::new()
            }
        }
    }

    fn kind_of(&self, node: &YamlNode) -> String {
        match node.value() {
            Value::Null => "an empty value".to_owned(),
            Value::Bool(_) | Value::Number(_) | Value::Other => {
                format!("`{}`", quoted(self.source.written(node.span())))
            }
            Value::Text(text) => format!("the string `{}`", quoted(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

/// Parses numbers with units, such as `1h30m`. Each unit may occur once, the longest first.
fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 6] =
        [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let (mut rest, mut millis, mut previous_unit) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == &rest[..letters])?;
        if unit >= previous_unit {
            return None;
        }
        previous_unit = unit;
        millis = millis.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[letters..];
    }
    (millis > 0).then(|| Duration::from_millis(millis))
}

/// Returns the start of a value.
pub(super) fn quoted(text: &str) -> String {
    cut(text.chars().take(MAX_QUOTED_CHARS + 1).collect(), MAX_QUOTED_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        let ms = Duration::from_millis;
        for (text, expected) in [("500ms", ms(500)), ("90s", ms(90_000)), ("15m", ms(900_000))] {
            assert_eq!(parse_duration(text), Some(expected));
        }
        assert_eq!(parse_duration("1h30m"), Some(ms(5_400_000)));
        assert_eq!(parse_duration("1w2d"), Some(ms(777_600_000)));
        for text in ["", "0s", "15", "m", "1m1h", "1m1m", "1.5h", "-1s", "1 m", "99999999999999999999s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
