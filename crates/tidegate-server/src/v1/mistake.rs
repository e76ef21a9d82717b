//! Describes mistakes in a body, with the name that was probably meant.

use serde_path_to_error::Error;
use tidegate_rules::similar_name;

/// Returns the place and the cause of a mistake, with a hint if a name is similar to a known one.
pub(super) fn describe(error: &Error<serde_json::Error>) -> String {
    let cause = error.inner().to_string();
    let path = error.path().to_string();
    let place = if path == "." || path == "?" { String::new() } else { format!("`{path}`: ") };
    format!("{place}{}{}", in_json_terms(&cause, &path), hint(&cause, &path))
}

/// Returns what to write instead, if that is known.
fn hint(cause: &str, path: &str) -> String {
    let form = match path.rsplit(['.', ']']).next().unwrap_or_default() {
        "quota" if cause.starts_with("invalid type: string") => {
            r#"{"requests_per_unit": 100, "unit": "minute"}"#
        }
        _ if cause.starts_with("key must be a string") => return "; JSON needs double quotes".to_owned(),
        _ if cause.contains(", expected one of `entries`, `hits`, `tier`") && !cause.contains("`hit`") => {
            r#"{"entries": [{"key": "user", "value": "bob"}]}"#
        }
        _ => return misspelled(cause).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default(),
    };
    format!("; write such as {form}")
}

/// Returns a message of serde with the types of JSON instead of those of Rust, and with the unit of a number.
fn in_json_terms(cause: &str, path: &str) -> String {
    // The message can quote any text of the body before this.
    let Some((found, rest)) = cause.rsplit_once(", expected ") else { return cause.to_owned() };
    let (expected, place) = rest.split_at(rest.find(" at line ").unwrap_or(rest.len()));
    let expected = match expected {
        "u64" => {
            let number = found.split('`').nth(1).and_then(|number| number.parse::<f64>().ok());
            let is_too_large = number.is_some_and(|number| number >= u64::MAX as f64);
            let to = if is_too_large { " to 18446744073709551615" } else { "" };
            format!("a whole number{} from 0{to}", unit(path))
        }
        "a sequence" => "an array".to_owned(),
        expected if expected.starts_with("struct ") => "an object".to_owned(),
        expected => expected.to_owned(),
    };
    let names = [("sequence", "array"), ("map", "object"), ("floating point", "number")];
    let renamed = names.iter().find_map(|(of_serde, of_json)| {
        let rest = found.strip_prefix("invalid type: ")?.strip_prefix(of_serde)?;
        Some(format!("invalid type: {of_json}{rest}"))
    });
    let found = renamed.unwrap_or_else(|| found.to_owned());
    format!("{found}, expected {expected}{place}")
}

/// Returns the unit of the number at a path such as `checks[0].cost`, with a preposition.
fn unit(path: &str) -> &'static str {
    let name = path.rsplit('.').next().unwrap_or_default().split('[').next().unwrap_or_default();
    match name {
        "cost" | "actuals" | "requests_per_unit" | "burst" | "in_flight" => " of units",
        "hits" => " of requests",
        name if name.ends_with("_ms") => " of milliseconds",
        name if name.ends_with("_us") => " of microseconds",
        _ => "",
    }
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
    similar_name(unknown, known.split('`').skip(1).step_by(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_rust_are_not_shown() {
        for (cause, path, expected) in [
            (
                "invalid type: map, expected u64 at line 1",
                "cost",
                "invalid type: object, expected a whole number of units from 0 at line 1",
            ),
            (
                "invalid type: string \"60s\", expected u64",
                "ttl_ms",
                "invalid type: string \"60s\", expected a whole number of milliseconds from 0",
            ),
            (
                "invalid type: floating point `1.5`, expected u64",
                "checks[0].cost",
                "invalid type: number `1.5`, expected a whole number of units from 0",
            ),
            (
                "invalid value: integer `-1`, expected u64",
                "actuals[1]",
                "invalid value: integer `-1`, expected a whole number of units from 0",
            ),
            (
                "invalid type: sequence, expected struct GateCheck",
                "checks[0]",
                "invalid type: array, expected an object",
            ),
            (
                "invalid type: floating point `1e+30`, expected u64 at line 1",
                "descriptors[0].hits",
                "invalid type: number `1e+30`, expected a whole number of requests from 0 to 18446744073709551615 at line 1",
            ),
            ("invalid type: null, expected a sequence", "checks", "invalid type: null, expected an array"),
            (
                "invalid type: string \", expected u64\", expected a boolean",
                "x",
                "invalid type: string \", expected u64\", expected a boolean",
            ),
            ("missing field `key`", ".", "missing field `key`"),
        ] {
            assert_eq!(in_json_terms(cause, path), expected);
        }
    }

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
