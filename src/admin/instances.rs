//! Counts the live instances of services by their heartbeats.

use std::collections::BTreeSet;

use redis::{Cmd, Value};

use super::{Inspector, Scan, StoreAccess, unexpected_reply};
use crate::error::Error;
use crate::key::{HashTag, SHARED_LAYOUT};
use crate::script;

/// The maximum namespaces that are returned.
const MAX_NAMESPACES: usize = 1_000;

/// # Instances
impl Inspector {
    /// Returns the number of live instances of the namespace, by their heartbeats. They follow the operators'
    /// [overrides](crate::Control), except those with
    /// [`follow_overrides(false)`](crate::Builder::follow_overrides).
    ///
    /// An instance sends heartbeats from its first check on, every 5 s. One that ends without a notice is
    /// counted for up to 20 s. An instance with a fixed number of
    /// [`instances`](crate::Builder::instances) sends none and is not counted.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer.
    pub async fn instances(&self) -> Result<u64, Error> {
        let StoreAccess { pipeline } = &self.0;
        let key = pipeline.keyspace().instances();
        let args = |command: &mut Cmd| {
            // The script returns the number of members of a log, which is a sorted set too.
            command.arg(1).arg(&key).arg("log");
        };
        let target = self.0.call_target(HashTag::default());
        let reply = self.0.connection()?.run(&script::INSPECT, args, target).await?;
        let Value::Array(reply) = reply else { return Err(unexpected_reply()) };
        match reply.as_slice() {
            [Value::Int(_), Value::Int(_), Value::BulkString(count)] => {
                let count = std::str::from_utf8(count).ok().and_then(|count| count.parse().ok());
                count.ok_or_else(unexpected_reply)
            }
            [Value::Int(_), Value::BulkString(error)] => {
                Err(Error::from_script(&String::from_utf8_lossy(error)))
            }
            _ => Err(unexpected_reply()),
        }
    }

    /// Returns the namespaces in this database that have live [`instances`](Self::instances), at most 1,000.
    /// Scans all keys.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if Redis did not answer.
    pub async fn live_namespaces(&self) -> Result<BTreeSet<String>, Error> {
        let mut namespaces = BTreeSet::new();
        let mut scan = Scan::new(&self.0, format!("*:{SHARED_LAYOUT}:*instances"));
        while let Some(keys) = scan.next_keys().await? {
            namespaces.extend(keys.iter().filter_map(|key| namespace_of(key)));
            if namespaces.len() > MAX_NAMESPACES {
                return Ok(namespaces.into_iter().take(MAX_NAMESPACES).collect());
            }
        }
        Ok(namespaces)
    }
}

/// Returns the namespace of a key that counts instances.
fn namespace_of(key: &[u8]) -> Option<String> {
    let key = std::str::from_utf8(key).ok()?;
    let mut parts = key.split(':');
    let (namespace, layout) = (parts.next()?, parts.next()?);
    let is_of_instances = match (parts.next()?, parts.next()) {
        ("instances", None) => true,
        // On a cluster, the key has a hash tag.
        (tag, Some("instances")) => tag.starts_with('{') && tag.ends_with('}'),
        _ => false,
    };
    let is_counted = is_of_instances
        && parts.next().is_none()
        && layout.parse() == Ok(SHARED_LAYOUT)
        && namespace.bytes().all(|byte| byte.is_ascii_graphic());
    is_counted.then(|| namespace.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_that_count_instances_name_a_namespace() {
        for key in ["shop:1:instances", "shop:1:{cr}:instances"] {
            assert_eq!(namespace_of(key.as_bytes()).as_deref(), Some("shop"), "{key}");
        }
        for key in [
            "shop:1:overrides",
            "shop:2:instances",
            "shop:1:x:instances",
            "shop:1:{cr}:x:instances",
            "shop:2:login:token_bucket:x:1:instances",
            "a b:1:instances",
            "\x1b:1:instances",
            "instances",
        ] {
            assert_eq!(namespace_of(key.as_bytes()), None, "{key}");
        }
        assert_eq!(namespace_of(b"\xff:1:instances"), None);
    }
}
