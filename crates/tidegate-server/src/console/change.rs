//! Changes by operators: the form with the reason, then the page of the confirmation.

use std::collections::HashMap;

use askama::Template;
use tidegate::algorithm::ALGORITHMS;

use super::filters;
use super::frame::{Frame, Tab};
use super::keys::Key;
use super::words;
use crate::admin::{ChangeFields, Verb};

/// The values of the form, as an operator has filled it in.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(pub(super) HashMap<String, String>);

/// The form.
#[derive(Template)]
#[template(path = "change.html")]
pub(super) struct ChangePage {
    pub(super) frame: Frame,
    pub(super) verb: Verb,
    pub(super) consequence: &'static str,
    pub(super) values: Values,
    /// The algorithms, and whether each is chosen.
    pub(super) algorithms: Vec<(&'static str, bool)>,
    pub(super) error: Option<String>,
}

/// The question before the change.
#[derive(Template)]
#[template(path = "confirm.html")]
pub(super) struct ConfirmPage {
    pub(super) frame: Frame,
    pub(super) question: String,
    pub(super) consequence: &'static str,
    pub(super) followers: String,
    pub(super) reason: String,
    /// The values of the form, repeated.
    pub(super) hidden: Vec<(&'static str, String)>,
    pub(super) button: &'static str,
    pub(super) back: String,
}

/// The outcome of a change that needs attention.
#[derive(Template)]
#[template(path = "changed.html")]
pub(super) struct ChangedPage {
    pub(super) frame: Frame,
    pub(super) message: String,
    pub(super) next: String,
}

/// Returns the verb of the parameter `verb`.
pub(super) fn verb(name: &str) -> Option<Verb> {
    Verb::ALL.into_iter().find(|verb| verb.as_str() == name)
}

const fn title(verb: Verb) -> &'static str {
    match verb {
        Verb::Block => "Block a key",
        Verb::Unblock => "Unblock a key",
        Verb::Reset => "Reset a key",
        Verb::Override => "Give a key another quota",
        Verb::EndOverride => "End the override of a key",
        Verb::Switch => "Switch a gate",
        Verb::EndSwitch => "End the switch of a gate",
    }
}

/// Returns what the change does.
const fn consequence(verb: Verb) -> &'static str {
    match verb {
        Verb::Block => "Every check of the key at this gate is denied until the block ends. Its usage stays.",
        Verb::Unblock => {
            "Lifts the block, and removes the denials that count towards a ban. The usage stays."
        }
        Verb::Reset => {
            "Removes the usage, the holds, the counted denials and the block of the key at this gate."
        }
        Verb::Override => "The key has this quota at the gate, in the whole fleet, until the override ends.",
        Verb::EndOverride => "The key has the gate's own quota again.",
        Verb::Switch => "Applies to all keys of the gate, in the whole fleet.",
        Verb::EndSwitch => "The gate follows its own quota again.",
    }
}

const fn tab(verb: Verb) -> Tab {
    match verb {
        Verb::Block | Verb::Unblock | Verb::Reset => Tab::Keys,
        Verb::Override | Verb::EndOverride | Verb::Switch | Verb::EndSwitch => Tab::Overrides,
    }
}

