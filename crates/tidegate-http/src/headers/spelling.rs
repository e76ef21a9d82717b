//! The names of the fields `RateLimit-Policy` and `RateLimit` and of their parameters.

/// The names that a draft gives to fields and parameters. Each draft is one constant, so that a draft that only renames
/// them needs no other change.
pub(super) struct Spelling {
    /// The field that lists the policies, in lower case.
    pub(super) policy_field: &'static str,
    /// The field that lists the current limits, in lower case.
    pub(super) limit_field: &'static str,
    /// Of a policy: its units per window.
    pub(super) quota: &'static str,
    /// Of a policy: the name of its unit, if it is not the default.
    pub(super) unit: &'static str,
    /// Of a policy: its window in seconds.
    pub(super) window: &'static str,
    /// Of a limit: the units that remain.
    pub(super) remaining: &'static str,
    /// Of a limit: the seconds until it is available again.
    pub(super) reset: &'static str,
    /// Of both: the partition that the units belong to.
    pub(super) partition_key: &'static str,
}

pub(super) const DRAFT_11: Spelling = Spelling {
    policy_field: "ratelimit-policy",
    limit_field: "ratelimit",
    quota: "q",
    unit: "qu",
    window: "w",
    remaining: "r",
    reset: "t",
    partition_key: "pk",
};
