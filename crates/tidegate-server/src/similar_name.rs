//! Finds the name that a misspelled one probably means.

/// The longest name that is compared with the known ones.
const MAX_NAME_BYTES: usize = 64;

/// Returns the known name that is similar to another name.
pub(crate) fn closest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let near = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    let (distance, known) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + known.len() / 4).then_some(known)
}
