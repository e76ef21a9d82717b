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

use super::{Fault, Order, counters::Counters};

/// What both directions of a connection know.
struct Line<'a> {
    orders: watch::Receiver<Order>,
    /// Bytes were lost: no more may follow.
    is_dumb: AtomicBool,
    /// Bytes so far, in both directions.
    passed: AtomicU64,
    /// With [`Fault::Cut`], which part of the most may pass.
    share: u64,
    counters: &'a Counters,
}

pub(super) async fn run(
    client: TcpStream,
    server: String,
    orders: watch::Receiver<Order>,
    counters: &'static Counters,
) {
    let _open = counters.open();
    let _ = client.set_nodelay(true);
    let line = Line {
        is_dumb: AtomicBool::new(false),
        passed: AtomicU64::new(0),
        share: RandomState::new().build_hasher().finish(),
        orders,
        counters,
    };
    // Where the server takes none, the client's ends at once, as if it had been refused late.
    let _ = connect(client, &server, &line).await;
}

async fn connect(client: TcpStream, server: &str, line: &Line<'_>) -> io::Result<()> {
    let (from_client, mut to_client) = client.into_split();
    if matches!(line.fault(), Fault::BlackHole | Fault::HalfClose) {
        // The server never hears of this one.
        line.is_dumb.store(true, Ordering::SeqCst);
        if line.fault() == Fault::HalfClose {
            to_client.shutdown().await?;
        }
        return forward(from_client, None, line).await;
    }
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    let (from_server, to_server) = server.into_split();
    // The first end of a direction is the end of both.
    tokio::select! {
        done = forward(from_client, Some(to_server), line) => done,
        done = answer(from_server, to_client, line) => done,
    }
}

/// From the client to the server.
async fn forward(
    mut client: tcp::OwnedReadHalf,
    mut server: Option<tcp::OwnedWriteHalf>,
    line: &Line<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; 65_536];
    loop {
        let read = client.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        line.counters.to_server.fetch_add(read as u64, Ordering::SeqCst);
        let passing = line.pass(read);
        if let (Some(server), Some(passing)) = (&mut server, passing) {
            server.write_all(&buffer[..passing]).await?;
            if passing < read {
                return Ok(());
            }
        }
    }
}

/// From the server to the client.
async fn answer(
    mut server: tcp::OwnedReadHalf,
    mut client: tcp::OwnedWriteHalf,
    line: &Line<'_>,
) -> io::Result<()> {
    // What is late holds up nothing that comes after it: each has a time of its own.
    let (late, mut due) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let read = server.read(&mut buffer).await?;
            if read == 0 {
                return io::Result::Ok(());
            }
            line.counters.to_client.fetch_add(read as u64, Ordering::SeqCst);
            let delay = match line.fault() {
                Fault::Slow(delay) => delay,
                _ => Duration::ZERO,
            };
            if late.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                return Ok(());
            }
        }
    };
    let mut orders = line.orders.clone();
    let write = async {
        loop {
            let next = tokio::select! {
                next = due.recv() => next,
                // The client is told the end when it comes, not with the next bytes.
                () = half_closed(&mut orders) => {
                    line.is_dumb.store(true, Ordering::SeqCst);
                    client.shutdown().await?;
                    return std::future::pending().await;
                }
            };
            let Some((at, bytes)) = next else { return io::Result::Ok(()) };
            tokio::time::sleep_until(at).await;
            if let Some(passing) = line.pass(bytes.len()) {
                client.write_all(&bytes[..passing]).await?;
                if passing < bytes.len() {
                    return Ok(());
                }
            }
        }
    };
    // The server's end reaches the client after all that it sent; what ends here ends at once.
    let read = async {
        let _ended = read.await;
        std::future::pending().await
    };
    tokio::select! {
        written = write => written,
        () = read => Ok(()),
    }
}

async fn half_closed(orders: &mut watch::Receiver<Order>) {
    let _ = orders.wait_for(|order| order.fault == Fault::HalfClose).await;
}

impl Line<'_> {
    fn fault(&self) -> Fault {
        self.orders.borrow().fault
    }

    /// How many of so many bytes go on, `None` if they are swallowed. Where fewer go on than there are,
    /// the connection ends.
    fn pass(&self, bytes: usize) -> Option<usize> {
        if matches!(self.fault(), Fault::BlackHole | Fault::HalfClose) {
            self.is_dumb.store(true, Ordering::SeqCst);
        }
        if self.is_dumb.load(Ordering::SeqCst) {
            return None;
        }
        let before = self.passed.fetch_add(bytes as u64, Ordering::SeqCst);
        match self.fault() {
            Fault::Cut(most) => {
                let left = (1 + self.share % most.max(1)).saturating_sub(before);
                Some(usize::try_from(left).unwrap_or(bytes).min(bytes))
            }
            _ => Some(bytes),
        }
    }
}
