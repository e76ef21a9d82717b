//! Limits wrong tokens, by a gate in the memory of this process.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tidegate::{Gate, Limiter, ManualClock, Quota, Rate};

/// The wrong tokens of one client: ten at once, then one each ten seconds.
const WRONG_TOKENS: Quota = Quota::token_bucket(10, Rate::per_minute(6));
/// The maximum number of clients that are remembered. Those that have failed most stay longest.
const MAX_CLIENTS: usize = 10_000;

/// The address of a client; of IPv6, its network of 64 bits, all of which one client can have.
#[derive(Clone, Debug)]
pub(super) struct Client(String);

impl Client {
    pub(super) fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).to_string()
            }
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug)]
pub(super) struct Attempts {
    gate: Gate,
}

/// An attempt that counts as failed unless it [succeeds](Self::succeeded).
pub(super) struct Attempt<'a> {
    gate: &'a Gate,
    client: &'a Client,
}

impl Attempts {
    pub(super) fn new(clock: Option<ManualClock>) -> Self {
        let builder = Limiter::builder().in_memory().max_keys(MAX_CLIENTS).stderr_warnings(false);
        let builder = match clock {
            Some(clock) => builder.manual_clock(clock),
            None => builder,
        };
        #[allow(clippy::expect_used, reason = "these settings are constants")]
        let limiter = builder.build().expect("a limiter in memory needs no server");
        Self { gate: limiter.gate("admin-tokens", WRONG_TOKENS) }
    }

    /// Charges the attempt before the token is compared, so that attempts at the same time count, too.
    ///
    /// # Errors
    ///
    /// The time until the next attempt, if the client has failed too often.
    pub(super) async fn begin<'a>(&'a self, client: &'a Client) -> Result<Attempt<'a>, Duration> {
        match self.gate.check(&*client.0).await {
            Ok(decision) if decision.is_allowed() => Ok(Attempt { gate: &self.gate, client }),
            Ok(decision) => Err(decision.retry_after()),
            // A limiter in memory does not fail.
            Err(_) => Err(Duration::from_secs(1)),
        }
    }
}

impl Attempt<'_> {
    /// Gives the charge back.
    pub(super) async fn succeeded(self) {
        // A limiter in memory does not fail.
        let _ = self.gate.refund(&*self.client.0, 1).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_failed_attempts_of_one_client_count() {
        let clock = ManualClock::new();
        let attempts = Attempts::new(Some(clock.clone()));
        let [ada, bob] = ["10.0.0.1", "10.0.0.2"].map(|address| Client::new(address.parse().unwrap()));
        for _ in 0..100 {
            attempts.begin(&ada).await.ok().unwrap().succeeded().await;
        }
        for _ in 0..10 {
            assert!(attempts.begin(&ada).await.is_ok());
        }
        assert!(attempts.begin(&ada).await.is_err_and(|wait| wait == Duration::from_secs(10)));
        assert!(attempts.begin(&bob).await.is_ok());
        clock.advance(Duration::from_secs(10));
        assert!(attempts.begin(&ada).await.is_ok());
        assert!(attempts.begin(&ada).await.is_err());
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        for (address, expected) in [
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("2001:db8:0:1:ffff::1", "2001:db8:0:1::"),
            ("::1", "::"),
        ] {
            assert_eq!(Client::new(address.parse().unwrap()).0, expected);
        }
    }
}
