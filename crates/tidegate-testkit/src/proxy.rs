//! A TCP proxy on loopback between a client and a server, which injects network faults.

mod connection;
mod counters;
mod fault;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Mutex, PoisonError, mpsc},
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
pub use self::fault::Fault;
use self::fault::State;
use crate::Error;

/// The longest time in which the proxy's thread applies a change.
const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy between clients and a server that counts bytes and injects a [`Fault`].
///
/// It runs on its own thread, so that it works for blocking callers and while a test blocks its runtime.
/// Dropping this value stops the proxy and its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    /// The states that the proxy's thread has applied, by [`State::changes`].
    applied: Mutex<mpsc::Receiver<u64>>,
    counters: &'static Counters,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to the server at `url`: `redis://127.0.0.1:6379`, or only host and port.
    ///
    /// # Errors
    ///
    /// If no port is available.
    pub fn start(url: &str) -> Result<Self, Error> {
        let failed = |error| Error::io("127.0.0.1", error);
        let server = url.rsplit(['/', '@']).next().unwrap_or(url).to_owned();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        // Never listens: it reserves the port while no listener has it.
        let port = socket(0).map_err(failed)?;
        let address = port.local_addr().map_err(failed)?;
        let (state, states) = watch::channel(State::default());
        let (apply, applied) = mpsc::channel();
        // Leaks a few bytes per proxy of a test: dropping them would require waiting for the connections.
        let counters: &Counters = Box::leak(Box::default());
        let listener = {
            // Not `block_on`: the caller may be on a thread of another runtime.
            let _inside = runtime.enter();
            listen(address.port()).map_err(failed)?
        };
        let thread = thread::spawn(move || {
            runtime.block_on(serve(listener, server, states, &apply, counters));
            drop(port);
        });
        Ok(Self { address, state, applied: applied.into(), counters, thread: Some(thread) })
    }

    /// Returns `redis://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Returns host and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the fault, for open and for new connections. Returns when the proxy's thread has applied it:
    /// when the port listens again, for example. On a busy machine that can take a second.
    ///
    /// # Panics
    ///
    /// If that takes longer than 30 s.
    pub fn set(&self, fault: Fault) {
        self.change(|state| state.fault = fault);
    }

    /// Cuts all open connections, once. Returns when they are cut.
    ///
    /// # Panics
    ///
    /// If that takes longer than 30 s.
    pub fn cut(&self) {
        self.change(|state| state.cuts += 1);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let mut number = 0;
        self.state.send_modify(|state| {
            change(state);
            state.changes += 1;
            number = state.changes;
        });
        while applied.recv_timeout(PATIENCE).expect("the proxy's thread applies its state") < number {}
    }

    /// Returns the counters since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.counts()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Drops the sender, which ends the thread.
        self.state = watch::channel(State::default()).0;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds a socket. Two sockets may share the port: one that listens at times, and one that only reserves it.
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
    mut states: watch::Receiver<State>,
    applied: &mpsc::Sender<u64>,
    counters: &'static Counters,
) {
    let Ok(port) = listener.local_addr().map(|address| address.port()) else { return };
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let (mut cuts, mut changes) = (0, 0);
    loop {
        let state = *states.borrow_and_update();
        if state.cuts > cuts || state.fault == Fault::Refuse {
            cuts = state.cuts;
            connections.shutdown().await;
        }
        match state.fault {
            Fault::Refuse => listener = None,
            _ if listener.is_none() => listener = Some(listen(port).expect("the port is reserved")),
            _ => {}
        }
        if state.changes > changes {
            changes = state.changes;
            // Fails if the proxy is being dropped.
            let _ = applied.send(changes);
        }
        tokio::select! {
            changed = states.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            client = accept(listener.as_ref()) => {
                let states = states.clone();
                let server = server.clone();
                connections.spawn(connection::run(client, server, states, counters));
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
                // The client disconnected, or file descriptors ran out. Later clients may succeed.
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            },
            None => std::future::pending().await,
        }
    }
}
