//! Redirects: the replies of a node for a slot that it does not serve.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Host and port.
pub(super) type Address = (String, u16);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// That node serves the slot.
    Moved(Address),
    /// The slot is moving to that node, and the requested keys have moved already.
    Ask(Address),
}

impl Redirect {
    /// Parses a redirect. If the reply has no host, the host by which the replying node was reached applies.
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
    fn a_redirect_without_a_host_means_the_host_of_the_replying_node() {
        let by = ("10.0.0.1".to_owned(), 6379);
        let redirect = |reply: &str| {
            let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
            Redirect::of(&reply.extract_error().unwrap_err(), &by)
        };
        let at = |host: &str, port| (host.to_owned(), port);
        assert_eq!(redirect("MOVED 3999 10.0.0.2:6381"), Some(Redirect::Moved(at("10.0.0.2", 6381))));
        assert_eq!(redirect("MOVED 3999 :6381"), Some(Redirect::Moved(at("10.0.0.1", 6381))));
        assert_eq!(redirect("ASK 3999 ::1:6381"), Some(Redirect::Ask(at("::1", 6381))));
        for reply in ["MOVED 3999 10.0.0.2", "MOVED 3999 10.0.0.2:none", "MOVED", "ERR 1 10.0.0.2:6381"] {
            assert_eq!(redirect(reply), None, "{reply}");
        }
    }
}
