//! The credentials of a connection.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::ConnectionInfo;

use crate::error::Error;

/// A user and a password.
type Pair = (String, String);
type Credentials = Result<Pair, Box<dyn StdError + Send + Sync>>;

#[derive(Clone, Default)]
pub(crate) enum Login {
    #[default]
    OfUrl,
    Fixed(Pair),
    /// Called for each connection.
    Provider(Arc<dyn Fn() -> BoxFuture<'static, Credentials> + Send + Sync>),
}

impl Login {
    pub(crate) fn provided<F, E>(provider: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Pair, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        Self::Provider(Arc::new(move || {
            let credentials = provider();
            async { credentials.await.map_err(Into::into) }.boxed()
        }))
    }

    pub(super) async fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        let (user, password) = match self {
            Self::OfUrl => return Ok(info),
            Self::Fixed(pair) => pair.clone(),
            Self::Provider(provider) => provider()
                .await
                .map_err(|error| Error::unavailable(format!("the credentials provider failed: {error}")))?,
        };
        let settings = info.redis_settings().clone().set_username(user).set_password(password);
        Ok(info.set_redis_settings(settings))
    }
}

/// Shows no secrets.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OfUrl => "OfUrl",
            Self::Fixed(_) => "Fixed",
            Self::Provider(_) => "Provider",
        })
    }
}