impl Values {
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

    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Returns the fields of the change. An empty field is absent.
    pub(super) fn fields(&self) -> ChangeFields {
        let given =
            |name: &str| Some(self.get(name).trim()).filter(|text| !text.is_empty()).map(str::to_owned);
        ChangeFields {
            gate: self.get("gate").trim().to_owned(),
            // A key may begin with a space, or be empty.
            key: self.0.get("key").cloned(),
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

    fn repeated(&self) -> Vec<(&'static str, String)> {
        Self::NAMES.iter().filter_map(|name| Some((*name, self.0.get(*name)?.clone()))).collect()
    }

    /// Returns the page to show after the change.
    pub(super) fn page_after(&self, key: Option<&Key>) -> String {
        match key.and_then(|key| key.written.first()) {
            Some(written) => format!("/key?written={}", words::query_value(written)),
            None => format!("/gate?name={}", words::query_value(self.get("gate").trim())),
        }
    }
}

impl ChangePage {
    pub(super) fn new(frame: Frame, verb: Verb, values: Values, error: Option<String>) -> Self {
        let chosen = values.get("algorithm").to_owned();
        let algorithms = ALGORITHMS.iter().map(|algorithm| (algorithm.name, algorithm.name == chosen));
        Self {
            frame: Frame { title: title(verb).to_owned(), tab: Some(tab(verb)), ..frame },
            verb,
            consequence: consequence(verb),
            algorithms: algorithms.collect(),
            values,
            error,
        }
    }

    fn is_of_key(&self) -> bool {
        !matches!(self.verb, Verb::Switch | Verb::EndSwitch)
    }

    fn has_duration(&self) -> bool {
        matches!(self.verb, Verb::Block | Verb::Override | Verb::Switch)
    }

    fn is_switch(&self) -> bool {
        self.verb == Verb::Switch
    }

    fn is_override(&self) -> bool {
        self.verb == Verb::Override
    }
}

impl ConfirmPage {
    /// `detail` are the values of the change in words, `followers` the instances that will follow it.
    pub(super) fn new(frame: Frame, verb: Verb, values: &Values, detail: &str, followers: String) -> Self {
        let hidden = values.repeated();
        let query: Vec<String> =
            hidden.iter().map(|(name, value)| format!("{name}={}", words::query_value(value))).collect();
        Self {
            frame: Frame { title: title(verb).to_owned(), tab: Some(tab(verb)), ..frame },
            question: question(verb, values, detail),
            consequence: consequence(verb),
            followers,
            reason: values.get("reason").trim().to_owned(),
            back: format!("/change?{}", query.join("&")),
            hidden,
            button: title(verb),
        }
    }
}

fn question(verb: Verb, values: &Values, detail: &str) -> String {
    let (key, gate) = (values.get("key"), values.get("gate").trim());
    match verb {
        Verb::Block => format!("Block {key} at {gate} {detail}?"),
        Verb::Unblock => format!("Unblock {key} at {gate}?"),
        Verb::Reset => format!("Reset {key} at {gate}?"),
        Verb::Override => format!("Give {key} at {gate} the quota {detail}?"),
        Verb::EndOverride => format!("Give {key} at {gate} the gate's own quota again?"),
        Verb::Switch => format!("Switch {gate} {detail}?"),
        Verb::EndSwitch => format!("End the switch of {gate}?"),
    }
}

impl ChangedPage {
    pub(super) fn new(frame: Frame, verb: Verb, message: String, next: String) -> Self {
        Self { frame: Frame { title: title(verb).to_owned(), tab: Some(tab(verb)), ..frame }, message, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        Values(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn form_becomes_the_fields_of_a_change() {
        let form = values(&[
            ("gate", " login "),
            ("key", " a"),
            ("for", ""),
            ("limit", "5 "),
            ("reason", "r"),
            ("x", "y"),
        ]);
        let fields = form.fields();
        assert_eq!((&*fields.gate, fields.key.as_deref()), ("login", Some(" a")));
        assert_eq!((fields.duration, fields.limit.as_deref()), (None, Some("5")));
        assert_eq!(question(Verb::Block, &form, "for 1h"), "Block  a at login for 1h?");
        assert_eq!(form.page_after(Key::of_written("a%20b").as_ref()), "/key?written=a%2520b");
        assert_eq!(form.page_after(None), "/gate?name=login");
        assert!(form.repeated().iter().all(|(name, _)| *name != "x"));
    }

    #[test]
    fn each_verb_has_a_page() {
        for known in Verb::ALL {
            assert_eq!(verb(known.as_str()), Some(known));
            assert!(!title(known).is_empty() && !consequence(known).is_empty());
        }
        assert_eq!(verb("forget"), None);
    }
}
