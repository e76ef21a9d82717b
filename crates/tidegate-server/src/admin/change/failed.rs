//! The reasons why a change is not made.

use http::StatusCode;
use tidegate::Error;

use crate::admin::problem::Problem;

/// Why a change was not made.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nothing was tried.
    Before(Problem),
    /// The limiter failed, possibly after a part of the change.
    Limiter(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Limiter(error)
    }
}

impl Failed {
    pub(super) fn no_effect(text: impl Into<String>) -> Self {
        Self::Before(Problem::new(StatusCode::CONFLICT, text))
    }

    pub(super) fn problem(self) -> Problem {
        match self {
            Self::Before(problem) => problem,
            Self::Limiter(error) => problem(&error),
        }
    }
}

pub(super) fn problem(error: &Error) -> Problem {
    let status = match () {
        () if error.is_config() => StatusCode::BAD_REQUEST,
        () if error.is_corrupt_state() => StatusCode::CONFLICT,
        () => StatusCode::SERVICE_UNAVAILABLE,
    };
    Problem::new(status, error.to_string())
}
