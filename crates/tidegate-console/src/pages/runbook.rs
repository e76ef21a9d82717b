//! The sections of the runbook as HTML. The text is a part of this program, not of its input.

use std::sync::LazyLock;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

/// A copy of `docs/operate/runbook.md`, because a package contains only its own files. A test compares the two.
pub(super) const TEXT: &str = include_str!("../../docs/runbook.md");

/// A section: the name of its alert, and its text as HTML.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) alert: &'static str,
    pub(super) html: String,
}

/// Returns the sections of alerts, in their order. The page also explains the warnings of processes.
pub(super) fn sections() -> &'static [Section] {
    static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
        let sections = TEXT.split("\n## ").filter(|section| section.starts_with("Tidegate"));
        sections
            .filter_map(|section| section.split_once('\n'))
            .map(|(alert, text)| Section { alert, html: html(text) })
            .collect()
    });
    &SECTIONS
}

/// Renders the text. A link to the section of an alert stays; of another one, its path is shown.
fn html(markdown: &str) -> String {
    let mut paths = Vec::new();
    let events = Parser::new_ext(markdown, Options::ENABLE_TABLES).filter_map(move |event| match event {
        Event::Start(Tag::Link { ref dest_url, .. }) if !dest_url.starts_with("#tidegate") => {
            let path = match dest_url.strip_prefix("../") {
                Some(rest) => format!(" (docs/{rest})"),
                None if dest_url.starts_with('#') => format!(" (docs/operate/runbook.md{dest_url})"),
                None => format!(" (docs/operate/{dest_url})"),
            };
            paths.push(Some(path));
            None
        }
        Event::Start(Tag::Link { .. }) => {
            paths.push(None);
            Some(event)
        }
        Event::End(TagEnd::Link) => match paths.pop().flatten() {
            Some(path) => Some(Event::Text(path.into())),
            None => Some(event),
        },
        Event::Html(_) | Event::InlineHtml(_) => None,
        other => Some(other),
    });
    let mut out = String::new();
    html::push_html(&mut out, events);
    // For screen readers.
    out.replace("<th>", "<th scope=\"col\">")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_of_the_runbook_equals_the_page() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/runbook.md");
        assert_eq!(
            std::fs::read_to_string(page).unwrap(),
            TEXT,
            "copy docs/operate/runbook.md to docs/runbook.md"
        );
    }

    #[test]
    fn sections_have_no_link_that_leaves_the_page() {
        assert!(sections().len() >= 12, "{}", sections().len());
        for Section { alert, html } in sections() {
            let links = html.split("href=\"").skip(1);
            for link in links {
                let target = link.split_once('"').unwrap().0;
                let is_section = |section: &Section| target == format!("#{}", section.alert.to_lowercase());
                assert!(sections().iter().any(is_section), "{alert}: {target}");
            }
            assert!(alert.starts_with("Tidegate") && html.contains("<strong>It means</strong>"), "{alert}");
        }
    }
}
