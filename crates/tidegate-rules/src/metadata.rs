//! Reads the `metadata` of a descriptor.

use serde_json::{Map, Number, Value as Json};

use super::reader::Reader;
use super::yaml::{Value, YamlNode};

/// Reads a map of any values as JSON. The names are the operator's, so they are not checked.
pub(super) fn read(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Map<String, Json>> {
    match json(reader, node)? {
        Json::Object(map) => Some(map),
        _ => {
            reader.error(node.span(), "`metadata` must be a map");
            None
        }
    }
}

fn json(reader: &mut Reader<'_>, node: &YamlNode) -> Option<Json> {
    match node.value() {
        Value::Null => Some(Json::Null),
        Value::Bool(flag) => Some(Json::Bool(flag)),
        Value::Number(number) => Some(Json::Number(number.into())),
        Value::Other => {
            let written = reader.source.written(node.span());
            let whole = written.parse::<i64>().ok().map(Number::from);
            let number = whole.or_else(|| Number::from_f64(written.parse().ok()?));
            if number.is_none() {
                reader.error(node.span(), format!("`metadata` cannot hold the number `{written}`"));
            }
            number.map(Json::Number)
        }
        Value::Text(text) => Some(Json::String(text.to_string())),
        Value::List(items) => items.iter().map(|item| json(reader, item)).collect(),
        Value::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                let name = reader.text("a name in `metadata`", key)?.to_owned();
                let value = json(reader, value)?;
                if map.insert(name, value).is_some() {
                    let message = "duplicate name in `metadata`";
                    reader.mistake(key.span(), message, "this one counts", "remove one of them");
                }
            }
            Some(Json::Object(map))
        }
    }
}

/// Adds the entries of `more`. Merges maps; of two other values of one name, the first stays.
pub(super) fn merge(into: &mut Map<String, Json>, more: &Map<String, Json>) {
    for (name, value) in more {
        match (into.get_mut(name), value) {
            (None, _) => drop(into.insert(name.clone(), value.clone())),
            (Some(Json::Object(first)), Json::Object(second)) => merge(first, second),
            (Some(_), _) => {}
        }
    }
}
