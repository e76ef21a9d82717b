//! From YAML to values of the right kind. What is wrong is noted, and reading
//! goes on.

use std::time::Duration;

use super::fields::{TABLES, Table, closest};
use super::mistake::{Mistake, Place};
use super::source::Source;
use super::yaml::{Node, Value};

/// The largest number that a quota can have.
const MOST: u64 = 1 << 48;

pub(super) struct Reader<'s> {
    pub(super) source: &'s Source,
    pub(super) mistakes: Vec<Mistake>,
}

/// The fields of a map that are known.
pub(super) struct Fields<'n> {
    known: Vec<(&'n str, &'n Node)>,
    /// Others were there, which are noted.
    pub(super) has_unknown: bool,
}

impl<'n> Fields<'n> {
    /// Null is as good as absent.
    pub(super) fn get(&self, name: &str) -> Option<&'n Node> {
        let (_, node) = self.known.iter().find(|(field, _)| *field == name)?;
        (!matches!(node.value, Value::Null)).then_some(*node)
    }

    pub(super) fn is_null(&self, name: &str) -> bool {
        self.known.iter().any(|(field, node)| *field == name && matches!(node.value, Value::Null))
    }
}

impl Reader<'_> {
    pub(super) fn mistake(&mut self, place: Place, message: impl Into<String>) -> &mut Mistake {
        self.mistakes.push(self.source.mistake(place, message));
        let last = self.mistakes.len() - 1;
        &mut self.mistakes[last]
    }

    /// The fields that `table` knows; the others are mistakes.
    pub(super) fn map<'n>(&mut self, node: &'n Node, table: &Table) -> Option<Fields<'n>> {
        let Value::Map(entries) = &node.value else {
            let fields: Vec<_> = table.fields.iter().map(|field| field.name).collect();
            let message = format!("{} is a map of {}, not {}", table.what, fields.join(", "), kind_of(node));
            self.mistake(node.place, message);
            return None;
        };
        let mut fields: Vec<(&str, &Node)> = Vec::with_capacity(entries.len());
        let mut places: Vec<Place> = Vec::with_capacity(entries.len());
        let noted = self.mistakes.len();
        for (key, value) in entries {
            let Value::Text(name) = &key.value else {
                self.mistake(key.place, format!("a field's name is a text, not {}", kind_of(key)));
                continue;
            };
            if let Some(first) = fields.iter().position(|(field, _)| field == name) {
                let message =
                    format!("`{name}` stands here twice; the first is on line {}", places[first].line);
                self.mistake(key.place, message).hint("leave one of them");
            } else if table.fields.iter().any(|field| field.name == name) {
                fields.push((name, value));
                places.push(key.place);
            } else {
                self.unknown(name, key.place, table);
            }
        }
        Some(Fields { known: fields, has_unknown: self.mistakes.len() > noted })
    }

    fn unknown(&mut self, name: &str, place: Place, table: &Table) {
        if let Some((_, why)) = table.refused.iter().find(|(field, _)| *field == name) {
            self.mistake(place, format!("`{name}` is not honoured: {why}"));
            return;
        }
        let belongs = |other: &&&Table| other.fields.iter().any(|field| field.name == name);
        let own = table.fields.iter().map(|field| field.name);
        let hint = match (closest(name, own.clone()), TABLES.iter().find(belongs)) {
            (_, Some(other)) => format!("it belongs in {}", other.what),
            (Some(near), None) => format!("did you mean `{near}`?"),
            (None, None) => format!("it can hold {}", own.collect::<Vec<_>>().join(", ")),
        };
        self.mistake(place, format!("{} has no field `{name}`", table.what)).hint(hint);
    }

    /// A text, also one that looks like a number or a truth.
    pub(super) fn text<'n>(&mut self, name: &str, node: &'n Node) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) => Some(text),
            Value::Bool(_, written) | Value::Number(_, written) | Value::Other(written) => Some(written),
            Value::Null | Value::List(_) | Value::Map(_) => {
                self.mistake(node.place, format!("`{name}` is a text, not {}", kind_of(node)));
                None
            }
        }
    }

    /// A text that has to be there, and where it stands; empty where it is not.
    pub(super) fn required<'n>(
        &mut self,
        name: &str,
        fields: &Fields<'n>,
        map: &Node,
        table: &Table,
    ) -> (&'n str, Place) {
        let Some(node) = fields.get(name) else {
            self.mistake(map.place, format!("{} needs a `{name}`", table.what));
            return ("", map.place);
        };
        let text = self.text(name, node);
        if text == Some("") {
            self.mistake(node.place, format!("the `{name}` is empty"));
        }
        (text.unwrap_or_default(), node.place)
    }

    pub(super) fn flag(&mut self, name: &str, node: Option<&Node>) -> bool {
        match node.map(|node| (&node.value, node)) {
            None => false,
            Some((Value::Bool(flag, _), _)) => *flag,
            Some((_, node)) => {
                self.mistake(node.place, format!("`{name}` is true or false, not {}", kind_of(node)));
                false
            }
        }
    }

    /// A whole number from `least` to 2^48.
    pub(super) fn count(&mut self, name: &str, least: u64, node: &Node) -> Option<u64> {
        let message = match &node.value {
            Value::Number(number, _) if (least..=MOST).contains(number) => return Some(*number),
            Value::Number(number, _) if *number < least => format!("`{name}` is at least {least}"),
            Value::Number(..) => format!("`{name}` is at most 2^48"),
            Value::Other(written) if written.starts_with('-') => {
                format!("`{name}` is at least {least}, not {written}")
            }
            _ => format!("`{name}` is a whole number, not {}", kind_of(node)),
        };
        self.mistake(node.place, message);
        None
    }

    /// The place of the word among `choices`; in any case of letters, as Envoy's.
    pub(super) fn choice(&mut self, name: &str, choices: &[&str], node: &Node) -> Option<usize> {
        let word = self.text(name, node)?;
        let found = choices.iter().position(|choice| choice.eq_ignore_ascii_case(word));
        if found.is_none() {
            let hint = match closest(word, choices.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("it is one of {}", choices.join(", ")),
            };
            self.mistake(node.place, format!("there is no {name} `{word}`")).hint(hint);
        }
        found
    }

    pub(super) fn duration(&mut self, name: &str, node: &Node) -> Option<Duration> {
        let text = self.text(name, node)?;
        let duration = parse_duration(text);
        if duration.is_none() {
            let hint = "write such as 500ms, 90s, 15m, 1h30m, 7d or 2w";
            self.mistake(node.place, format!("`{name}` is a duration, not `{text}`")).hint(hint);
        }
        duration
    }

    pub(super) fn list<'n>(&mut self, name: &str, node: Option<&'n Node>) -> &'n [Node] {
        match node.map(|node| (&node.value, node)) {
            None => &[],
            Some((Value::List(items), _)) => items,
            Some((_, node)) => {
                let message = format!("`{name}` is a list, not {}", kind_of(node));
                self.mistake(node.place, message).hint("begin each item with `- `");
                &[]
            }
        }
    }
}

/// Numbers with units, such as `1h30m`; each unit once, the longest first.
fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 6] =
        [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let (mut rest, mut millis, mut longest) = (text, 0_u64, u64::MAX);
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == &rest[..letters])?;
        if unit >= longest {
            return None;
        }
        longest = unit;
        millis = millis.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[letters..];
    }
    (millis > 0).then(|| Duration::from_millis(millis))
}

fn kind_of(node: &Node) -> String {
    match &node.value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_, written) | Value::Number(_, written) | Value::Other(written) => {
            format!("`{written}`")
        }
        Value::Text(text) => format!("the text `{text}`"),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a map".to_owned(),
    }
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
