//! The layer's decision, for handlers of axum.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::StatusCode;
use http::request::Parts;

use crate::decision::{AllDecision, Decision};

type Missing = (StatusCode, &'static str);

const MISSING: Missing =
    (StatusCode::INTERNAL_SERVER_ERROR, "this request was not asked for at any gate: see the layer's rules");

macro_rules! extractor {
    ($decision:ty) => {
        /// What [`RateLimitLayer`](crate::http::RateLimitLayer) decided; as an `Option` also where it did not ask.
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
extractor!(crate::rules::Ruling);
