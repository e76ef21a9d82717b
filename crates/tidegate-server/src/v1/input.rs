//! Reads the body of a request.

use axum::extract::{FromRequest, Request};
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

use super::mistake;
use super::problem::Problem;
use crate::body;
use crate::http_state::HttpState;

/// The body of a request, in JSON without unknown fields.
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<HttpState> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, api: &HttpState) -> Result<Self, Problem> {
        // A page of another site can send other types from a browser without asking first.
        if !is_json(request.headers()) {
            return Err(Problem::unsupported_media_type());
        }
        let body = body::read(request.into_body(), api.max_message_bytes, &api.body_memory).await?;
        let mut json = serde_json::Deserializer::from_slice(&body);
        let parsed = serde_path_to_error::deserialize(&mut json);
        let parsed = parsed.map_err(|error| Problem::malformed(mistake::describe(&error)))?;
        json.end()
            .map_err(|error| Problem::malformed(format!("the body goes on after the object: {error}")))?;
        Ok(Self(parsed))
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = value.and_then(|value| value.split(';').next()).unwrap_or_default().trim();
    media_type.eq_ignore_ascii_case("application/json")
}
