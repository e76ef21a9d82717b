//! Extractors of the layer's decision for axum handlers.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::StatusCode;
use http::request::Parts;

use crate::decision::{AllDecision, Decision};

type Missing = (StatusCode, &'static str);

const MISSING: Missing = (
    StatusCode::INTERNAL_SERVER_ERROR,
    "no rate limit decision for this request: check that the RateLimitLayer has a rule for it",
);

macro_rules! extractor {
    ($decision:ty) => {
        /// Extracts the decision of [`RateLimitLayer`](crate::http::RateLimitLayer). An `Option` also accepts
        /// requests without a decision.
        impl<S: Sync> FromRequestParts<S> for $decision {
            type Rejection = Missing;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Missing> {
                parts.extensions.get::<Self>().cloned().ok_or(MISSING)
            }
        }

        impl<S: Sync> OptionalFromRequestParts<S> for $decision {
            type Rejection = std::convert::Infallible;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
                Ok(parts.extensions.get::<Self>().cloned())
            }
        }
    };
}

extractor!(Decision);
extractor!(AllDecision);
#[cfg(feature = "rules")]
extractor!(crate::rules::RulesDecision);
