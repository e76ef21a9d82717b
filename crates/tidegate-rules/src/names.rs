//! Texts that list the known names beside an unknown one.

use super::fields::closest;
use super::tree::Level;

/// The maximum number of keys or values that a message lists.
const MAX_NAMED: usize = 8;

/// Returns why no branch of the level matches an entry.
pub(super) fn no_match(level: &Level, key: &str, value: &str) -> String {
    let keys = level.keys();
    if keys.is_empty() {
        return format!("no match for the key `{key}`: no rule continues at this level");
    }
    if !keys.contains(&key) {
        return format!("no match for the key `{key}`{}", available(key, &keys));
    }
    let values = level.values(key);
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    format!("no match for the value `{value}` of `{key}`{}", available(value, &values))
}

/// Returns the known names and the one that is similar to `wanted`.
pub(super) fn available(wanted: &str, known: &[&str]) -> String {
    let near = closest(wanted, known.iter().copied());
    let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    format!("; available: {}{near}", listed(known))
}

/// Returns the first names, and the number of the others.
pub(super) fn listed(names: &[&str]) -> String {
    let named: Vec<String> = names.iter().take(MAX_NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(MAX_NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
