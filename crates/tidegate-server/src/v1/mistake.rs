//! Describes mistakes in a body, with the name that was probably meant.

use serde_path_to_error::Error;

/// The longest name that is compared with the known ones.
const MAX_NAME_BYTES: usize = 64;

/// Returns the place and the cause of a mistake, with a hint if a name is similar to a known one.
pub(super) fn describe(error: &Error<serde_json::Error>) -> String {
    let cause = error.inner().to_string();
    let path = error.path().to_string();
    let place = if path == "." || path == "?" { String::new() } else { format!("`{path}`: ") };
    let hint = misspelled(&cause).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    format!("{place}{cause}{hint}")
}

/// Returns the known name that is similar to the unknown one of a message of serde: "unknown field `a`, expected one of
/// `b`, `c`".
fn misspelled(message: &str) -> Option<&str> {
    if !message.starts_with("unknown ") {
        return None;
    }
    // The unknown name can contain anything, so the known ones are read from the end.
    let (before, known) = message.rsplit_once(", expected ")?;
    let unknown = before.split_once('`')?.1.strip_suffix('`')?;
    closest(unknown, known.split('`').skip(1).step_by(2))
}

/// Returns the known name that is similar to another name.
pub(super) fn closest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    let (distance, known) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + known.len() / 4).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_suggested() {
        for (message, expected) in [
            (
                "unknown field `desciptors`, expected one of `domain`, `descriptors` at line 1 column 9",
                "descriptors",
            ),
            ("unknown field `Key`, expected `key` or `value`", "key"),
            ("unknown variant `backs`, expected `keep` or `back`", "back"),
            ("unknown field ``, expected `x`", "x"),
        ] {
            assert_eq!(misspelled(message), Some(expected), "{message}");
        }
        for message in
            ["unknown field `other`, expected one of `domain`, `gate`", "missing field `key`", "unknown "]
        {
            assert_eq!(misspelled(message), None, "{message}");
        }
        let long = format!("unknown field `{}`, expected `key`", "k".repeat(100_000));
        assert_eq!(misspelled(&long), None);
    }
}
