//! limitador: its asynchronous limiter on Redis. Behind a feature, since it takes a long time to build.

use std::collections::HashMap;

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use limitador::storage::redis::AsyncRedisStorage;

use super::{Info, Kind, Subject};
use crate::Failure;
use crate::case::Case;

pub(crate) struct Limitador {
    limiter: AsyncRateLimiter,
    namespace: Namespace,
}

impl Subject for Limitador {
    const INFO: Info = Info {
        name: "limitador",
        title: "limitador",
        note: "fixed window of an hour",
        kind: Kind::Peer,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let storage = AsyncRedisStorage::new(url).await?;
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
        let namespace = format!("limitador-{}", case.family());
        let by_key = vec!["key".try_into()?];
        limiter.add_limit(Limit::new(namespace.as_str(), case.limit().capacity, 3600, vec![], by_key));
        let opened = Self { limiter, namespace: namespace.as_str().into() };
        // If no limit applies, limitador allows the check without a call to Redis.
        opened.check("first").await?;
        let counters = opened.limiter.get_counters(&opened.namespace).await;
        if counters.map_err(|error| error.to_string())?.is_empty() {
            return Err("its limit does not apply".into());
        }
        Ok(opened)
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        let context: Context = HashMap::from([("key".to_owned(), key.to_owned())]).into();
        let checked = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1).await;
        Ok(!checked.map_err(|error| error.to_string())?.limited)
    }
}
