//! The outcome of a reload, for operators.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tidegate::Error;

use super::config_error::{ConfigError, ConfigErrors};
use super::source::SourceFile;

/// The last reload of rule files, from [`ReloadingRules::last_reload`](super::ReloadingRules::last_reload).
#[derive(Clone)]
pub struct Reload {
    /// When the changed files were read.
    pub at: SystemTime,
    /// The number of rules that are active since, or why the previous ones stay active.
    pub result: Result<usize, Error>,
    errors: Option<ConfigErrors>,
    sources: Arc<[SourceFile]>,
}

impl Reload {
    pub(super) fn new(
        result: Result<usize, Error>,
        errors: Option<ConfigErrors>,
        sources: Arc<[SourceFile]>,
    ) -> Self {
        Self { at: SystemTime::now(), result, errors, sources }
    }

    /// Iterates over the errors in the files, with their positions. Empty if the rules were valid, also if a
    /// [condition](super::ReloadingRules::require) rejected them.
    pub fn errors(&self) -> impl Iterator<Item = &ConfigError> {
        self.errors.iter().flat_map(ConfigErrors::iter)
    }

    /// Iterates over the names of the files that were read, and their texts. The text is `None` for a file without a field
    /// of a rule file: by a link, it can be any file of the machine.
    pub fn sources(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.sources.iter().map(|source| (&*source.name, source.is_rule_file().then_some(&*source.text)))
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reload").field("at", &self.at).field("result", &self.result).finish_non_exhaustive()
    }
}
