//! The errors of the service.

use tidegate::Error;

/// A request that was not decided. The server reports it as an error of gRPC or HTTP, and never as a response with
/// the code `UNKNOWN`, which Envoy admits.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The request does not follow the protocol.
    #[error("{0}")]
    Invalid(String),
    /// The limiter failed.
    #[error("{}", in_terms_of_the_api(.0.to_string()))]
    Limiter(#[from] Error),
}

/// Texts of the library that name items of Rust, and what they mean here.
const WORDS: [(&str, &str); 7] = [
    ("call `acquire` or `acquire_all` instead", "send the request to `/v1/acquire` instead"),
    ("call `RulesLimiter::acquire` instead of `check`", "send the request to `/v1/acquire` instead"),
    ("call `peek` to read the state", "send it to `/v1/peek` to read the state"),
    ("pass the text that `Token` displays, unchanged", "pass the `token` of the reservation, unchanged"),
    ("commit was given ", "`actuals` has "),
    ("use `Gate::reserve`, or a gate without the ban", "use `/v1/check`, or reserve a gate without the ban"),
    (
        "check for the same key, or let one sit beside the other (Check::colocate_with); in a file of rules, say `charge: each`",
        "send one request for each key, or set `charge: each` in the rule file",
    ),
];

/// Returns the text of an error without items of Rust.
pub(crate) fn in_terms_of_the_api(text: String) -> String {
    match WORDS.iter().find(|(words, _)| text.contains(words)) {
        Some((words, meaning)) => text.replacen(words, meaning, 1),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of the libraries that contain the texts.
    const SOURCES: [&str; 7] = [
        "pipeline/request.rs",
        "pipeline/acquire.rs",
        "pipeline/group.rs",
        "reserve.rs",
        "reserve/settling.rs",
        "reserve/token.rs",
        "../crates/tidegate-rules/src/limiter/decide.rs",
    ];

    #[test]
    fn texts_of_the_library_are_replaced_by_those_of_the_api() {
        // Read when the test runs, since the package of this crate lacks them.
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src");
        let sources = SOURCES.map(|path| std::fs::read_to_string(format!("{folder}/{path}")).unwrap());
        for (words, meaning) in WORDS {
            assert!(sources.iter().any(|source| source.contains(words)), "the library has no text {words:?}");
            assert_eq!(in_terms_of_the_api(format!("gate `x`: {words}!")), format!("gate `x`: {meaning}!"));
        }
        assert_eq!(in_terms_of_the_api("other".to_owned()), "other");
    }
}
