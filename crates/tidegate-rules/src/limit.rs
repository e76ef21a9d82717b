//! The number of requests that a rule, or a descriptor of its own, admits.

use std::time::Duration;

use tidegate::{Error, Quota};

/// The number of requests that a rule admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Every request.
    Unlimited,
    /// No request. The duration is the retry time to report: one window.
    DenyAll(Duration),
    /// As many as this quota.
    Quota(Quota),
}

impl Limit {
    /// Returns the quota; `None` for a limit that admits or denies everything.
    #[must_use]
    pub const fn quota(self) -> Option<Quota> {
        match self {
            Self::Quota(quota) => Some(quota),
            Self::Unlimited | Self::DenyAll(_) => None,
        }
    }

    /// Returns the limit that a file's `requests_per_unit` means: a fixed window by the server's clock; 0
    /// requests deny everything.
    pub(super) fn per_window(requests: u64, window: Duration) -> Result<Self, Error> {
        // Also checks the window of a limit that denies everything.
        let quota =
            Quota::try_fixed_window(requests.max(1), window)?.try_aligned_to_clock_at(Duration::ZERO)?;
        Ok(if requests == 0 { Self::DenyAll(window) } else { Self::Quota(quota) })
    }
}
