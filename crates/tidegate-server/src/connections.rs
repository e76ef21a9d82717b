//! Accepts connections, up to a maximum, and serves them until the end of the server.

mod bounded;

use std::future::Future;
use std::time::Duration;

use ::metrics::Gauge;
use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) use self::bounded::Bounded;
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
    /// The maximum number of open connections. Further ones wait in the backlog of the listener until one is closed.
    pub(crate) max_connections: usize,
    pub(crate) metrics: Option<ServiceMetrics>,
    pub(crate) stop: Stop,
}

impl Port {
    /// Serves connections until the server stops, then those that are open until each has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes all connections.
    pub(crate) async fn serve<C>(self, connection: impl Fn(TcpStream, Stop) -> C)
    where
        C: Future<Output = ()> + Send + 'static,
    {
        let Self { name, listener, max_connections, metrics, mut stop } = self;
        let gauge = metrics.map(|metrics| metrics.connections(name));
        let observed = stop.clone();
        let counted = |stream| {
            let count = gauge.clone().map(OpenConnection::new);
            let serving = connection(stream, observed.clone());
            async move {
                serving.await;
                drop(count);
            }
        };
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                stream = accept(&listener), if open.len() < max_connections => {
                    open.spawn(counted(stream));
                }
                Some(_) = open.join_next() => {}
                () = stop.stopped() => break,
            }
        }
        // The connections that the system has accepted: it would reset them.
        while open.len() < max_connections
            && let Some(stream) = accept(&listener).now_or_never()
        {
            open.spawn(counted(stream));
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

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Without it, answers wait for more data. An error means that the client has left.
                let _ = stream.set_nodelay(true);
                return stream;
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
