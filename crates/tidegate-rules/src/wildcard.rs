//! Values with `*`.

use memchr::memmem::Finder;

/// The maximum number of `*` in one value: to search the text between two of them takes 320 bytes of memory.
pub(super) const MAX_STARS: usize = 16;

/// A value with at least one `*`. Each `*` matches any bytes, also none and also `/`.
#[derive(Clone, Debug)]
pub(super) struct Wildcard {
    text: Box<str>,
    /// The lengths of the text before the first `*` and of the text after the last one.
    ends: (usize, usize),
    /// The number of bytes that are not `*`.
    literal_bytes: usize,
    /// The texts between two `*`.
    middle: Box<[Finder<'static>]>,
}

impl Wildcard {
    /// Returns `None` if the value has no `*`.
    pub(super) fn new(text: &str) -> Option<Self> {
        let (prefix, rest) = text.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|part| !part.is_empty());
        Some(Self {
            text: text.into(),
            ends: (prefix.len(), suffix.len()),
            literal_bytes: text.len() - text.matches('*').count(),
            middle: middle.map(|part| Finder::new(part).into_owned()).collect(),
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text before the first `*` and the text after the last one.
    pub(super) fn ends(&self) -> (&[u8], &[u8]) {
        let (text, (prefix, suffix)) = (self.text.as_bytes(), self.ends);
        (&text[..prefix], &text[text.len() - suffix..])
    }

    /// Returns the number of bytes that are not `*`.
    pub(super) const fn literal_bytes(&self) -> usize {
        self.literal_bytes
    }

    /// Returns whether the value matches, in time linear in its length: the leftmost place of each text leaves
    /// the most room for the next, so no other place has to be tried.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let (prefix, suffix) = self.ends();
        let rest = value.strip_prefix(prefix);
        let Some(mut rest) = rest.and_then(|rest| rest.strip_suffix(suffix)) else {
            return false;
        };
        self.middle.iter().all(|part| match part.find(rest) {
            Some(at) => {
                rest = &rest[at + part.needle().len()..];
                true
            }
            None => false,
        })
    }
}

/// Two wildcards are equal if their texts are.
impl PartialEq for Wildcard {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Wildcard {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_bytes_and_none() {
        for (pattern, matching, others) in [
            ("bar*b", vec!["barb", "barab", "bar/1/b", "barbb"], vec!["bar", "ba", "barba", "xbarb", ""]),
            ("foo*bar*baz", vec!["foobarbaz", "foo1bar2baz"], vec!["foo123baz", "bar456baz", "foobarba"]),
            (
                "*.example.com",
                vec![".example.com", "a.b.example.com"],
                vec!["example.com", "a.example.com.x"],
            ),
            ("a*a", vec!["aa", "aba"], vec!["a", "ab"]),
            ("*aa*aa*", vec!["aaaa", "xaayaaz"], vec!["aaa", ""]),
            ("*", vec!["", "x"], vec![]),
        ] {
            let wildcard = Wildcard::new(pattern).unwrap();
            for value in matching {
                assert!(wildcard.matches(value.as_bytes()), "{pattern} {value}");
            }
            for value in others {
                assert!(!wildcard.matches(value.as_bytes()), "{pattern} {value}");
            }
        }
        assert!(Wildcard::new("plain").is_none());
        assert!(Wildcard::new("a*b").unwrap().matches(b"a\xff\x00b"));
    }
}
