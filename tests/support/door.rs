//! An address whose server can change, as that of a name in the DNS does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinHandle};

/// Passes each connection on to the server of the moment, and counts them.
pub(crate) struct Door {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    taken: AtomicUsize,
    /// Without one, whoever comes in is shown out.
    port: Mutex<Option<u16>>,
    open: Mutex<Vec<AbortHandle>>,
}

impl Door {
    pub(crate) async fn to(port: impl Into<Option<u16>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { port: Mutex::new(port.into()), ..Shared::default() });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Self { port: own, shared, accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where connections go from now on.
    pub(crate) fn lead_to(&self, port: u16) {
        *self.shared.port.lock().unwrap() = Some(port);
    }

    /// How many connections came.
    pub(crate) fn taken(&self) -> usize {
        self.shared.taken.load(Ordering::SeqCst)
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
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
                // Its end is that of both.
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            }
        });
        shared.open.lock().unwrap().push(open.abort_handle());
    }
}

/// Of `redis://127.0.0.1:PORT`.
pub(crate) fn port(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.parse().unwrap()
}
