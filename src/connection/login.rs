//! As whom a connection is made.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::ConnectionInfo;

use crate::error::Error;

/// User and password.
type Pair = (String, String);
type Told = Result<Pair, Box<dyn StdError + Send + Sync>>;

#[derive(Clone, Default)]
pub(crate) enum Login {
    #[default]
    OfUrl,
    Fixed(Pair),
    /// Asked for each connection.
    Asked(Arc<dyn Fn() -> BoxFuture<'static, Told> + Send + Sync>),
}

impl Login {
    pub(crate) fn asked<F, E>(provider: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Pair, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        Self::Asked(Arc::new(move || {
            let told = provider();
            async { told.await.map_err(Into::into) }.boxed()
        }))
    }

    pub(super) async fn apply(&self, info: ConnectionInfo) -> Result<ConnectionInfo, Error> {
        let (user, password) = match self {
            Self::OfUrl => return Ok(info),
            Self::Fixed(pair) => pair.clone(),
            Self::Asked(provider) => provider().await.map_err(|error| {
                Error::unavailable(format!("there are no credentials to connect with: {error}"))
            })?,
        };
        let settings = info.redis_settings().clone().set_username(user).set_password(password);
        Ok(info.set_redis_settings(settings))
    }
}

/// Without any secret.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OfUrl => "OfUrl",
            Self::Fixed(_) => "Fixed",
            Self::Asked(_) => "Asked",
        })
    }
}
