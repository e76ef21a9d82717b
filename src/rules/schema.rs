//! A JSON Schema of the rule files, for editors.

use std::fmt::Write;

use super::fields::{Field, FieldKind, FieldTable, TABLES};

/// Returns a JSON Schema (2020-12) of a document of rules, for editors and linters.
///
/// The schema describes the name, type and meaning of every field. Only [`Rules::load`](super::Rules::load)
/// checks whether the rules are consistent.
///
/// ```
/// std::fs::write(std::env::temp_dir().join("tidegate-rules.schema.json"), tidegate::rules::schema())?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn schema() -> String {
    let mut out = String::from("{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",");
    out.push_str("\"title\":\"Rules of tidegate\",");
    let [document, others @ ..] = &TABLES;
    object(&mut out, document);
    out.push_str(",\"$defs\":{");
    for (index, table) in others.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(out, "{comma}\"{}\":{{", name_of(table));
        object(&mut out, table);
        out.push('}');
    }
    out.push_str("}}");
    out
}

fn object(out: &mut String, table: &FieldTable) {
    out.push_str("\"type\":\"object\",\"additionalProperties\":false,");
    let _ = write!(out, "\"required\":{:?},\"properties\":{{", table.required);
    for (index, Field { name, kind, help }) in table.fields.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // `{:?}` is valid here: no help text contains a character that JSON and Rust escape differently.
        let _ = write!(out, "{comma}\"{name}\":{{\"description\":{help:?},{}}}", type_of(kind));
    }
    out.push('}');
}

fn type_of(kind: &FieldKind) -> String {
    match kind {
        FieldKind::Text => r#""type":["string","number","boolean","null"]"#.to_owned(),
        FieldKind::Flag => r#""type":"boolean""#.to_owned(),
        FieldKind::Count(min) => format!(r#""type":"integer","minimum":{min}"#),
        FieldKind::Duration => r#""type":"string","pattern":"^([0-9]+(w|d|h|ms|m|s))+$""#.to_owned(),
        FieldKind::Choice(choices) => format!(r#""enum":{choices:?}"#),
        FieldKind::One(table) => format!(r##""$ref":"#/$defs/{}""##, name_of(table)),
        FieldKind::Many(table) => {
            format!(r##""type":["array","null"],"items":{{"$ref":"#/$defs/{}"}}"##, name_of(table))
        }
        FieldKind::Named(table) => {
            format!(r##""type":"object","additionalProperties":{{"$ref":"#/$defs/{}"}}"##, name_of(table))
        }
    }
}

/// Returns the name of a table's definition: `entry_of_rate_limits` for ``an entry of `rate_limits` ``.
fn name_of(table: &FieldTable) -> String {
    let (_, name) = table.label.split_once(' ').unwrap_or_default();
    name.replace(' ', "_").replace('`', "")
}
