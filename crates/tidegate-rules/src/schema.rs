//! A JSON Schema of the rule files, for editors.

use serde_json::{Value, json};

use super::fields::TABLES;
use crate::fields::{Field, FieldKind, FieldTable};

/// Returns a JSON Schema (2020-12) of a document of rules, for editors and linters.
///
/// The schema describes the name, type and meaning of every field. Only [`Rules::load`](super::Rules::load)
/// checks whether the rules are consistent.
///
/// ```
/// std::fs::write(std::env::temp_dir().join("tidegate-rules.schema.json"), tidegate_rules::schema())?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn schema() -> String {
    let [document, others @ ..] = &TABLES;
    let mut schema = object(document);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Rules of tidegate".into();
    schema["$defs"] = others.iter().map(|table| (name_of(table), object(table))).collect();
    schema.to_string()
}

fn object(table: &FieldTable) -> Value {
    let properties: Value = table.fields.iter().map(|field| (field.name, property(field))).collect();
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": table.required,
        "properties": properties,
    })
}

fn property(field: &Field) -> Value {
    let mut property = match &field.kind {
        FieldKind::Text => json!({ "type": ["string", "number", "boolean", "null"] }),
        FieldKind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        FieldKind::Flag => json!({ "type": "boolean" }),
        FieldKind::Count(min) => json!({ "type": "integer", "minimum": min }),
        FieldKind::Duration => json!({ "type": "string", "pattern": "^([0-9]+(w|d|h|ms|m|s))+$" }),
        FieldKind::Window => {
            let pattern = "^(day|week|month|quarter|year|([0-9]+(w|d|h|ms|m|s))+)$";
            json!({ "type": "string", "pattern": pattern })
        }
        FieldKind::Choice(choices) => json!({ "enum": choices }),
        FieldKind::Map => json!({ "type": "object" }),
        FieldKind::One(table) => reference(table),
        FieldKind::OneOrText(table) => json!({ "anyOf": [reference(table), { "type": "string" }] }),
        FieldKind::Many(table) => json!({ "type": ["array", "null"], "items": reference(table) }),
        FieldKind::Named(table) => json!({ "type": "object", "additionalProperties": reference(table) }),
    };
    property["description"] = field.help.into();
    property
}

fn reference(table: &FieldTable) -> Value {
    json!({ "$ref": format!("#/$defs/{}", name_of(table)) })
}

/// Returns the name of a table's definition: `entry_of_rate_limits` for ``an entry of `rate_limits` ``.
fn name_of(table: &FieldTable) -> String {
    let (_, name) = table.label.split_once(' ').unwrap_or_default();
    name.replace(' ', "_").replace('`', "")
}
