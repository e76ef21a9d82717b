//! The failure policy of a gate.

/// The failure policy: the result of a check that Redis does not answer in time.
///
/// Default: [`OnFailure::Local`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OnFailure {
    /// This process decides alone, within its share of the quota. Of I [instances](crate::Builder::instances), each
    /// has an I-th of the capacity and of the rate, or an I-th of the window's limit, rounded up.
    /// [`source`](crate::Decision::source) is `local`.
    ///
    /// It starts from the last known state. Afterwards it reconciles: it sends the units that it admitted to
    /// Redis, which charges them. So a fleet admits at most I shares more than the quota for each outage:
    /// about one limit.
    ///
    /// A cost above the share is denied, since only Redis can admit it. Its
    /// [`retry_after`](crate::Decision::retry_after) is when the whole quota would have room for it if every
    /// process had used as large a part of its share, and at least one second: Redis is probed that often.
    #[default]
    Local,
    /// Returns the error. The caller decides.
    Error,
    /// Admits the check; [`source`](crate::Decision::source) is `open`.
    Open,
    /// Denies the check, with a retry time of one second; `source` is `closed`.
    Closed,
}

impl OnFailure {
    /// Returns the decisions of the policy, for warnings. The name is that of rule files and of the service.
    pub(crate) const fn in_words(self) -> &'static str {
        match self {
            Self::Local => "each process decides within its own share of the limits (on_failure: local)",
            Self::Error => "checks return this error (on_failure: error)",
            Self::Open => "all checks are admitted (on_failure: open)",
            Self::Closed => "all checks are denied (on_failure: closed)",
        }
    }
}
