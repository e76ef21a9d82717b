//! The variables of an environment, and the settings that they mean.

use std::cell::RefCell;
use std::ffi::OsString;

use super::super::setting::{Origin, SettingValue};
use super::variables::VARIABLES;
use crate::redis_url::Password;

/// The settings that the variables mean.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    pub(crate) values: Vec<SettingValue>,
    pub(crate) password: Option<Password>,
    pub(crate) warnings: Vec<String>,
    pub(crate) mistakes: Vec<String>,
}

impl Imported {
    pub(super) fn set(&mut self, name: &str, text: impl Into<String>, variable: &str) {
        self.set_all(name, vec![text.into()], variable);
    }

    pub(super) fn set_all(&mut self, name: &str, texts: Vec<String>, variable: &str) {
        let origin = Origin::Variable(variable.to_owned());
        self.values.push(SettingValue { name: name.to_owned(), texts, origin });
    }
}

/// The variables of an environment, and their mistakes. An empty one is not set, as in envoyproxy/ratelimit.
pub(super) struct Variables<'e> {
    environment: &'e dyn Fn(&str) -> Option<OsString>,
    mistakes: RefCell<Vec<String>>,
}

impl<'e> Variables<'e> {
    pub(super) fn new(environment: &'e dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { environment, mistakes: RefCell::default() }
    }

    /// Returns the text of a variable.
    pub(super) fn get(&self, name: &'static str) -> Option<String> {
        debug_assert!(VARIABLES.iter().any(|variable| variable.name == name), "{name} is not in the table");
        let text = (self.environment)(name).filter(|text| !text.is_empty())?;
        self.valid(text.into_string(), || format!("{name} is not text in UTF-8"))
    }

    pub(super) fn is_true(&self, name: &'static str) -> bool {
        let Some(text) = self.get(name) else { return false };
        self.valid(boolean(&text).ok_or(()), || format!("{name}={text}: write true or false"))
            .unwrap_or_default()
    }

    /// Notes a mistake unless there is a value.
    pub(super) fn valid<T, E>(&self, value: Result<T, E>, mistake: impl FnOnce() -> String) -> Option<T> {
        if value.is_err() {
            self.refuse(mistake());
        }
        value.ok()
    }

    /// Notes a mistake, unless it is known: a variable can be read twice.
    pub(super) fn refuse(&self, mistake: String) {
        let mut mistakes = self.mistakes.borrow_mut();
        if !mistakes.contains(&mistake) {
            mistakes.push(mistake);
        }
    }

    pub(super) fn into_mistakes(self) -> Vec<String> {
        self.mistakes.into_inner()
    }
}

/// Reads a Boolean as Go does.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}
