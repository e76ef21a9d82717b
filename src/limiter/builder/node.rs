//! One Redis, from a URL and what is said beside it.

use redis::{ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};

use super::Credentials;
use crate::error::Error;

pub(super) fn client(url: &str, credentials: Option<&Credentials>) -> Result<redis::Client, Error> {
    node(url, credentials).and_then(redis::Client::open).map_err(|error| bad_url(&error))
}

pub(super) fn node(url: &str, credentials: Option<&Credentials>) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    Ok(match credentials {
        None => info,
        Some(Credentials { user, password }) => {
            let settings = info.redis_settings().clone().set_username(user).set_password(password);
            info.set_redis_settings(settings)
        }
    })
}

/// Without the URL in the error: it may hold a password.
pub(super) fn bad_url(error: &RedisError) -> Error {
    Error::config(format!(
        "the Redis URL cannot be used ({error}): it should look like redis://127.0.0.1:6379"
    ))
}
