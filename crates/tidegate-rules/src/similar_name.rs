//! Finds the name that a misspelled one probably means.

/// The maximum length of a name that is compared, in bytes: the time is the product of both lengths.
const MAX_COMPARED_BYTES: usize = 64;
/// The maximum number of names that are compared. Only the names of rules can be more.
const MAX_COMPARED_NAMES: usize = 1_000;

/// Returns the known name that is most similar to `word`, if it is similar enough to suggest it in a message. Upper and
/// lower case are alike.
///
/// ```
/// assert_eq!(tidegate_rules::similar_name("Minuet", ["hour", "minute"]), Some("minute"));
/// assert_eq!(tidegate_rules::similar_name("year", ["hour", "minute"]), None);
/// ```
pub fn similar_name<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    let known = known.into_iter().take(MAX_COMPARED_NAMES).filter(|name| name.len() <= MAX_COMPARED_BYTES);
    let near = known.map(|name| (strsim::damerau_levenshtein(&word, &name.to_lowercase()), name));
    let (distance, name) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.len() / 4).then_some(name)
}
