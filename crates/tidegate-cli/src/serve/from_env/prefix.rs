//! Maps a prefix of keys to a namespace.

use std::fmt::Write as _;

/// The maximum length of a namespace.
const MAX_BYTES: usize = 64;

/// Returns the namespace of a prefix: the prefix itself if it is a namespace, else with `..` and two hexadecimal digits in
/// place of each byte that a namespace cannot have: `edge:` becomes `edge..3a`. `None` if it is too long.
///
/// Different prefixes have different namespaces: a dot before an escape or another dot is escaped, too, so `..` always
/// begins an escape.
pub(super) fn namespace(prefix: &str) -> Option<String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let mut namespace = String::new();
    for (at, byte) in prefix.bytes().enumerate() {
        let next = prefix.as_bytes().get(at + 1);
        let is_escape_next = next.is_some_and(|next| *next == b'.' || !is_allowed(*next));
        // Writing to a String cannot fail.
        let _ = match is_allowed(byte) && !(byte == b'.' && is_escape_next) {
            true => write!(namespace, "{}", char::from(byte)),
            false => write!(namespace, "..{byte:02x}"),
        };
    }
    (namespace.len() <= MAX_BYTES).then_some(namespace)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn prefix_that_is_a_namespace_stays_as_it_is() {
        for prefix in ["edge", "Edge_1.a-b", ".", "a."] {
            assert_eq!(namespace(prefix).as_deref(), Some(prefix));
        }
        assert_eq!(namespace("edge:").as_deref(), Some("edge..3a"));
        assert_eq!(namespace("ä").as_deref(), Some("..c3..a4"));
        assert_eq!(namespace(&"x".repeat(65)), None);
        assert_eq!(namespace(&":".repeat(17)), None);
    }

    #[test]
    fn different_prefixes_have_different_namespaces() {
        const LETTERS: [&str; 6] = [".", ":", "3", "a", "2", "e"];
        let mut texts = vec![String::new()];
        let mut seen = HashMap::new();
        for _ in 0..6 {
            texts = texts.iter().flat_map(|text| LETTERS.map(|letter| format!("{text}{letter}"))).collect();
            for text in &texts {
                let namespace = namespace(text).unwrap();
                assert!(namespace.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.'));
                let other = seen.insert(namespace.clone(), text.clone());
                assert_eq!(other, None, "{text} and {namespace}");
            }
        }
    }
}
