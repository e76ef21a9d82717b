//! The difference of two texts by lines, in bounded time and size.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

/// The unchanged lines around a change.
const CONTEXT: usize = 3;
/// The maximum lines of a difference.
const MAX_LINES: usize = 500;
/// After this time, the difference is an approximation: it can show more lines as changed.
const TIMEOUT: Duration = Duration::from_millis(200);

/// A line of a difference.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) kind: Kind,
    /// The number in the old text, or in the new one for added lines; counted from 1.
    pub(super) number: usize,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Same,
    Added,
    Removed,
    /// Lines are left out here.
    Gap,
}

impl Kind {
    pub(super) const fn class(self) -> &'static str {
        match self {
            Self::Same => "",
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Gap => "gap",
        }
    }

    /// Returns the mark that repeats the color in a character.
    pub(super) const fn mark(self) -> &'static str {
        match self {
            Self::Same => " ",
            Self::Added => "+",
            Self::Removed => "-",
            Self::Gap => "…",
        }
    }
}

/// Returns the changed lines with those around them, and whether lines are left out at the end.
pub(super) fn lines(old: &str, new: &str) -> (Vec<Line>, bool) {
    let diff = TextDiff::configure().timeout(TIMEOUT).diff_lines(old, new);
    let mut lines = Vec::new();
    for (index, group) in diff.grouped_ops(CONTEXT).into_iter().enumerate() {
        if index > 0 {
            lines.push(Line { kind: Kind::Gap, number: 0, text: String::new() });
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            if lines.len() >= MAX_LINES {
                return (lines, true);
            }
            let (kind, at) = match change.tag() {
                ChangeTag::Equal => (Kind::Same, change.old_index()),
                ChangeTag::Delete => (Kind::Removed, change.old_index()),
                ChangeTag::Insert => (Kind::Added, change.new_index()),
            };
            let text = super::source::line(change.value());
            lines.push(Line { kind, number: at.map_or(0, |at| at + 1), text });
        }
    }
    (lines, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_have_their_numbers_and_neighbors() {
        let (found, is_cut) = lines("a\nb\nc\n", "a\nB\nc\n");
        let found: Vec<_> = found.iter().map(|line| (line.kind.mark(), line.number, &*line.text)).collect();
        assert_eq!(found, [(" ", 1, "a"), ("-", 2, "b"), ("+", 2, "B"), (" ", 3, "c")]);
        assert!(!is_cut);
        assert_eq!(lines("a", "a").0, []);
    }

    #[test]
    fn difference_of_long_texts_is_bounded() {
        let long = |word: &str| (0..100_000).map(|line| format!("{word} {line}\n")).collect::<String>();
        let (found, is_cut) = lines(&long("a"), &long("b"));
        assert_eq!((found.len(), is_cut), (MAX_LINES, true));
    }
}
