//! What a node says of a slot that is not its own.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Host and port.
pub(super) type Address = (String, u16);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot is that node's.
    Moved(Address),
    /// It is moving there, and what was asked for is gone already.
    Ask(Address),
}

impl Redirect {
    /// A node that names no host means the one by which it was reached itself.
    pub(super) fn of(error: &RedisError, by: &Address) -> Option<Self> {
        let (address, _) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = if host.is_empty() { &*by.0 } else { host };
        let address = (host.to_owned(), port.parse().ok()?);
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Ask) => Some(Self::Ask(address)),
            _ => Some(Self::Moved(address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_a_node_and_without_a_host_one_beside_itself() {
        let by = ("10.0.0.1".to_owned(), 6379);
        let of = |said: &str| {
            let said = redis::parse_redis_value(format!("-{said}\r\n").as_bytes()).unwrap();
            Redirect::of(&said.extract_error().unwrap_err(), &by)
        };
        let at = |host: &str, port| (host.to_owned(), port);
        assert_eq!(of("MOVED 3999 10.0.0.2:6381"), Some(Redirect::Moved(at("10.0.0.2", 6381))));
        assert_eq!(of("MOVED 3999 :6381"), Some(Redirect::Moved(at("10.0.0.1", 6381))));
        assert_eq!(of("ASK 3999 ::1:6381"), Some(Redirect::Ask(at("::1", 6381))));
        for said in ["MOVED 3999 10.0.0.2", "MOVED 3999 10.0.0.2:none", "MOVED", "ERR 1 10.0.0.2:6381"] {
            assert_eq!(of(said), None, "{said}");
        }
    }
}
