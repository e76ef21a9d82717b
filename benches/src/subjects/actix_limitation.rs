//! actix-limitation: its limiter, without its middleware.

use std::time::Duration;

use actix_limitation::{Error, Limiter};

use super::{Info, Kind, Subject};
use crate::Failure;
use crate::case::Case;

pub(crate) struct ActixLimitation {
    limiter: Limiter,
}

impl Subject for ActixLimitation {
    const INFO: Info = Info {
        name: "actix-limitation",
        title: "actix-limitation",
        note: "fixed window of an hour; denials count; a new connection for each check",
        kind: Kind::Peer,
        max_capacity: u64::MAX,
    };

    async fn open(url: &str, case: Case) -> Result<Self, Failure> {
        let limit = usize::try_from(case.limit().capacity)?;
        let limiter = Limiter::builder(url).limit(limit).period(Duration::from_secs(3600)).build();
        Ok(Self { limiter: limiter.map_err(|error| error.to_string())? })
    }

    async fn check(&self, key: &str) -> Result<bool, Failure> {
        match self.limiter.count(key).await {
            Ok(_) => Ok(true),
            Err(Error::LimitExceeded(_)) => Ok(false),
            Err(error) => Err(error.to_string().into()),
        }
    }
}
