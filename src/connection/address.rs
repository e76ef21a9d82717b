//! Addresses of servers as errors and warnings name them: without user, password and options.

use redis::{ConnectionAddr, ConnectionInfo};

use crate::error::redact::RedactedUrl;

/// The number of addresses that a text names.
const MAX_NAMED: usize = 3;

/// Returns the URL of a server without its user, password and options.
pub(super) fn of_server(info: &ConnectionInfo) -> String {
    let at = |host: &str, port: u16| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    match info.addr() {
        ConnectionAddr::Tcp(host, port) => format!("redis://{}", at(host, *port)),
        ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{}", at(host, *port)),
        // A percent-encoded `?` puts the password into the path.
        ConnectionAddr::Unix(path) => RedactedUrl::new(&format!("unix://{}", path.display())).to_string(),
        _ => "the server of the URL".to_owned(),
    }
}

/// Joins the first addresses of a list.
pub(super) fn join<'a>(servers: impl ExactSizeIterator<Item = &'a ConnectionInfo>) -> String {
    let others = servers.len().saturating_sub(MAX_NAMED);
    let named = servers.take(MAX_NAMED).map(of_server).collect::<Vec<_>>().join(", ");
    if others == 0 { named } else { format!("{named} and {others} more") }
}
