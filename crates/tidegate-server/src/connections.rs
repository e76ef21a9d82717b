//! Accepts connections, up to a maximum, and serves them until the end of the server.

mod bounded;
mod failed_accepts;
mod places;

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ::metrics::Gauge;
use futures_util::FutureExt;
use tidegate::Limiter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) use self::bounded::Bounded;
use self::failed_accepts::FailedAccepts;
use self::places::Places;
pub(crate) use self::places::{Guests, Place};
use crate::metrics::ServiceMetrics;

/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// The end of the server, as its ports and their connections observe it.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<()>);

impl Stop {
    /// Returns a sender whose drop stops, and its observer.
    pub(crate) fn new() -> (watch::Sender<()>, Self) {
        let (sender, receiver) = watch::channel(());
        (sender, Self(receiver))
    }

    /// Completes when the server stops.
    pub(crate) async fn stopped(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// A port whose connections are counted and bounded.
pub(crate) struct Port {
    /// Its name in metrics.
    pub(crate) name: &'static str,
    pub(crate) listener: TcpListener,
    /// The maximum number of connections with a place.
    pub(crate) max_connections: usize,
    pub(crate) admission: Admission,
    pub(crate) metrics: Option<ServiceMetrics>,
    pub(crate) stop: Stop,
    /// Is warned if connections cannot be accepted.
    pub(crate) limiter: Limiter,
}

/// Which connections have a [`Place`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admission {
    /// All. Above the maximum, they wait in the backlog of the listener until one is closed.
    Wait,
    /// All up to the maximum. Above it, they are guests.
    Place(Guests),
    /// Those that [take](Place::take) one. Before, they are guests.
    OnRequest(Guests),
}

impl Port {
    /// Serves connections until the server stops, then those that are open until each has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections.
    pub(crate) async fn serve<C>(self, connection: impl Fn(TcpStream, Place, Stop) -> C)
    where
        C: Future<Output = ()> + Send + 'static,
    {
        let Self { name, listener, max_connections, admission, metrics, mut stop, limiter } = self;
        let mut failed = FailedAccepts::new(name, metrics.as_ref(), limiter);
        let (waits, guests) = match admission {
            // Each takes its place at once.
            Admission::Wait => (true, Guests { max: 1, max_per_client: 1 }),
            Admission::Place(guests) | Admission::OnRequest(guests) => (false, guests),
        };
        let gauge = metrics.as_ref().map(|metrics| metrics.connections(name));
        let displaced = metrics.filter(|_| !waits).map(|it| it.rejected_connections(name, "displaced"));
        let observed = stop.clone();
        let places = Places::new(max_connections, guests);
        let counted = |(stream, address): (TcpStream, SocketAddr)| {
            let count = gauge.clone().map(OpenConnection::new);
            let (place, displacing) = places.enter(address.ip());
            if !matches!(admission, Admission::OnRequest(_)) {
                place.take();
            }
            let serving = connection(stream, place, observed.clone());
            let displaced = displaced.clone();
            async move {
                tokio::select! {
                    () = serving => {}
                    Ok(()) = displacing => displaced.iter().for_each(|displaced| displaced.increment(1)),
                }
                drop(count);
            }
        };
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                accepted = accept(&listener, &mut failed), if !waits || open.len() < max_connections => {
                    open.spawn(counted(accepted));
                    while open.try_join_next().is_some() {}
                }
                Some(_) = open.join_next() => {}
                () = stop.stopped() => break,
            }
        }
        // The connections that the system has accepted: it would reset them.
        while open.len() < max_connections
            && let Some(accepted) = accept(&listener, &mut failed).now_or_never()
        {
            open.spawn(counted(accepted));
        }
        drop(listener);
        while open.join_next().await.is_some() {}
    }
}

/// Counts a connection until it is dropped.
struct OpenConnection(Gauge);

impl OpenConnection {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

async fn accept(listener: &TcpListener, failed: &mut FailedAccepts) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                // Without it, answers wait for more data. An error means that the client has left.
                let _ = stream.set_nodelay(true);
                return (stream, address);
            }
            Err(error) => {
                failed.count(&error);
                sleep(PAUSE).await;
            }
        }
    }
}

/// The address of a client; of IPv6, its network of 64 bits, all of which one client can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(IpAddr);

impl Client {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
        })
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_client() {
        for (address, expected) in [
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("2001:db8:0:1:ffff::1", "2001:db8:0:1::"),
            ("::1", "::"),
        ] {
            assert_eq!(Client::new(address.parse().unwrap()).to_string(), expected);
        }
    }
}
