//! A TCP proxy whose server can change, as the address of a DNS name can.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};

/// Forwards each connection to the current server, and counts the connections.
pub struct Door {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    taken: AtomicUsize,
    /// The port of the current server. Without one, each connection is closed at once.
    port: Mutex<Option<u16>>,
    open: Mutex<Vec<AbortHandle>>,
}

impl Door {
    pub async fn to(port: impl Into<Option<u16>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { port: Mutex::new(port.into()), ..Shared::default() });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { port: own, shared, accepting }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sets the server of later connections.
    pub fn lead_to(&self, port: u16) {
        *self.shared.port.lock().unwrap() = Some(port);
    }

    /// Returns the number of accepted connections.
    pub fn taken(&self) -> usize {
        self.shared.taken.load(Ordering::SeqCst)
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.open.lock().unwrap().drain(..).for_each(|open| open.abort());
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((mut from, _)) = listener.accept().await {
        shared.taken.fetch_add(1, Ordering::SeqCst);
        let Some(port) = *shared.port.lock().unwrap() else { continue };
        let open = tokio::spawn(async move {
            if let Ok(mut to) = TcpStream::connect(("127.0.0.1", port)).await {
                // Returns when both directions have ended. The drops then close both connections.
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            }
        });
        shared.open.lock().unwrap().push(open.abort_handle());
    }
}

/// Returns the port of `redis://127.0.0.1:PORT`.
pub fn port(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.parse().unwrap()
}
