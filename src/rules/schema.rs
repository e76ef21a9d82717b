//! For editors: what a file may hold, as a JSON Schema.

use std::fmt::Write;

use super::fields::{Field, Kind, TABLES, Table};

/// A JSON Schema (2020-12) of a document of rules, for editors and linters. It
/// knows every field, its kind and its meaning; that rules fit together is
/// known only by [`Rules::load`](super::Rules::load).
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

fn object(out: &mut String, table: &Table) {
    out.push_str("\"type\":\"object\",\"additionalProperties\":false,");
    let _ = write!(out, "\"required\":{:?},\"properties\":{{", table.required);
    for (index, Field { name, kind, help }) in table.fields.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // No help holds what JSON escapes otherwise than Rust.
        let _ = write!(out, "{comma}\"{name}\":{{\"description\":{help:?},{}}}", of(kind));
    }
    out.push('}');
}

fn of(kind: &Kind) -> String {
    match kind {
        Kind::Text => r#""type":["string","number","boolean","null"]"#.to_owned(),
        Kind::Flag => r#""type":"boolean""#.to_owned(),
        Kind::Count(least) => format!(r#""type":"integer","minimum":{least}"#),
        Kind::Duration => r#""type":"string","pattern":"^([0-9]+(w|d|h|ms|m|s))+$""#.to_owned(),
        Kind::Choice(choices) => format!(r#""enum":{choices:?}"#),
        Kind::One(table) => format!(r##""$ref":"#/$defs/{}""##, name_of(table)),
        Kind::Many(table) => {
            format!(r##""type":["array","null"],"items":{{"$ref":"#/$defs/{}"}}"##, name_of(table))
        }
        Kind::Named(table) => {
            format!(r##""type":"object","additionalProperties":{{"$ref":"#/$defs/{}"}}"##, name_of(table))
        }
    }
}

/// `an entry of rate_limits` as `entry_of_rate_limits`.
fn name_of(table: &Table) -> String {
    let (_, name) = table.what.split_once(' ').unwrap_or_default();
    name.replace(' ', "_").replace('`', "")
}
