//! The rules: their source, and the result of the last reload.

use std::time::Duration;

use askama::Template;
use tidegate::admin::human;
use tidegate_rules::{ConfigError, Reload, RulesLimiter};

use super::filters;
use super::frame::{Frame, Tab};
use super::source::Window;

/// The maximum errors or warnings, and files, of the page.
const MAX_ERRORS: usize = 50;
const MAX_FILES: usize = 200;

/// The page.
#[derive(Template)]
#[template(path = "rules.html")]
pub(super) struct RulesPage {
    pub(super) frame: Frame,
    pub(super) rules: usize,
    pub(super) files: Vec<File>,
    /// The index of the shown file.
    pub(super) shown: usize,
    pub(super) window: Window,
    pub(super) warnings: Vec<Mistake>,
    pub(super) reload: Option<ReloadView>,
}

pub(super) struct File {
    /// The whole name.
    pub(super) name: String,
    /// The name without its folder.
    pub(super) short: String,
}

/// A mistake in a file.
pub(super) struct Mistake {
    pub(super) position: String,
    pub(super) message: String,
    pub(super) suggestion: Option<String>,
}

/// The last reload.
pub(super) struct ReloadView {
    pub(super) ago: String,
    /// Why the files on disk are not applied; `None` if they are.
    pub(super) failed: Option<String>,
    pub(super) errors: Vec<Mistake>,
    pub(super) more_errors: usize,
}

impl RulesPage {
    /// Shows the file with this index at a line, counted from 1.
    pub(super) fn new(
        frame: Frame,
        rules: &RulesLimiter,
        reload: Option<&Reload>,
        file: usize,
        line: usize,
    ) -> Self {
        let rules = rules.rules();
        let sources: Vec<(&str, &str)> = rules.sources().collect();
        let shown = file.min(sources.len().saturating_sub(1));
        let warned = |name: &str| {
            let of_file = rules.warnings().iter().filter(|warning| warning.file() == name);
            of_file.map(ConfigError::line).collect::<Vec<_>>()
        };
        let window = sources.get(shown).map(|(name, text)| Window::around(text, line, &warned(name)));
        Self {
            frame: Frame { title: "Rules".to_owned(), tab: Some(Tab::Rules), ..frame },
            rules: rules.iter().count(),
            files: sources.iter().take(MAX_FILES).map(|(name, _)| File::new(name)).collect(),
            shown,
            window: window.unwrap_or_default(),
            warnings: rules.warnings().iter().take(MAX_ERRORS).map(Mistake::new).collect(),
            reload: reload.map(ReloadView::new),
        }
    }
}

impl RulesPage {
    fn shown_file(&self) -> Option<&File> {
        self.files.get(self.shown)
    }
}

impl File {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), short: name.rsplit('/').next().unwrap_or(name).to_owned() }
    }
}

impl Mistake {
    fn new(error: &ConfigError) -> Self {
        let position = match error.line() {
            0 => error.file().to_owned(),
            line => format!("{}:{line}:{}", error.file(), error.column()),
        };
        Self {
            position,
            message: error.message().to_owned(),
            suggestion: error.suggestion().map(str::to_owned),
        }
    }
}

impl ReloadView {
    fn new(reload: &Reload) -> Self {
        let failed = reload.result().err();
        let errors: Vec<Mistake> = reload.errors().take(MAX_ERRORS).map(Mistake::new).collect();
        let all_errors = reload.errors().count();
        Self {
            ago: human(Duration::from_secs(reload.age().as_secs())),
            // The list has each error.
            failed: failed.map(|error| if errors.is_empty() { error.to_string() } else { String::new() }),
            more_errors: all_errors - errors.len(),
            errors,
        }
    }
}
