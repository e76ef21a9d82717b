//! The variables of an environment, and the settings that they mean.

use std::ffi::OsString;

use super::super::setting::{Origin, SettingValue};
use super::variables::VARIABLES;
use crate::failure::Failure;
use crate::redis_url::Password;

/// The settings that the variables mean.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    pub(crate) values: Vec<SettingValue>,
    pub(crate) password: Option<Password>,
    pub(crate) warnings: Vec<String>,
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

/// The variables of an environment. An empty one is not set, as in envoyproxy/ratelimit.
pub(super) struct Variables<'e>(&'e dyn Fn(&str) -> Option<OsString>);

impl<'e> Variables<'e> {
    pub(super) fn new(environment: &'e dyn Fn(&str) -> Option<OsString>) -> Self {
        Self(environment)
    }

    /// Returns the text of a variable.
    pub(super) fn get(&self, name: &'static str) -> Result<Option<String>, Failure> {
        debug_assert!(VARIABLES.iter().any(|variable| variable.name == name), "{name} is not in the table");
        let Some(text) = (self.0)(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        text.into_string().map(Some).map_err(|_| Failure::usage(format!("{name} is not text in UTF-8")))
    }

    pub(super) fn is_true(&self, name: &'static str) -> Result<bool, Failure> {
        let Some(text) = self.get(name)? else { return Ok(false) };
        boolean(&text).ok_or_else(|| Failure::usage(format!("{name}={text}: write true or false")))
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
