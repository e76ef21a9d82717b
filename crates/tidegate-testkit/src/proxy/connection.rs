//! One connection through the proxy.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp},
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    counters::Counters,
    fault::{Fault, State},
};

/// The state that both directions of a connection share.
struct Link<'a> {
    states: watch::Receiver<State>,
    /// Bytes were discarded, so all later bytes are discarded too.
    is_discarding: AtomicBool,
    /// Bytes transferred, in both directions.
    transferred: AtomicU64,
    /// With [`Fault::Cut`], a random number that determines where the connection ends.
    random: u64,
    counters: &'a Counters,
}

pub(super) async fn run(
    client: TcpStream,
    server: String,
    states: watch::Receiver<State>,
    counters: &'static Counters,
) {
    let _open = counters.open();
    let _ = client.set_nodelay(true);
    let link = Link {
        is_discarding: AtomicBool::new(false),
        transferred: AtomicU64::new(0),
        random: RandomState::new().build_hasher().finish(),
        states,
        counters,
    };
    // If the server accepts no connection, the client's connection ends at once, like a late rejection.
    let _ = connect(client, &server, &link).await;
}

async fn connect(client: TcpStream, server: &str, link: &Link<'_>) -> io::Result<()> {
    let (from_client, mut to_client) = client.into_split();
    if matches!(link.fault(), Fault::BlackHole | Fault::HalfClose) {
        // The proxy does not connect to the server.
        link.is_discarding.store(true, Ordering::SeqCst);
        if link.fault() == Fault::HalfClose {
            to_client.shutdown().await?;
        }
        return forward(from_client, None, link).await;
    }
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    let (from_server, to_server) = server.into_split();
    // When one direction ends, the connection ends.
    tokio::select! {
        done = forward(from_client, Some(to_server), link) => done,
        done = backward(from_server, to_client, link) => done,
    }
}

/// Transfers from the client to the server.
async fn forward(
    mut client: tcp::OwnedReadHalf,
    mut server: Option<tcp::OwnedWriteHalf>,
    link: &Link<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        let read = client.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        link.counters.to_server.fetch_add(read as u64, Ordering::SeqCst);
        if let Fault::Late(delay) = link.fault() {
            tokio::time::sleep(delay).await;
        }
        let passing = link.pass(read);
        if let (Some(server), Some(passing)) = (&mut server, passing) {
            server.write_all(&buffer[..passing]).await?;
            if passing < read {
                return Ok(());
            }
        }
    }
}

/// Transfers from the server to the client.
async fn backward(
    mut server: tcp::OwnedReadHalf,
    mut client: tcp::OwnedWriteHalf,
    link: &Link<'_>,
) -> io::Result<()> {
    // Each chunk has its own due time, so that a delayed chunk does not delay the next one further.
    let (late, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let read = server.read(&mut buffer).await?;
            if read == 0 {
                return io::Result::Ok(());
            }
            link.counters.to_client.fetch_add(read as u64, Ordering::SeqCst);
            let delay = match link.fault() {
                Fault::Slow(delay) => delay,
                _ => Duration::ZERO,
            };
            if late.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                return Ok(());
            }
        }
    };
    let mut states = link.states.clone();
    let write = async {
        loop {
            let next = tokio::select! {
                next = due.recv() => next,
                // Sends the end of the stream when the fault begins, not with the next bytes.
                () = half_closed(&mut states) => {
                    link.is_discarding.store(true, Ordering::SeqCst);
                    client.shutdown().await?;
                    return std::future::pending().await;
                }
            };
            let Some((at, bytes)) = next else { return io::Result::Ok(()) };
            tokio::time::sleep_until(at).await;
            if let Some(passing) = link.pass(bytes.len()) {
                client.write_all(&bytes[..passing]).await?;
                if passing < bytes.len() {
                    return Ok(());
                }
            }
        }
    };
    // The end of the server's stream reaches the client after all its bytes. A cut takes effect at once.
    let read = async {
        let _ended = read.await;
        std::future::pending().await
    };
    tokio::select! {
        written = write => written,
        () = read => Ok(()),
    }
}

async fn half_closed(states: &mut watch::Receiver<State>) {
    let _ = states.wait_for(|state| state.fault == Fault::HalfClose).await;
}

impl Link<'_> {
    fn fault(&self) -> Fault {
        self.states.borrow().fault
    }

    /// Returns how many of these bytes to transfer, or `None` to discard them. If the number is smaller than
    /// `bytes`, the connection ends.
    fn pass(&self, bytes: usize) -> Option<usize> {
        if matches!(self.fault(), Fault::BlackHole | Fault::HalfClose) {
            self.is_discarding.store(true, Ordering::SeqCst);
        }
        if self.is_discarding.load(Ordering::SeqCst) {
            return None;
        }
        let before = self.transferred.fetch_add(bytes as u64, Ordering::SeqCst);
        match self.fault() {
            Fault::Cut(max_bytes) => {
                let left = (1 + self.random % max_bytes.max(1)).saturating_sub(before);
                Some(usize::try_from(left).unwrap_or(bytes).min(bytes))
            }
            _ => Some(bytes),
        }
    }
}
