//! The error of the server as a whole.

use std::io;
use std::net::SocketAddr;

/// The error of a server that could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The admin port would be open to other machines without tokens.
    #[error(
        "the admin port at {0} would be open to other machines without a token: give it tokens (--admin-tokens FILE), \
         or an address of this machine only, such as 127.0.0.1:8082"
    )]
    AdminNeedsTokens(SocketAddr),
    /// The reflection service could not be made.
    #[error("the reflection service failed: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}
