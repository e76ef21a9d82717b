//! The values of the form of a change.

use std::collections::HashMap;

use tidegate::admin::ChangedGate;

use crate::changes::ChangeFields;
use crate::pages::{display, stored_key};

/// The values of the form, as an operator has filled it in. A key is always in its stored form.
#[derive(Clone, Debug, Default)]
pub(in crate::pages) struct ChangeForm {
    values: HashMap<String, String>,
    /// The name that is shown for the gate, once it is known.
    shown_gate: Option<String>,
}

impl ChangeForm {
    /// The fields that the question repeats.
    const NAMES: [&str; 12] = [
        "verb",
        "gate",
        "key",
        "stored",
        "for",
        "to",
        "algorithm",
        "limit",
        "rate",
        "window",
        "force",
        "reason",
    ];

    /// Takes the values of a form or a link. A key that is not in its stored form was typed.
    pub(in crate::pages) fn new(mut values: HashMap<String, String>) -> Self {
        let is_stored = values.get("stored").is_some_and(|text| matches!(&**text, "true" | "on" | "1"));
        if let Some(key) = values.get_mut("key")
            && !is_stored
        {
            *key = stored_key::encoded(key.as_bytes());
            values.insert("stored".to_owned(), "true".to_owned());
        }
        Self { values, shown_gate: None }
    }

    /// Replaces the name of a rule by the name of its gate, which the pages link to.
    pub(in crate::pages) fn name_gate(&mut self, gate: ChangedGate) {
        self.shown_gate = Some(gate.to_string());
        self.values.insert("gate".to_owned(), gate.name);
    }

    /// Returns the gate for people.
    pub(super) fn shown_gate(&self) -> &str {
        self.shown_gate.as_deref().unwrap_or_else(|| self.get("gate").trim())
    }

    pub(in crate::pages) fn get(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// Returns the stored form of the key.
    pub(in crate::pages) fn key_form(&self) -> Option<&str> {
        self.values.get("key").map(String::as_str)
    }

    /// Returns the key for people: its text, or its stored form.
    pub(in crate::pages) fn shown_key(&self) -> String {
        stored_key::shown(self.get("key"))
    }

    /// Returns the stored form of the key for people, if it is not what they see already.
    pub(in crate::pages) fn other_form(&self) -> Option<String> {
        let form = stored_key::redacted(self.key_form()?);
        Some(form).filter(|form| !form.is_empty() && *form != self.shown_key())
    }

    /// Returns the fields of the change. An empty field is absent.
    pub(in crate::pages) fn fields(&self) -> ChangeFields {
        let given =
            |name: &str| Some(self.get(name).trim()).filter(|text| !text.is_empty()).map(str::to_owned);
        ChangeFields {
            gate: self.get("gate").trim().to_owned(),
            key: self.key_form().map(str::to_owned),
            stored: given("stored"),
            duration: given("for"),
            to: given("to"),
            algorithm: given("algorithm"),
            limit: given("limit"),
            rate: given("rate"),
            window: given("window"),
            force: given("force"),
            reason: self.get("reason").to_owned(),
        }
    }

    pub(super) fn repeated(&self) -> Vec<(&'static str, String)> {
        Self::NAMES.iter().filter_map(|name| Some((*name, self.values.get(*name)?.clone()))).collect()
    }

    /// Returns the page to show after the change.
    pub(in crate::pages) fn page_after(&self) -> String {
        match self.key_form() {
            Some(form) => format!("/key?written={}", display::query_value(form)),
            None => format!("/gate?name={}", display::query_value(self.get("gate").trim())),
        }
    }
}
