//! Lists names, and finds the one that a misspelled name probably means.

/// The maximum names in a text.
const MAX_LISTED: usize = 10;
/// The maximum length of a name that is compared, in bytes: the time is the product of both lengths.
const MAX_COMPARED_BYTES: usize = 64;
/// The maximum names that are compared.
const MAX_COMPARED_NAMES: usize = 1_000;

/// Returns the first ten names, and the number of the others.
pub fn listed<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let shown: Vec<&str> = names.clone().take(MAX_LISTED).collect();
    match names.count().saturating_sub(MAX_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns the known name that is similar to another name, if any is.
fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let word = name.to_lowercase();
    let known = known.take(MAX_COMPARED_NAMES).filter(|known| known.len() <= MAX_COMPARED_BYTES);
    let near = known.map(|known| (strsim::damerau_levenshtein(&word, &known.to_lowercase()), known));
    let (distance, known) = near.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + known.chars().count() / 4).then_some(known)
}

/// Returns `; did you mean …?` with the most similar name, or nothing if none is similar. Compares names of at most 64
/// bytes, and the first 1,000 of them.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    closest(name, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = || ["login", "api", "auth.auth_type-login"].into_iter();
        assert_eq!(did_you_mean("logn", known()), "; did you mean `login`?");
        assert_eq!(did_you_mean("Login", known()), "; did you mean `login`?");
        assert_eq!(did_you_mean("auth.auth_type_login", known()), "; did you mean `auth.auth_type-login`?");
        assert_eq!(did_you_mean("payments", known()), "");
    }

    #[test]
    fn only_short_names_and_the_first_of_many_are_compared() {
        let long = "l".repeat(MAX_COMPARED_BYTES + 1);
        assert_eq!(did_you_mean(&long, [&long[..], &long[1..]].into_iter()), "");
        assert_eq!(did_you_mean(&long[1..], [&*long].into_iter()), "");
        assert_ne!(did_you_mean(&long[1..], [&long[2..]].into_iter()), "");
        let others = std::iter::repeat_n("other", MAX_COMPARED_NAMES);
        assert_eq!(did_you_mean("logn", others.clone().chain(["login"])), "");
        assert_ne!(did_you_mean("logn", others.skip(1).chain(["login"])), "");
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..12).map(|index| format!("g{index}")).collect();
        assert!(listed(names.iter().map(String::as_str)).ends_with("g9 and 2 more"));
    }
}
