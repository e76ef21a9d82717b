//! Recognizes values that were probably meant as regular expressions, which rule files do not have.

/// The maximum length of a value that is examined: a class or an alternative is searched from each bracket.
const MAX_EXAMINED_BYTES: usize = 256;

/// Returns whether a value looks like a regular expression: anchors, `.*` at the start of a part, character
/// classes, escapes or alternatives. The path template `/users/{id}` and the address `[::1]:80` do not, nor does
/// a long value.
pub(super) fn is_regex_like(value: &str) -> bool {
    if value.len() > MAX_EXAMINED_BYTES {
        return false;
    }
    value.starts_with('^')
        || (value.ends_with('$') && value.len() > 1)
        || has_any_text(value)
        || has_class(value)
        || has_escape(value)
        || has_alternatives(value)
}

/// Returns the value in the syntax of rule files, if only its anchors and `.*` had to be replaced.
pub(super) fn as_wildcard(value: &str) -> Option<String> {
    let value = value.strip_prefix('^').unwrap_or(value);
    let value = value.strip_suffix('$').unwrap_or(value);
    let value = value.replace(".*", "*").replace(".+", "*").replace("\\.", ".").replace("\\/", "/");
    let is_plain = !value.contains(['^', '$', '[', ']', '(', ')', '|', '\\', '+', '?']);
    (is_plain && !value.is_empty() && !value.contains("**")).then_some(value)
}

/// Returns the first parameter of a route such as `/users/{id}` or `/users/:id`, and the route with `*` for each of them.
pub(super) fn route_parameter(value: &str) -> Option<(&str, String)> {
    let is_parameter = |part: &&str| match part.strip_prefix(':') {
        Some(name) => name.starts_with(|first: char| first.is_alphabetic()),
        None => part.len() > 2 && part.starts_with('{') && part.ends_with('}'),
    };
    let route = value.strip_prefix('/').filter(|_| value.len() <= MAX_EXAMINED_BYTES)?;
    let first = route.split('/').find(is_parameter)?;
    let parts: Vec<&str> =
        value.split('/').map(|part| if is_parameter(&part) { "*" } else { part }).collect();
    Some((first, parts.join("/")))
}

/// `.*` or `.+` after a separator. After a letter it can be a literal dot, as in `com.example.*`.
fn has_any_text(value: &str) -> bool {
    [".*", ".+"].iter().any(|any| {
        value.match_indices(any).any(|(at, _)| {
            value[..at].chars().next_back().is_none_or(|before| matches!(before, '/' | ')' | '^' | '-' | '_'))
        })
    })
}

/// `[a-z]`, `[^/]`, or brackets with a repetition: `[abc]+`.
fn has_class(value: &str) -> bool {
    value.match_indices('[').any(|(at, _)| {
        let Some((inner, after)) = value[at + 1..].split_once(']') else { return false };
        let is_range = inner
            .as_bytes()
            .windows(3)
            .any(|three| three[1] == b'-' && [0, 2].iter().all(|&at| three[at].is_ascii_alphanumeric()));
        inner.starts_with('^') || (is_range && inner.len() <= 16) || after.starts_with(['+', '*', '?', '{'])
    })
}

/// `\d`, `\w`, `\.` and others.
fn has_escape(value: &str) -> bool {
    value.match_indices('\\').any(|(at, _)| {
        value[at + 1..].starts_with(['d', 'D', 'w', 'W', 's', 'S', 'b', 'B', '.', '/', '-', '?', '+', '*'])
    })
}

/// `(a|b)`, `(?i)`.
fn has_alternatives(value: &str) -> bool {
    value.match_indices('(').any(|(at, _)| {
        let inner = &value[at + 1..];
        inner.starts_with('?') || inner.split_once(')').is_some_and(|(inner, _)| inner.contains('|'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_are_recognized_and_plain_values_are_not() {
        for value in [
            "^/api/.*$",
            "^login",
            "login$",
            "/api/.*",
            ".*\\.php",
            ".+",
            "[a-z]+",
            "[abc]+",
            "/v[0-9]/x",
            "/users/[^/]*",
            "\\d+",
            "a\\.b",
            "(a|b)",
            "/(login|signup)",
            "(?i)login",
        ] {
            assert!(is_regex_like(value), "{value}");
        }
        for value in [
            "",
            "*",
            "/api/*/action",
            "*.example.com",
            "com.example.*",
            "a*b*c",
            "/users/{id}",
            "[::1]:8080",
            "/docs/[slug]",
            "$",
            "a+b",
            "a|b",
            "f(x)",
            "what?",
            "C:\\temp",
            "$5",
            "Mozilla/5.0 (X11; Linux)",
            "price^2",
        ] {
            assert!(!is_regex_like(value), "{value}");
        }
    }

    #[test]
    fn parameter_of_a_route_is_recognized() {
        for (value, part, wildcard) in
            [("/users/{id}", "{id}", "/users/*"), ("/users/:id/posts/:post", ":id", "/users/*/posts/*")]
        {
            assert_eq!(route_parameter(value), Some((part, wildcard.to_owned())));
        }
        for value in ["/users/*", "{id}", "/a/{}", "/a:b", "/:8080", "/a{b}", ""] {
            assert_eq!(route_parameter(value), None, "{value}");
        }
    }

    #[test]
    fn suggestion_replaces_anchors_and_any_text() {
        assert_eq!(as_wildcard("^/api/.*$").as_deref(), Some("/api/*"));
        assert_eq!(as_wildcard("^/api/.*/x$").as_deref(), Some("/api/*/x"));
        assert_eq!(as_wildcard("^login$").as_deref(), Some("login"));
        assert_eq!(as_wildcard(".*\\.php").as_deref(), Some("*.php"));
        for value in ["[a-z]+", "(a|b)", "\\d+", "^$"] {
            assert_eq!(as_wildcard(value), None, "{value}");
        }
    }
}
