//! Reads the bodies of HTTP requests, within a size and a time.

use std::error::Error;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use http_body_util::LengthLimitError;
use tokio::time::timeout;

/// The maximum time in which a client sends the head of a request, and then the body.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why a body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body did not end within {READ_TIMEOUT:?}")]
    TimedOut,
    #[error("the body has more than {0} bytes: send less in one request, or raise --max-message")]
    TooLarge(usize),
    #[error("cannot read the body: {0}")]
    Unreadable(axum::Error),
}

pub(crate) async fn read(body: Body, max_bytes: usize) -> Result<Bytes, BodyError> {
    let body = timeout(READ_TIMEOUT, to_bytes(body, max_bytes)).await.map_err(|_| BodyError::TimedOut)?;
    body.map_err(|error| match error.source().is_some_and(|source| source.is::<LengthLimitError>()) {
        true => BodyError::TooLarge(max_bytes),
        false => BodyError::Unreadable(error),
    })
}
