//! Accepts connections.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::Counter;
use rustls::ServerConfig;
use tidegate::{Limiter, RepeatedWarning};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

/// The maximum time of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Returns the next connection.
pub(crate) async fn accept(listener: &TcpListener) -> TcpStream {
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

/// Returns the connections whose TLS handshakes succeed. Handshakes run beside each other. A failed one is a warning
/// of the limiter.
pub(crate) fn with_tls(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    limiter: Limiter,
    rejected: Option<Counter>,
) -> ReceiverStream<io::Result<TlsStream<TcpStream>>> {
    let (ready, streams) = mpsc::channel(16);
    let failed = RepeatedWarning::new("server-tls-handshake");
    tokio::spawn(async move {
        let mut handshakes = JoinSet::new();
        loop {
            let stream = tokio::select! {
                stream = accept(&listener) => stream,
                Some(result) = handshakes.join_next() => {
                    if let Ok(Err(error)) = result {
                        rejected.iter().for_each(|rejected| rejected.increment(1));
                        limiter.warn(&failed, || format!("a client's TLS handshake failed: {error}"));
                    }
                    continue;
                }
                // The server stops: it has dropped the receiver.
                () = ready.closed() => return,
            };
            let (acceptor, ready) = (TlsAcceptor::from(config.clone()), ready.clone());
            handshakes.spawn(async move {
                let stream = timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
                let stream = stream.map_err(|_| io::Error::other("it took more than 10 s"))??;
                // An error means that the server stops.
                let _ = ready.send(Ok(stream)).await;
                io::Result::Ok(())
            });
        }
    });
    ReceiverStream::new(streams)
}
