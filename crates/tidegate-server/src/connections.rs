//! Accepts connections, up to a maximum, and serves them until the end of the server.

mod bounded;

use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub(crate) use self::bounded::Bounded;

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

/// Serves connections until the server stops, then those that are open until each has ended. With `max` open
/// connections, further ones wait in the backlog of the listener until one is closed.
///
/// # Cancel safety
///
/// Dropping the future closes all connections.
pub(crate) async fn serve<C: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    max: usize,
    mut stop: Stop,
    connection: impl Fn(TcpStream, Stop) -> C,
) {
    let mut open = JoinSet::new();
    let observed = stop.clone();
    loop {
        tokio::select! {
            stream = accept(&listener), if open.len() < max => {
                open.spawn(connection(stream, observed.clone()));
            }
            Some(_) = open.join_next() => {}
            () = stop.stopped() => break,
        }
    }
    // The connections that the system has accepted: it would reset them.
    while let (true, Some(stream)) = (open.len() < max, accept(&listener).now_or_never()) {
        open.spawn(connection(stream, observed.clone()));
    }
    drop(listener);
    while open.join_next().await.is_some() {}
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
