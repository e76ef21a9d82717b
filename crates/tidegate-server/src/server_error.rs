//! The error of the server as a whole.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// The error of a server that could not start or go on.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A port cannot be opened at its address.
    #[error("cannot open the {port} port at {address}: {}", Reason(.error))]
    #[non_exhaustive]
    Listen {
        /// The port.
        port: PortName,
        /// Its address in the settings.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        error: io::Error,
    },
    /// The admin port would be open to other machines without tokens.
    #[error(
        "the admin port at {0} would be open to other machines without a token: give it tokens (--admin-tokens FILE), \
         or an address of this machine only, such as 127.0.0.1:8082"
    )]
    AdminNeedsTokens(SocketAddr),
    /// A name of the admin port can never be the host of a request.
    #[error(
        "no browser can reach the admin port by the name `{}`: give the host alone, without scheme, port and path, such as \
         limits.example (--admin-host)",
        .0.escape_debug()
    )]
    AdminHost(String),
    /// The reflection service could not be made.
    #[error("the reflection service failed: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// The message: it is what the standard library prints of an error that `main` returns.
impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A port of the server. `Display` shows its name in messages: `gRPC`, `HTTP` or `admin`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortName {
    /// The port for Envoy's protocol.
    Grpc,
    /// The port for JSON.
    Http,
    /// The port for operators.
    Admin,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grpc => "gRPC",
            Self::Http => "HTTP",
            Self::Admin => "admin",
        })
    }
}

/// The reason why a port cannot be opened, and what to do.
struct Reason<'e>(&'e io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::AddrInUse => f.write_str("the address is in use; choose another"),
            io::ErrorKind::AddrNotAvailable => {
                f.write_str("this machine does not have the address; choose one of its own, or 0.0.0.0 for all")
            }
            io::ErrorKind::PermissionDenied => f.write_str(
                "the operating system denies it; choose a port from 1024, or give this process CAP_NET_BIND_SERVICE",
            ),
            _ => write!(f, "{}; choose another address", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_its_address_and_what_to_do_are_in_the_message() {
        for (port, kind, expected) in [
            (PortName::Grpc, io::ErrorKind::AddrInUse, "gRPC port at 0.0.0.0:80: the address is in use"),
            (
                PortName::Http,
                io::ErrorKind::AddrNotAvailable,
                "HTTP port at 0.0.0.0:80: this machine does not have",
            ),
            (
                PortName::Admin,
                io::ErrorKind::PermissionDenied,
                "admin port at 0.0.0.0:80: the operating system denies",
            ),
            (PortName::Http, io::ErrorKind::Other, "choose another address"),
        ] {
            let address = SocketAddr::from(([0; 4], 80));
            let error = ServerError::Listen { port, address, error: kind.into() }.to_string();
            assert!(error.contains(expected) && error.contains("; choose "), "{error}");
        }
    }
}
