//! Requests that lack the key of a rule.

/// The key of requests without a key. No header, path or address can equal it.
pub(super) const NO_KEY: &[u8] = b"\0no key";

/// How the layer handles a request that lacks the key of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingKey {
    /// Rejects the request with 400.
    #[default]
    Reject,
    /// Lets all such requests share one key, and so one limit.
    Share,
    /// Skips the rule. A client that can omit the key then bypasses this rule's limit.
    Skip,
}
