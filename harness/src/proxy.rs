//! A network that can be broken: a TCP proxy on loopback between a client and a server.

mod connection;
mod counters;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    thread,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
};

use self::counters::Counters;
pub use self::counters::Counts;
use crate::Error;

/// What is wrong with the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Nobody listens any more; connections that there are have been cut.
    Refuse,
    /// Connections are accepted, and what is sent in either direction is swallowed. A connection that
    /// has lost bytes stays dumb for good, also once this is over: what follows would make no sense.
    BlackHole,
    /// What the server sends arrives so much later.
    Slow(Duration),
    /// Each connection ends after a random number of bytes, both directions together, in the middle of
    /// whatever is being sent: at least 1, at most so many.
    Cut(u64),
    /// The client reads an end; what it sends is taken, and goes nowhere.
    HalfClose,
}

/// What connections follow: the fault, and how often all of them were cut.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    fault: Fault,
    cuts: u64,
}

/// Stands between clients and a server, counts, and breaks what it is told to break.
///
/// It runs on a thread of its own, so that it works for blocking callers and where the runtime of a
/// test stands still; and ends with this value, its connections too.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    order: watch::Sender<Order>,
    counters: &'static Counters,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// A proxy to the server at `url`: `redis://127.0.0.1:6379`, or only host and port.
    ///
    /// # Errors
    ///
    /// If no port can be had.
    pub fn start(url: &str) -> Result<Self, Error> {
        let failed = |error| Error::io("127.0.0.1", error);
        let server = url.rsplit(['/', '@']).next().unwrap_or(url).to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        // Never listens: it keeps the port ours while nobody does.
        let port = socket(0).map_err(failed)?;
        let address = port.local_addr().map_err(failed)?;
        let (order, orders) = watch::channel(Order::default());
        // A few bytes for each proxy of a test: no connection has to be waited for to drop them.
        let counters: &Counters = Box::leak(Box::default());
        let listener = {
            // Not `block_on`: the caller may be in a runtime of his own.
            let _inside = runtime.enter();
            listen(address.port()).map_err(failed)?
        };
        let thread = thread::spawn(move || {
            runtime.block_on(serve(listener, server, orders, counters));
            drop(port);
        });
        Ok(Self { address, order, counters, thread: Some(thread) })
    }

    /// `redis://127.0.0.1:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Host and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on this is wrong, for connections that there are as for new ones, and nothing else.
    pub fn set(&self, fault: Fault) {
        self.order.send_modify(|order| order.fault = fault);
    }

    /// Cuts all connections that there are, once.
    pub fn cut(&self) {
        self.order.send_modify(|order| order.cuts += 1);
    }

    /// What went through so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The thread ends when nobody can give orders any more.
        self.order = watch::channel(Order::default()).0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Two sockets may have the port: one that listens now and then, and one that only keeps it.
fn socket(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    Ok(socket)
}

fn listen(port: u16) -> io::Result<TcpListener> {
    socket(port)?.listen(1024)
}

async fn serve(
    listener: TcpListener,
    server: String,
    mut orders: watch::Receiver<Order>,
    counters: &'static Counters,
) {
    let Ok(port) = listener.local_addr().map(|address| address.port()) else { return };
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let mut cuts = 0;
    loop {
        let order = *orders.borrow_and_update();
        if order.cuts > cuts || order.fault == Fault::Refuse {
            cuts = order.cuts;
            connections.shutdown().await;
        }
        match order.fault {
            Fault::Refuse => listener = None,
            _ if listener.is_none() => listener = listen(port).ok(),
            _ => {}
        }
        tokio::select! {
            changed = orders.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            client = accept(listener.as_ref()) => {
                let orders = orders.clone();
                let server = server.clone();
                connections.spawn(connection::run(client, server, orders, counters));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    loop {
        match listener {
            Some(listener) => match listener.accept().await {
                Ok((client, _)) => return client,
                // The client has gone again, or files have run out: others may come.
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            },
            None => std::future::pending().await,
        }
    }
}
