//! Changes by operators: the form with the reason, then the page of the confirmation.

mod form;
mod texts;

use askama::Template;
use tidegate::algorithm::ALGORITHMS;

pub(super) use self::form::ChangeForm;
use self::texts::{button, consequence, question, title};
use super::frame::{Frame, Tab};
use super::{display, filters};
use crate::changes::Verb;

/// The form.
#[derive(Template)]
#[template(path = "change.html")]
pub(super) struct ChangePage {
    pub(super) frame: Frame,
    pub(super) verb: Verb,
    pub(super) consequence: &'static str,
    pub(super) values: ChangeForm,
    /// The algorithms, and whether each is chosen.
    pub(super) algorithms: Vec<(&'static str, bool)>,
    pub(super) error: Option<String>,
    /// The gates of the rules, to choose one.
    pub(super) gates: Vec<String>,
}

/// The question before the change.
#[derive(Template)]
#[template(path = "confirm.html")]
pub(super) struct ConfirmPage {
    pub(super) frame: Frame,
    pub(super) question: String,
    pub(super) consequence: &'static str,
    pub(super) followers: String,
    /// The stored form of the key, if the question shows another one.
    pub(super) stored_key: Option<String>,
    /// When the change ends, for those that end.
    pub(super) until: Option<String>,
    pub(super) reason: String,
    /// The values of the form, repeated.
    pub(super) hidden: Vec<(&'static str, String)>,
    pub(super) button: String,
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

const fn tab(verb: Verb) -> Tab {
    match verb {
        Verb::Block | Verb::Unblock | Verb::Reset => Tab::Keys,
        Verb::Override | Verb::EndOverride | Verb::Switch | Verb::EndSwitch => Tab::Overrides,
    }
}

impl ChangePage {
    /// `gates` are those to choose from.
    pub(super) fn new(
        frame: Frame,
        verb: Verb,
        values: ChangeForm,
        error: Option<String>,
        gates: Vec<String>,
    ) -> Self {
        let chosen = values.get("algorithm").to_owned();
        let algorithms = ALGORITHMS.iter().map(|algorithm| (algorithm.name, algorithm.name == chosen));
        Self {
            frame: Frame { title: title(verb).to_owned(), tab: Some(tab(verb)), ..frame },
            verb,
            consequence: consequence(verb),
            algorithms: algorithms.collect(),
            values,
            error,
            gates,
        }
    }

    fn is_of_key(&self) -> bool {
        !matches!(self.verb, Verb::Switch | Verb::EndSwitch)
    }

    fn has_duration(&self) -> bool {
        has_duration(self.verb)
    }

    fn is_switch(&self) -> bool {
        self.verb == Verb::Switch
    }

    fn is_override(&self) -> bool {
        self.verb == Verb::Override
    }

    fn has_quota(&self) -> bool {
        matches!(self.verb, Verb::Override | Verb::Block)
    }
}

const fn has_duration(verb: Verb) -> bool {
    matches!(verb, Verb::Block | Verb::Override | Verb::Switch)
}

impl ConfirmPage {
    /// `detail` are the values of the change in words, `followers` the instances that will follow it.
    pub(super) fn new(
        frame: Frame,
        verb: Verb,
        values: &ChangeForm,
        detail: &str,
        followers: String,
    ) -> Self {
        let hidden = values.repeated();
        let query: Vec<String> =
            hidden.iter().map(|(name, value)| format!("{name}={}", display::query_value(value))).collect();
        let until = match values.get("for").trim() {
            "" => "it is ended".to_owned(),
            duration => format!("{duration} from the confirmation"),
        };
        Self {
            frame: Frame { title: title(verb).to_owned(), tab: Some(tab(verb)), ..frame },
            stored_key: values.other_form(),
            until: has_duration(verb).then_some(until),
            question: question(verb, values, detail),
            consequence: consequence(verb),
            followers,
            reason: values.get("reason").trim().to_owned(),
            back: format!("/change?{}", query.join("&")),
            hidden,
            button: button(verb, values),
        }
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

    fn values(pairs: &[(&str, &str)]) -> ChangeForm {
        ChangeForm::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
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
        assert_eq!((&*fields.gate, fields.key.as_deref()), ("login", Some("%20a")));
        assert_eq!((fields.duration, fields.limit.as_deref()), (None, Some("5")));
        assert_eq!(question(Verb::Block, &form, "for 1h"), "Block  a at login for 1h?");
        assert_eq!(form.page_after(), "/key?written=%2520a");
        assert_eq!(values(&[("gate", "login")]).page_after(), "/gate?name=login");
        assert!(form.repeated().iter().all(|(name, _)| *name != "x"));
    }

    #[test]
    fn form_repeats_the_stored_form_of_a_key() {
        for form in ["bob%0A", "bob%00", "", "%FF", "%hmac=00", "not stored"] {
            let form_values = values(&[("gate", "g"), ("key", form), ("stored", "true"), ("reason", "r")]);
            let fields = form_values.fields();
            assert_eq!((fields.key.as_deref(), fields.stored.as_deref()), (Some(form), Some("true")));
            let repeated = form_values.repeated();
            assert!(
                repeated.contains(&("key", form.to_owned()))
                    && repeated.contains(&("stored", "true".to_owned()))
            );
        }
        assert_eq!(values(&[("key", "redis://ann:p%40ss@h:1")]).other_form(), None);
        let typed = values(&[("key", "bob\n")]);
        assert_eq!((typed.get("key"), typed.get("stored")), ("bob%0A", "true"));
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
