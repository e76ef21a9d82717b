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
    #[error(transparent)]
    Limiter(#[from] Error),
}
