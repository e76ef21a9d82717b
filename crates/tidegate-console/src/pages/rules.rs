//! The rules: their source, and the result of the last reload.

use std::time::Duration;

use askama::Template;
use tidegate::admin::human;
use tidegate_rules::{ConfigError, Reload, RulesLimiter};

use super::filters;
use super::frame::{Frame, Tab};

/// The maximum errors or warnings, and files, of the page.
const MAX_ERRORS: usize = 50;
const MAX_FILES: usize = 200;

/// The page.
#[derive(Template)]
#[template(path = "rules.html")]
pub(super) struct RulesPage {
    pub(super) frame: Frame,
    pub(super) rules: usize,
    /// The first files.
    pub(super) files: Vec<File>,
    /// The index of the shown file among all.
    pub(super) shown: usize,
    pub(super) file: Option<File>,
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
            file: sources.get(shown).map(|(name, _)| File::new(name)),
            window: window.unwrap_or_default(),
            warnings: rules.warnings().iter().take(MAX_ERRORS).map(Mistake::new).collect(),
            reload: reload.map(ReloadView::new),
        }
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

/// The lines of a window, and the characters of a line that are shown.
const WINDOW_LINES: usize = 400;
const MAX_LINE_CHARS: usize = 200;

/// A part of a file.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) lines: Vec<SourceLine>,
    /// The number of the file's lines.
    pub(super) all: usize,
    /// The first lines of the windows before and after this one, counted from 1.
    pub(super) previous: Option<usize>,
    pub(super) next: Option<usize>,
}

#[derive(Debug)]
pub(super) struct SourceLine {
    pub(super) number: usize,
    pub(super) text: String,
    /// Whether the last reload found an error in the line.
    pub(super) is_wrong: bool,
}

impl Window {
    /// Returns the window that contains a line, counted from 1. `wrong` are the lines with errors.
    pub(super) fn around(text: &str, line_number: usize, wrong: &[usize]) -> Self {
        let all = text.lines().count();
        let start = line_number.clamp(1, all.max(1)).saturating_sub(1) / WINDOW_LINES * WINDOW_LINES;
        let lines = text.lines().enumerate().skip(start).take(WINDOW_LINES).map(|(at, text)| SourceLine {
            number: at + 1,
            text: line(text),
            is_wrong: wrong.contains(&(at + 1)),
        });
        Self {
            lines: lines.collect(),
            all,
            previous: (start > 0).then(|| start + 1 - WINDOW_LINES),
            next: (start + WINDOW_LINES < all).then_some(start + WINDOW_LINES + 1),
        }
    }
}

/// Returns a line for display: without its end, invisible characters escaped, and cut.
pub(super) fn line(text: &str) -> String {
    let text = text.trim_end_matches(['\n', '\r']);
    let (text, end) = match text.char_indices().nth(MAX_LINE_CHARS) {
        Some((at, _)) => (&text[..at], "…"),
        None => (text, ""),
    };
    tidegate::admin::visible(&text.replace('\t', "    ")).into_owned() + end
}

#[cfg(test)]
mod tests {
    use tidegate::Limiter;
    use tidegate_rules::Loader;

    use super::*;

    #[test]
    fn file_beyond_the_listed_ones_is_shown() {
        let text = |file| {
            let limit = "{ unit: day, requests_per_unit: 1 }";
            format!("{{ domain: d{file}, descriptors: [{{ key: user, rate_limit: {limit} }}] }}")
        };
        let files: Vec<_> = (0..=MAX_FILES).map(|file| (format!("{file}.yaml"), text(file))).collect();
        let files = files.iter().map(|(name, text)| (&**name, &**text));
        let rules = Loader::new().parse(files).unwrap().bind(&Limiter::in_memory());
        let page = RulesPage::new(Frame::default(), &rules, None, MAX_FILES, 1);
        assert_eq!((page.files.len(), page.window.all), (MAX_FILES, 1));
        let page = page.render().unwrap();
        assert!(page.contains(&format!("domain: d{MAX_FILES},")), "{page}");
    }

    #[test]
    fn window_contains_the_line_and_knows_its_neighbors() {
        let text: String = (1..=1_000).map(|number| format!("line {number}\n")).collect();
        let window = Window::around(&text, 401, &[402]);
        assert_eq!((window.lines[0].number, &*window.lines[0].text, window.all), (401, "line 401", 1_000));
        assert_eq!((window.previous, window.next), (Some(1), Some(801)));
        assert_eq!(
            window.lines.iter().filter(|line| line.is_wrong).map(|line| line.number).collect::<Vec<_>>(),
            [402]
        );
        for line in [0, 1, 400] {
            assert_eq!(Window::around(&text, line, &[]).lines[0].number, 1);
        }
        assert_eq!(Window::around(&text, usize::MAX, &[]).lines[0].number, 801);
        assert_eq!(Window::around("", 5, &[]).lines.len(), 0);
    }

    #[test]
    fn line_is_cut_and_shows_invisible_characters() {
        assert_eq!(line("a\tb\u{202e}\r\n"), "a    b\\u{202e}");
        assert_eq!(line(&"x".repeat(300)).chars().count(), MAX_LINE_CHARS + 1);
    }
}
